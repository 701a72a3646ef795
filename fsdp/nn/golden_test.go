package nn_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

// A golden is a model whose weights, and numbers that PyTorch has computed, testdata/models.py has
// written to directory dir of testdata.
type golden struct {
	dir   string
	model fsdp.Model
	// names says which tensors there are a parameter, one below the other.
	names func(ours string) []string
}

const goldenTolerance = 1e-10

// numbers are tensors in float64, or int, by name.
type numbers map[string]*tensor.Dense

// read reads the tensors of a file.
func read(t *testing.T, path string) numbers {
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	h, err := safetensors.ReadHeader(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	all := make(numbers)
	for _, v := range h.Tensors {
		data := file[v.Offset:][:v.Size]
		shape := tensor.WithShape(v.Shape...)
		switch v.DType {
		case "I64":
			var values []int
			for i := 0; i < len(data); i += 8 {
				values = append(values, int(binary.LittleEndian.Uint64(data[i:])))
			}
			all[v.Name] = tensor.New(shape, tensor.WithBacking(values))
		default:
			wide := make([]byte, len(data)/v.DType.Size()*8)
			require.NoError(t, safetensors.Convert(wide, safetensors.F64, data, v.DType))
			values := make([]float64, len(wide)/8)
			for i := range values {
				values[i] = math.Float64frombits(binary.LittleEndian.Uint64(wide[8*i:]))
			}
			all[v.Name] = tensor.New(shape, tensor.WithBacking(values))
		}
	}
	return all
}

// of returns the numbers of the parameters of a model, which have the shapes of like.
func (n numbers) of(t *testing.T, g golden, prefix string, like map[string]*tensor.Dense) numbers {
	ours, seen := make(numbers), make(map[string]bool)
	for name, v := range like {
		var values []float64
		for _, theirs := range g.names(name) {
			require.NotNil(t, n[prefix+theirs], "%s, for %s", prefix+theirs, name)
			values = append(values, n[prefix+theirs].Float64s()...)
			seen[prefix+theirs] = true
		}
		require.Len(t, values, v.Shape().TotalSize(), name)
		ours[name] = tensor.New(tensor.WithShape(v.Shape()...), tensor.WithBacking(values))
	}
	for name := range n {
		require.True(t, seen[name] || !strings.HasPrefix(name, prefix), "%s is not in the model", name)
	}
	return ours
}

// batch returns the share of a rank.
func (n numbers) batch(rank, ranks int) (batch []fsdp.Tensor) {
	for i := 0; n[fmt.Sprint("batch.", i)] != nil; i++ {
		whole := n[fmt.Sprint("batch.", i)]
		rows := whole.Shape()[0] / ranks
		part, err := whole.Slice(tensor.S(rank*rows, (rank+1)*rows))
		if err != nil {
			panic(err)
		}
		batch = append(batch, part.Materialize().(*tensor.Dense))
	}
	return batch
}

// near says which number is not the wanted one, if any.
func near(what string, want, got []float64) error {
	if len(want) != len(got) {
		return fmt.Errorf("%s has %d numbers, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if !(math.Abs(w-got[i]) <= goldenTolerance) {
			return fmt.Errorf("%s: number %d is %v, want %v", what, i, got[i], w)
		}
	}
	return nil
}

// allNear compares tensors by name.
func allNear(what string, want, got map[string]*tensor.Dense) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d tensors of %s, want %d", len(got), what, len(want))
	}
	for name, w := range want {
		if err := near(what+" "+name, w.Float64s(), got[name].Float64s()); err != nil {
			return err
		}
	}
	return nil
}

// test compares logits, loss, all gradients, and three steps of AdamW with PyTorch, on one to four
// ranks under every strategy.
func (g golden) test(t *testing.T) {
	t.Run(g.dir, func(t *testing.T) {
		file := read(t, filepath.Join("testdata", g.dir, "golden.safetensors"))
		weights := read(t, filepath.Join("testdata", g.dir, "model.safetensors"))
		for strategy := fsdp.FullShard; strategy <= fsdp.SecondaryShard; strategy++ {
			for ranks := 1; ranks <= 4; ranks++ {
				cfg := fsdp.Config{
					Strategy: strategy, WrapPolicy: fsdp.WrapTypes(&nn.Layer{}), Poison: true, Precision: fsdp.Precision{Compute: fsdp.Float64},
				}
				if strategy >= fsdp.HybridShard {
					cfg.ShardRanks = ranks / 2
					if ranks%2 != 0 {
						continue
					}
				}
				t.Run(fmt.Sprintf("%v/%d ranks", strategy, ranks), func(t *testing.T) {
					t.Parallel()
					require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, group comm.Group) error {
						cfg := cfg
						cfg.Group = group
						return g.train(t, ctx, cfg, weights, file)
					}))
				})
			}
		}
		for name, p := range map[string]struct {
			fsdp.Precision
			tolerance float64
		}{"float32": {fsdp.Precision{}, 1e-5}, "bfloat16": {fsdp.BF16(), 0.02}} {
			t.Run(name, func(t *testing.T) {
				require.InDelta(t, file["losses"].Float64s()[0], g.loss(t, p.Precision, weights, file), p.tolerance)
			})
		}
	})
}

