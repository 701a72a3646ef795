package nn_test

import (
	"context"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// vocab and length are the sizes of the documents of the tests, and of the rows that they share.
const vocab, length = 19, 12

// documents returns some documents of 2 to 9 tokens.
func documents() data.Source[[]int] {
	r := rand.New(rand.NewPCG(1, 2))
	list := make([][]int, 70)
	for i := range list {
		list[i] = make([]int, 2+r.IntN(8))
		for k := range list[i] {
			list[i][k] = r.IntN(vocab)
		}
	}
	return data.Of(list)
}

// alone returns the documents as rows of their own.
func alone() data.Source[data.Packed[int]] {
	return data.Map(documents(), func(d []int) (data.Packed[int], error) { return data.Packed[int]{Elements: d, Starts: []int{0}}, nil })
}

// together returns the documents packed into rows of a length.
func together(length int) data.Source[data.Packed[int]] {
	d := documents()
	return data.PackWhole(d, data.Measure(d, func(d []int) int { return len(d) }), length)
}

// A packing is a model of one document a row, the same model of packed rows, and their batches.
type packing struct {
	alone, packed fsdp.Model
	length        int // of a packed row
	collate       func(packed bool) data.Collate[data.Packed[int]]
	targets       int // index of the targets in a batch
}

// written collates rows of a language model.
func written(packed bool) data.Collate[data.Packed[int]] {
	if packed {
		return data.TokensAndPositions[int](length)
	}
	return func(b *data.Batch, rows []data.Packed[int]) error {
		windows := make([][]int, len(rows))
		for i, p := range rows {
			windows[i] = p.Elements
		}
		return data.TokensAndTargets[int](length)(b, windows)
	}
}

// masked collates rows of a BERT, which have kinds or not.
func masked(kinds bool) func(packed bool) data.Collate[data.Packed[int]] {
	return func(packed bool) data.Collate[data.Packed[int]] {
		return func(b *data.Batch, rows []data.Packed[int]) error {
			pad := func(fill int, f func(token int) int) error {
				_, err := data.Pad(b, rows, func(p data.Packed[int]) (v []int) {
					for _, token := range p.Elements {
						v = append(v, f(token))
					}
					return v
				}, data.Widths(length), fill)
				return err
			}
			err := pad(0, func(token int) int { return token })
			if kinds && err == nil {
				err = pad(0, func(token int) int { return token % 2 })
			}
			data.Mask[int](b, rows, func(p data.Packed[int]) int { return len(p.Elements) }, length)
			if err == nil {
				err = pad(nn.IgnoreTarget, func(token int) int {
					if token%3 == 0 {
						return token
					}
					return nn.IgnoreTarget
				})
			}
			if packed && err == nil {
				_, err = data.Pad(b, rows, data.Packed[int].Positions, data.Widths(length), 0)
			}
			return err
		}
	}
}

// packings are models of packed rows. Rows may be longer than a learned context.
func packings() map[string]packing {
	gpt := nn.GPT{Vocab: vocab, Context: 9, Layers: 2, Dim: 8, Heads: 2}
	llama := nn.Llama{Vocab: vocab, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, Hidden: 12, Context: 5}
	window := nn.Llama{Vocab: vocab, Layers: 2, Dim: 8, Heads: 2, KVHeads: 1, Hidden: 12, Window: 3, QKNorm: true, FusedLoss: true, RopeScaling: op.RopeScaling{Factor: 2}}
	gemma := nn.Llama{Vocab: vocab, Layers: 2, Dim: 8, Heads: 2, KVHeads: 1, Hidden: 12, Window: 3, FullEvery: 2, LocalRopeBase: 100, Gemma: true, QKNorm: true, Tied: true}
	bert := nn.BERT{Vocab: vocab, Context: 12, Layers: 2, Dim: 8, Heads: 2, Hidden: 12}
	roberta := nn.BERT{Vocab: vocab, Context: 12, Kinds: -1, FirstPosition: 2, Layers: 1, Dim: 8, Heads: 2, Hidden: 12}
	tokens := nn.BERT{Vocab: vocab, Context: 12, Layers: 1, Dim: 8, Heads: 2, Hidden: 12, Task: nn.ClassifyTokens, Classes: vocab}
	ofGPT := func(m nn.GPT, packed bool) fsdp.Model { m.Packed = packed; return &m }
	ofLlama := func(m nn.Llama, packed bool) fsdp.Model { m.Packed = packed; return &m }
	ofBERT := func(m nn.BERT, packed bool) fsdp.Model { m.Packed = packed; return &m }
	gpt12 := gpt
	gpt12.Context = length // for rows with padding
	return map[string]packing{
		"GPT":             {ofGPT(gpt12, false), ofGPT(gpt12, true), length + 1, written, 1},
		"Llama":           {ofLlama(llama, false), ofLlama(llama, true), length + 1, written, 1},
		"Llama, a window": {ofLlama(window, false), ofLlama(window, true), length + 1, written, 1},
		"Gemma":           {ofLlama(gemma, false), ofLlama(gemma, true), length + 1, written, 1},
		"BERT":            {ofBERT(bert, false), ofBERT(bert, true), length, masked(true), 3},
		"RoBERTa":         {ofBERT(roberta, false), ofBERT(roberta, true), length, masked(false), 2},
		"BERT of classes": {ofBERT(tokens, false), ofBERT(tokens, true), length, masked(true), 3},
	}
}

// counted returns the number of targets that count.
func counted(targets fsdp.Tensor) (n int) {
	for _, t := range targets.Data().([]int) {
		if t != nn.IgnoreTarget {
			n++
		}
	}
	return n
}

// step returns the sum of the losses of all targets of rows, and the gradients of their mean, on a
// number of ranks that take a number of micro batches each.
func step[T any](t *testing.T, m fsdp.Model, state map[string]*tensor.Dense, rows data.Source[T], collate data.Collate[T],
	targets, ranks, micro int) (loss float64, grads map[string]*tensor.Dense) {
	require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
		s, err := fsdp.Wrap(m, fsdp.Config{Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64}, WrapPolicy: fsdp.WrapEach(), Poison: true})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.LoadStateDict(ctx, 0, state); err != nil {
			return err
		}
		per := ranks * micro
		loader, err := data.NewLoader(rows, collate, data.Config{Group: g, Batch: rows.Len(), Micro: (rows.Len() + per - 1) / per})
		if err != nil {
			return err
		}
		sum := []float64{0}
		for batch, err := range loader.Batches(ctx) {
			if err != nil {
				return err
			}
			mean, err := s.Forward(ctx, batch...)
			if err != nil {
				return err
			}
			sum[0] += mean * float64(counted(batch[targets]))
			if err := s.Backward(ctx, loader.Share()); err != nil {
				return err
			}
		}
		if err := g.AllReduce(comm.Of(sum), comm.Sum).Wait(ctx); err != nil {
			return err
		}
		all, err := s.FullGrads(ctx)
		if g.Rank() == 0 {
			loss, grads = sum[0], all
		}
		return err
	}))
	return loss, grads
}

