package hf_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/nn/hf"
)

// setVocab adds tokens to the vocabulary of a model and returns its old size.
func setVocab(t *testing.T, model fsdp.Model, more int) (was int) {
	var vocab *int
	switch m := model.(type) {
	case *nn.GPT:
		vocab = &m.Vocab
	case *nn.Llama:
		vocab = &m.Vocab
	case *nn.BERT:
		vocab = &m.Vocab
	case *nn.ModernBERT:
		vocab = &m.Vocab
	case *nn.T5:
		vocab = &m.Vocab
	default:
		require.Failf(t, "no vocabulary", "%T", model)
	}
	was = *vocab
	*vocab += more
	return was
}

// stateOf returns the values of all parameters, as float64.
func stateOf(ctx context.Context, s *fsdp.Sharded) (map[string][]float64, error) {
	all, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	values := make(map[string][]float64)
	for name, v := range all {
		values[name] = v.Float64s()
	}
	return values, err
}

// TestNewRows loads models with 3 more tokens than their directories have, tied and untied, trained
// and frozen. The rows of these tokens have the same bits on 1 to 4 ranks and for all strategies. A
// saved directory has the new size.
func TestNewRows(t *testing.T) {
	const more = 3
	trainings := []struct {
		ranks    int
		strategy fsdp.Strategy
		frozen   bool
	}{{1, fsdp.FullShard, false}, {2, fsdp.FullShard, true}, {3, fsdp.FullShard, false}, {4, fsdp.FullShard, true}, {3, fsdp.NoShard, true}, {4, fsdp.ShardGradOp, false}}
	for dir, grown := range map[string][]string{
		"../testdata/llama": {"embed.weight", "head.weight"}, "testdata/llama": {"embed.weight", "head.weight"},
		"../testdata/qwen2": {"embed.weight", "head.weight"}, "testdata/gpt2": {"wte.weight"},
		"../testdata/gemma3": {"embed.weight"}, "../testdata/modernbert_masked": {"embed.weight", "head.bias"},
		"../testdata/bert": {"embed.weight", "head.bias"}, "../testdata/roberta_model": {"embed.weight"},
		"../testdata/distilbert_sequences": {"embed.weight"}, "../testdata/t5": {"embed.weight"}, "../testdata/t5v1_1": {"embed.weight", "head.weight"},
	} {
		old, err := hf.Open(dir)
		require.NoError(t, err)
		var before map[string][]float64
		onRanks(t, 1, old.Model, fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) (err error) {
			if err = old.Load(ctx, s); err == nil {
				before, err = stateOf(ctx, s)
			}
			return err
		})
		for _, rows := range []hf.NewRows{hf.MeanRows, hf.ZeroRows, hf.InitRows} {
			var first map[string][]float64
			for _, tt := range trainings {
				t.Run(fmt.Sprintf("%s %d %+v", dir, rows, tt), func(t *testing.T) {
					m, err := hf.Open(dir)
					require.NoError(t, err)
					was := setVocab(t, m.Model, more)
					m.NewRows = rows
					saved := filepath.Join(t.TempDir(), "saved")
					var after map[string][]float64
					require.NoError(t, comm.Run(t.Context(), tt.ranks, func(ctx context.Context, g comm.Group) error {
						s, err := fsdp.Wrap(m.Model, fsdp.Config{
							Group: g, WrapPolicy: fsdp.WrapEach(), Strategy: tt.strategy, Precision: fsdp.Precision{Compute: fsdp.Float64}, Seed: 1,
							Frozen: func(string) bool { return tt.frozen }, Poison: true,
						})
						if err != nil {
							return err
						}
						defer s.Close()
						if err := m.Load(ctx, s); err != nil {
							return err
						}
						values, err := stateOf(ctx, s)
						if err != nil {
							return err
						}
						if g.Rank() == 0 {
							after = values
						}
						return m.Save(ctx, s, saved, &fsdp.ExportOptions{DType: new(fsdp.Float64)})
					}))
					for name, v := range before {
						if !slices.Contains(grown, name) {
							require.Equal(t, v, after[name], name)
							continue
						}
						width := len(v) / was
						require.Equal(t, v, after[name][:len(v)], name)
						made := after[name][len(v):]
						require.Len(t, made, more*width)
						for i, x := range made {
							switch want := 0.0; rows {
							case hf.MeanRows:
								for r := range was {
									want += v[r*width+i%width]
								}
								require.Equal(t, want/float64(was), x, name)
							case hf.ZeroRows:
								require.Zero(t, x, name)
							default:
								require.Equal(t, name != "head.bias", x != 0, name)
							}
						}
					}
					if first == nil {
						first = after
					}
					require.Equal(t, first, after)
					require.EqualValues(t, fmt.Sprint(was+more), fmt.Sprint(keys(t, saved)["vocab_size"]))
					again, err := hf.Open(saved)
					require.NoError(t, err)
					require.Equal(t, m.Model, again.Model)
				})
			}
		}
	}
}