// loss returns that of a training pass in float32 or bfloat16.
func (g golden) loss(t *testing.T, p fsdp.Precision, weights, file numbers) float64 {
	s, err := fsdp.Wrap(g.model, fsdp.Config{Precision: p, Poison: true})
	require.NoError(t, err)
	defer s.Close()
	state, err := s.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	for name, v := range weights.of(t, g, "", state) {
		for i, x := range v.Float64s() {
			state[name].Float32s()[i] = float32(x)
		}
	}
	require.NoError(t, s.LoadStateDict(t.Context(), 0, state))
	batch := file.batch(0, 1)
	for i, b := range batch {
		if v := b.(*tensor.Dense); v.Dtype() == tensor.Float64 { // images
			narrow := tensor.New(tensor.WithShape(v.Shape()...), tensor.Of(tensor.Float32))
			for j, x := range v.Float64s() {
				narrow.Float32s()[j] = float32(x)
			}
			batch[i] = narrow
		}
	}
	loss, err := s.Forward(t.Context(), batch...)
	require.NoError(t, err)
	require.NoError(t, s.Backward(t.Context()))
	return loss
}

// train compares what one rank sees.
func (g golden) train(t *testing.T, ctx context.Context, cfg fsdp.Config, weights, file numbers) error {
	s, err := fsdp.Wrap(g.model, cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	like, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	if err != nil {
		return err
	}
	if err := s.LoadStateDict(ctx, 0, weights.of(t, g, "", like)); err != nil {
		return err
	}
	rank, ranks := cfg.Group.Rank(), cfg.Group.Size()
	batch := file.batch(rank, ranks)
	out, err := s.Eval(ctx, batch...)
	if err != nil {
		return err
	}
	logits := file["logits"].Float64s()
	n := len(logits) / ranks
	if err := near("logits", logits[rank*n:(rank+1)*n], out[1].Data().([]float64)); err != nil {
		return err
	}
	opt, err := optim.AdamW{Beta1: 0.9, Beta2: 0.99, Eps: 1e-6, WeightDecay: 0.1}.New(s.Params())
	if err != nil {
		return err
	}
	var losses []float64
	for step := range 4 {
		loss, err := s.Forward(ctx, batch...)
		if err != nil {
			return err
		}
		sum := []float64{loss / float64(ranks)}
		if err := cfg.Group.AllReduce(comm.Of(sum), comm.Sum).Wait(ctx); err != nil {
			return err
		}
		losses = append(losses, sum[0])
		if step == 3 {
			break
		}
		if err := s.Backward(ctx); err != nil {
			return err
		}
		if step == 0 {
			grads, err := s.FullGrads(ctx)
			if err := errors.Join(err, allNear("gradients", file.of(t, g, "grad.", like), grads)); err != nil {
				return err
			}
		}
		if err := opt.Step(0.01); err != nil {
			return err
		}
		s.ZeroGrad()
	}
	if err := near("losses", file["losses"].Float64s(), losses); err != nil {
		return err
	}
	stepped, err := s.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	return errors.Join(err, allNear("parameters", file.of(t, g, "stepped.", like), stepped))
}

// renamed returns a function that says what a name becomes: the first pattern that matches the
// whole of it is followed by its template, names with | between them.
func renamed(pairs ...string) func(string) []string {
	var patterns []*regexp.Regexp
	for i := 0; i < len(pairs); i += 2 {
		patterns = append(patterns, regexp.MustCompile("^"+pairs[i]+"$"))
	}
	return func(name string) []string {
		for i, p := range patterns {
			if p.MatchString(name) {
				return strings.Split(p.ReplaceAllString(name, pairs[2*i+1]), "|")
			}
		}
		return []string{name}
	}
}

// TestDropoutOfModels trains with dropout, which evaluation leaves out.
func TestDropoutOfModels(t *testing.T) {
	tokens := ints([]int{2, 3}, 0, 1, 1, 0, 1, 1)
	for name, c := range map[string]struct {
		model func(rate float64) fsdp.Model
		batch []fsdp.Tensor
	}{
		"BERT": {func(rate float64) fsdp.Model { m := bert(); m.Dropout = rate; return m }, []fsdp.Tensor{tokens, tokens, tokens, tokens}},
		"ViT":  {func(rate float64) fsdp.Model { m := vit(); m.Dropout = rate; return m }, []fsdp.Tensor{floats(1, 3, 6, 9), ints([]int{1}, 0)}},
		"T5":   {func(rate float64) fsdp.Model { m := t5(); m.Dropout = rate; return m }, []fsdp.Tensor{tokens, tokens, tokens, tokens}},
	} {
		with, without := wrap(t, c.model(0.3)), wrap(t, c.model(0))
		want := eval(t, without, c.batch...)[0]
		require.Equal(t, want, eval(t, with, c.batch...)[0], name)
		first, err := with.Forward(t.Context(), c.batch...)
		require.NoError(t, err)
		require.NoError(t, with.Backward(t.Context()))
		second, err := with.Forward(t.Context(), c.batch...)
		require.NoError(t, err)
		require.NotEqual(t, want, first, name)
		require.NotEqual(t, first, second, "%s draws other masks in another pass", name)
	}
}