// TestPackedRows trains on documents that share rows, and on the same documents with a row for
// each. Losses and gradients are equal to 1e-10, on one to four ranks with one to four micro
// batches.
func TestPackedRows(t *testing.T) {
	for name, p := range packings() {
		t.Run(name, func(t *testing.T) {
			state, err := wrap(t, p.alone).StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			want, grads := step(t, p.alone, state, alone(), p.collate(false), p.targets, 1, 1)
			for ranks := 1; ranks <= 4; ranks++ {
				for _, micro := range []int{1, 2, 4} {
					loss, got := step(t, p.packed, maps.Clone(state), together(p.length), p.collate(true), p.targets, ranks, micro)
					require.InEpsilon(t, want, loss, 1e-10)
					for name, g := range grads {
						require.InDeltaSlice(t, g.Float64s(), got[name].Float64s(), 1e-10, "%s, %d ranks, %d micro batches", name, ranks, micro)
					}
				}
			}
		})
	}
}

// TestPackedAnswers trains on conversations that share rows, and on the same conversations with a
// row for each. Only some of their tokens are targets. Losses and gradients are equal to 1e-10, on
// one to four ranks with one and two micro batches.
func TestPackedAnswers(t *testing.T) {
	chats := data.Map(documents(), func(d []int) (data.Labeled, error) {
		l := data.Labeled{Tokens: d, Target: make([]bool, len(d))}
		for k := range d {
			l.Target[k] = (d[0]+k)%3 > 0 // also for first tokens, which are no targets
		}
		return l, nil
	})
	lengths := data.Measure(chats, func(l data.Labeled) int { return len(l.Tokens) })
	for name, m := range map[string]struct{ alone, packed fsdp.Model }{
		"GPT": {&nn.GPT{Vocab: vocab, Context: length, Layers: 2, Dim: 8, Heads: 2}, &nn.GPT{Vocab: vocab, Context: length, Layers: 2, Dim: 8, Heads: 2, Packed: true}},
		"Llama": {
			&nn.Llama{Vocab: vocab, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, Hidden: 12, Window: 5},
			&nn.Llama{Vocab: vocab, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, Hidden: 12, Window: 5, Packed: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			state, err := wrap(t, m.alone).StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			want, grads := step(t, m.alone, maps.Clone(state), chats, data.TokensAndLabels(data.Widths(length)), 1, 1, 1)
			rows := data.Shuffle(data.PackLabeled(chats, lengths, length+1), 3, 1)
			for ranks := 1; ranks <= 4; ranks++ {
				for _, micro := range []int{1, 2} {
					loss, got := step(t, m.packed, maps.Clone(state), rows, data.TokensAndPositions[int](length), 1, ranks, micro)
					require.InEpsilon(t, want, loss, 1e-10)
					for name, g := range grads {
						require.InDeltaSlice(t, g.Float64s(), got[name].Float64s(), 1e-10, "%s, %d ranks, %d micro batches", name, ranks, micro)
					}
				}
			}
		})
	}
}