// TestNewRowsRefused loads models with other numbers of tokens and without NewRows.
func TestNewRowsRefused(t *testing.T) {
	load := func(dir string, more, ranks int, rows func(rank int) hf.NewRows) error {
		return comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
			m, err := hf.Open(dir)
			if err != nil {
				return err
			}
			setVocab(t, m.Model, more)
			m.NewRows = rows(g.Rank())
			s, err := fsdp.Wrap(m.Model, fsdp.Config{Group: g})
			if err != nil {
				return err
			}
			defer s.Close()
			return m.Load(ctx, s)
		})
	}
	same := func(rows hf.NewRows) func(int) hf.NewRows { return func(int) hf.NewRows { return rows } }
	const dir = "../testdata/llama"
	err := load(dir, 3, 2, same(hf.NoNewRows))
	require.ErrorContains(t, err, "reshaped model.embed_tokens.weight")
	require.ErrorContains(t, err, "as in m.NewRows = hf.MeanRows")
	require.ErrorAs(t, err, new(*fsdp.StateError))
	err = load(dir, -3, 2, same(hf.MeanRows))
	require.ErrorContains(t, err, "reshaped model.embed_tokens.weight")
	require.NotContains(t, err.Error(), "NewRows")
	require.NoError(t, load(dir, 0, 2, same(hf.MeanRows)))
	require.ErrorContains(t, load(dir, 3, 1, same(9)), "NewRows is 9, want NoNewRows")
	require.ErrorContains(t, load(dir, 3, 2, func(rank int) hf.NewRows { return hf.MeanRows + hf.NewRows(rank) }), "ranks disagree")
}

// TestNewRowsOfHead adds tokens to a classifier with as many classes as tokens: the head, which has
// a row for each class, stays as it is.
func TestNewRowsOfHead(t *testing.T) {
	model := &nn.BERT{Vocab: 7, Context: 6, Layers: 1, Dim: 4, Heads: 2, Hidden: 4, Task: nn.ClassifySequences, Classes: 7}
	m, err := hf.New(model)
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "model")
	load := func(m *hf.Model) (values map[string][]float64) {
		onRanks(t, 1, m.Model, fsdp.Float64, func(ctx context.Context, s *fsdp.Sharded) (err error) {
			if m.NewRows == hf.NoNewRows {
				if err := m.Save(ctx, s, dir, nil); err != nil {
					return err
				}
			} else if err := m.Load(ctx, s); err != nil {
				return err
			}
			values, err = stateOf(ctx, s)
			return err
		})
		return values
	}
	before := load(m)
	again, err := hf.Open(dir)
	require.NoError(t, err)
	setVocab(t, again.Model, 3)
	again.NewRows = hf.ZeroRows
	for name, v := range load(again) {
		if name == "embed.weight" {
			require.Equal(t, append(before[name], make([]float64, 3*model.Dim)...), v)
		} else {
			require.Equal(t, before[name], v, name)
		}
	}
}

// TestNewRowsOfAdapter refuses to save an adapter whose base model lacks tokens.
func TestNewRowsOfAdapter(t *testing.T) {
	m, err := hf.Open("../testdata/llama")
	require.NoError(t, err)
	setVocab(t, m.Model, 3)
	m.NewRows, m.Model.(*nn.Llama).LoRA = hf.MeanRows, nn.LoRA{Rank: 2}
	s, err := fsdp.Wrap(m.Model, fsdp.Config{Frozen: func(name string) bool { return !nn.IsAdapter(name) }})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, m.Load(t.Context(), s))
	require.ErrorContains(t, m.SaveAdapter(t.Context(), s, t.TempDir()), "call Save before the training, and open the new directory")
	tokens := tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]int{1, m.Model.(*nn.Llama).Vocab - 1}))
	_, err = s.Eval(t.Context(), tokens, tokens)
	require.NoError(t, err)
}