// TestPackedPrecisions trains on packed rows in float32 and bfloat16, within their roundings of
// float64, and by two and four threads, with the bits of one.
func TestPackedPrecisions(t *testing.T) {
	for name, p := range packings() {
		t.Run(name, func(t *testing.T) {
			loader, err := data.NewLoader(together(p.length), p.collate(true), data.Config{Batch: 8})
			require.NoError(t, err)
			next, stop := iter.Pull2(loader.Batches(t.Context()))
			batch, err, _ := next()
			stop()
			require.NoError(t, err)
			state, err := wrap(t, p.packed).StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			run := func(precision fsdp.Precision, threads int) (loss float64, grads map[string]*tensor.Dense) {
				s, err := fsdp.Wrap(p.packed, fsdp.Config{Precision: precision, Threads: threads, Poison: true})
				require.NoError(t, err)
				defer s.Close()
				params := make(map[string]*tensor.Dense)
				for name, v := range state {
					if params[name] = v; precision.Compute != fsdp.Float64 {
						params[name] = single(v)
					}
				}
				require.NoError(t, s.LoadStateDict(t.Context(), 0, params))
				loss, err = s.Forward(t.Context(), batch...)
				require.NoError(t, err)
				require.NoError(t, s.Backward(t.Context()))
				grads, err = s.FullGrads(t.Context())
				require.NoError(t, err)
				return loss, grads
			}
			exact, _ := run(fsdp.Precision{Compute: fsdp.Float64}, 1)
			for _, precision := range []fsdp.Precision{{}, fsdp.BF16()} {
				want, grads := run(precision, 1)
				require.InEpsilon(t, exact, want, map[bool]float64{false: 1e-5, true: 3e-2}[precision.Compute == fsdp.BFloat16])
				for _, threads := range []int{2, 4} {
					loss, other := run(precision, threads)
					require.Equal(t, want, loss)
					for name, g := range grads {
						require.Equal(t, g.Data(), other[name].Data(), name)
					}
				}
			}
		})
	}
}

// TestPackedMistakes refuses a batch whose positions do not count up, a document beyond the learned
// positions, and tasks on the first token of a row.
func TestPackedMistakes(t *testing.T) {
	tokens := ints([]int{1, 4}, 1, 2, 3, 4)
	gpt := wrap(t, &nn.GPT{Vocab: 5, Context: 3, Layers: 1, Dim: 4, Heads: 2, Packed: true})
	llama := wrap(t, &nn.Llama{Vocab: 5, Layers: 1, Dim: 4, Heads: 2, Hidden: 4, Context: 3, Packed: true})
	bert := nn.BERT{Vocab: 5, Context: 3, Layers: 1, Dim: 4, Heads: 2, Hidden: 4, Packed: true}
	roberta := bert
	roberta.FirstPosition = 2
	whole := ints([]int{1, 4}, 0, 1, 2, 3)
	for _, c := range []struct {
		model *fsdp.Sharded
		batch []fsdp.Tensor
		want  string
	}{
		{gpt, []fsdp.Tensor{tokens, tokens}, "the batch has 2 tensors, the model takes 3"},
		{gpt, []fsdp.Tensor{tokens, tokens, ints([]int{1, 4}, 0, 1, 0, 2)}, "token 3 of row 0 has position 2 after position 0: want 1, or 0 where a document begins"},
		{gpt, []fsdp.Tensor{tokens, tokens, whole}, "index 3 at position 3 is outside the table of 3 rows, 0 to 2: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context"},
		{llama, []fsdp.Tensor{tokens, tokens, ints([]int{1, 4}, -1, 0, 1, 2)}, "index -1 at position 0"},
		{llama, []fsdp.Tensor{tokens, tokens, ints([]int{1, 3}, 0, 1, 2)}, "rope: positions is (1, 3), want [1 4] for x (1, 4, 12)"},
		{gpt, []fsdp.Tensor{tokens, tokens, ints([]int{1, 3}, 0, 1, 2)}, "positions are (1, 3), want (1, 4)"},
		{wrap(t, &roberta), []fsdp.Tensor{tokens, ints([]int{1, 4}, 1, 1, 1, 1), ints([]int{1, 4}, 1, 1, 1, 1), tokens, whole}, "token 3 of row 0 has position 3, but the model has positions for only 3 tokens: cut the document, or raise Context"},
	} {
		_, err := c.model.Eval(t.Context(), c.batch...)
		require.ErrorContains(t, err, c.want)
	}
	_, err := llama.Eval(t.Context(), tokens, tokens, whole)
	require.NoError(t, err, "Context limits generation only, not a batch")
	for _, task := range []nn.Task{nn.ClassifySequences, nn.Encode} {
		m := bert
		m.Task, m.Classes = task, 2
		_, err := fsdp.Wrap(&m, fsdp.Config{})
		require.ErrorContains(t, err, "nn: BERT: with Packed a row has several documents, but the task makes one result of a row: use ClassifyTokens, or Encode with NoPooler")
	}
	bert.Task, bert.NoPooler = nn.Encode, true
	ones := ints([]int{1, 4}, 1, 1, 1, 1)
	_, err = wrap(t, &bert).Eval(t.Context(), tokens, ones, ones, ints([]int{1, 4}, 0, 1, 2, 0))
	require.NoError(t, err)
}

// TestPackedGenerates writes the same tokens with models of packed rows as with others.
func TestPackedGenerates(t *testing.T) {
	write := func(m fsdp.Model) [][]int {
		w, err := generate.New(wrap(t, m), m.(interface{ Cache() generate.Size }).Cache(), generate.Config{Float64: true})
		require.NoError(t, err)
		texts, err := w.Generate(t.Context(), [][]int{{1, 2, 3}, {4}}, generate.Options{MaxTokens: 5})
		require.NoError(t, err)
		return texts
	}
	gpt, llama := nn.GPT{Vocab: vocab, Context: 9, Layers: 2, Dim: 8, Heads: 2}, nn.Llama{Vocab: vocab, Layers: 2, Dim: 8, Heads: 4, KVHeads: 2, Hidden: 12}
	packedGPT, packedLlama := gpt, llama
	packedGPT.Packed, packedLlama.Packed = true, true
	require.Equal(t, write(&gpt), write(&packedGPT))
	require.Equal(t, write(&llama), write(&packedLlama))
}

// BenchmarkPackedRows trains on documents whose lengths are log-normal, with a median of 100
// tokens, a deviation of 0.8 and at most 512: packed into rows of 512, and one a row, padded to the
// longest of each batch. It reports the tokens of documents a second, and how many times as many
// are trained packed. The third rate is of packed rows whose documents see each other.
func BenchmarkPackedRows(b *testing.B) {
	const longest, each = 512, 8 // documents or rows of a pass
	r, tokens := rand.New(rand.NewPCG(1, 2)), 0
	list := make([][]int, 32)
	for i := range list {
		n := min(longest, int(100*math.Exp(0.8*r.NormFloat64())))
		list[i], tokens = slices.Repeat([]int{i}, n+1), tokens+n
	}
	source := data.Of(list)
	rows := data.PackWhole(source, data.Measure(source, func(d []int) int { return len(d) }), longest+1)
	train := func(packed bool, passes [][]fsdp.Tensor) func() float64 {
		m := &nn.GPT{Vocab: 512, Context: longest, Layers: 2, Dim: 192, Heads: 6, Packed: packed}
		s, err := fsdp.Wrap(m, fsdp.Config{})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, s.Close()) })
		return func() float64 {
			start := time.Now()
			for _, batch := range passes {
				_, err := s.Forward(b.Context(), batch...)
				require.NoError(b, err)
				require.NoError(b, s.Backward(b.Context()))
				s.ZeroGrad()
			}
			return time.Since(start).Seconds()
		}
	}
	load := func(batches iter.Seq2[[]fsdp.Tensor, error], tensors int) (passes [][]fsdp.Tensor) {
		for batch, err := range batches {
			require.NoError(b, err)
			passes = append(passes, batch[:tensors])
		}
		return passes
	}
	packed, err := data.NewLoader(rows, data.TokensAndPositions[int](longest), data.Config{Batch: each})
	require.NoError(b, err)
	padded, err := data.NewLoader(source, func(batch *data.Batch, documents [][]int) error {
		return data.TokensAndTargets[int](len(slices.MaxFunc(documents, func(d, e []int) int { return len(d) - len(e) }))-1)(batch, documents)
	}, data.Config{Batch: each})
	require.NoError(b, err)
	passes := load(packed.Batches(b.Context()), 3)
	var without [][]fsdp.Tensor
	for _, batch := range passes {
		without = append(without, batch[:2])
	}
	ways := []func() float64{train(true, passes), train(false, load(padded.Batches(b.Context()), 2)), train(false, without)}
	var seconds [3]float64
	for _, way := range ways {
		way() // compiles
	}
	for b.Loop() {
		for i, way := range ways {
			seconds[i] += way()
		}
	}
	for i, name := range []string{"packed-tokens/s", "padded-tokens/s", "mixed-tokens/s"} {
		b.ReportMetric(float64(tokens*b.N)/seconds[i], name)
	}
	b.ReportMetric(seconds[1]/seconds[0], "packed/padded")
}
