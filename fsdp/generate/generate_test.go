package generate_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/generate"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const vocab = 23

// model is a small language model.
type model interface {
	fsdp.Model
	Cache() generate.Size
}

var models = map[string]model{
	"gpt":    &nn.GPT{Vocab: vocab, Context: 40, Layers: 2, Dim: 16, Heads: 2},
	"fused":  &nn.GPT{Vocab: vocab, Context: 40, Layers: 1, Dim: 8, Heads: 2, Tied: true, FusedLoss: true},
	"tied":   &nn.GPT{Vocab: vocab, Context: 40, Layers: 1, Dim: 8, Heads: 1, Tied: true},
	"llama":  &nn.Llama{Vocab: vocab, Context: 40, Layers: 2, Dim: 16, Heads: 4, KVHeads: 2, Hidden: 24},
	"window": &nn.Llama{Vocab: vocab, Context: 40, Layers: 2, Dim: 16, Heads: 2, Hidden: 24, Window: 5},
	"gemma": &nn.Llama{Vocab: vocab, Context: 40, Layers: 3, Dim: 16, Heads: 2, KVHeads: 1, HeadDim: 10, Hidden: 24, QKNorm: true, Gemma: true,
		Scale: 0.2, Window: 5, FullEvery: 2, RopeBase: 1e6, LocalRopeBase: 100},
	"qwen3": &nn.Llama{Vocab: vocab, Context: 40, Layers: 1, Dim: 16, Heads: 2, KVHeads: 1, HeadDim: 10, Hidden: 24, QKNorm: true},
	"stretched": &nn.Llama{Vocab: vocab, Context: 40, Layers: 1, Dim: 8, Heads: 1, Hidden: 8, RopeBase: 100,
		RopeScaling: op.RopeScaling{Factor: 4, LowFreq: 1, HighFreq: 4, Original: 8}},
}

// wrap returns m on a rank, to be closed, with weights so large that its texts are not all the
// same.
func wrap(t *testing.T, g comm.Group, m model, c fsdp.Config) *fsdp.Sharded {
	c.Group, c.WrapPolicy, c.Seed = g, fsdp.WrapEach(), 3
	s, err := fsdp.Wrap(m, c)
	require.NoError(t, err)
	require.NoError(t, s.Summon(t.Context(), nil, func(params map[string]*tensor.Dense) error {
		for _, p := range params {
			if x, is := p.Data().([]float64); is && p.Dims() == 2 {
				for i := range x {
					x[i] *= 12
				}
			}
		}
		return nil
	}, fsdp.WriteBack(0)))
	return s
}

// prompt returns the tokens of a prompt.
func prompt(i, n int) []int {
	tokens := make([]int, n)
	for j := range tokens {
		tokens[j] = (7*i + 5*j*j + j) % vocab
	}
	return tokens
}

var doubles = fsdp.Precision{Compute: fsdp.Float64}

// next returns what a whole forward says about the token after a text: logarithms of probabilities.
func next(t *testing.T, ctx context.Context, m *fsdp.Sharded, text []int) []float64 {
	in := tensor.New(tensor.WithShape(1, len(text)), tensor.WithBacking(slices.Clone(text)))
	out, err := m.Eval(ctx, in, in)
	require.NoError(t, err)
	return last(out[1])
}

// last returns the logarithms of the probabilities at the last position.
func last(out fsdp.Tensor) []float64 {
	logits := out.Data().([]float64)
	logits = logits[len(logits)-vocab:]
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(l)
	}
	for i := range logits {
		logits[i] -= math.Log(sum)
	}
	return logits
}

// TestGreedyEqualsForward: a cache, with prompts of all lengths in one batch, leads to the likeliest
// tokens of whole forwards. One rank writes them, and three ranks with different numbers of prompts.
func TestGreedyEqualsForward(t *testing.T) {
	const most = 12
	prompts := [][]int{prompt(1, 1), prompt(2, 17), prompt(3, 5), prompt(4, 38), prompt(5, 16), prompt(6, 2)}
	for name, gpt := range models {
		t.Run(name, func(t *testing.T) {
			var want [][]int
			stop := 0
			require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
				m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
				defer m.Close()
				seen := make(map[int]int)
				for _, p := range prompts {
					text := slices.Clone(p)
					for len(text) < min(len(p)+most, 40) {
						l := next(t, ctx, m, text)
						text = append(text, slices.Index(l, slices.Max(l)))
						seen[text[len(text)-1]]++
					}
					want = append(want, text[len(p):])
				}
				require.Greater(t, len(seen), 2, "texts that differ")
				stop = want[1][3]
				return nil
			}))
			stopped := make([][]int, len(want))
			for i, text := range want {
				stopped[i] = slices.Clone(text)
				if at := slices.Index(text, stop); at >= 0 {
					stopped[i] = text[:at]
				}
			}
			for _, ranks := range []int{1, 3} {
				require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
					m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
					defer m.Close()
					w, err := generate.New(m, gpt.Cache(), generate.Config{Batch: 4, Chunk: 8, Float64: true})
					require.NoError(t, err)
					mine := prompts[:[]int{len(prompts), 3, 0}[g.Rank()]]
					got, err := w.Generate(ctx, mine, generate.Options{MaxTokens: most})
					require.NoError(t, err)
					require.Equal(t, want[:len(mine)], got)
					got, err = w.Generate(ctx, mine, generate.Options{MaxTokens: most, Stop: []int{stop}})
					require.NoError(t, err)
					for i := range mine {
						require.Equal(t, stopped[i], append([]int{}, got[i]...))
					}
					return nil
				}))
			}
		})
	}
}

// hypothesis is a text of a beam search.
type hypothesis struct {
	text  []int
	score float64
}

// likeliest sorts hypotheses, the best first.
func likeliest(list []hypothesis) []hypothesis {
	slices.SortStableFunc(list, func(a, b hypothesis) int { return cmp.Compare(b.score, a.score) })
	return list
}

// searched is beam search by whole forwards.
func searched(next func(text []int) []float64, prompt []int, o generate.Options) []int {
	beams, ended := []hypothesis{{text: prompt}}, []hypothesis(nil)
	worth := func(score float64, length int) float64 {
		return score / math.Pow(float64(length), cmp.Or(o.LengthPenalty, 1))
	}
	for step := 1; ; step++ {
		var all []hypothesis
		for _, b := range beams {
			for token, p := range next(b.text) {
				all = append(all, hypothesis{append(slices.Clone(b.text), token), b.score + p})
			}
		}
		all = likeliest(all)[:min(len(all), max(2, 1+len(o.Stop))*o.Beams)]
		beams = nil
		for rank, h := range all {
			switch end := slices.Contains(o.Stop, h.text[len(h.text)-1]); {
			case end && rank < o.Beams:
				ended = append(ended, hypothesis{h.text[:len(h.text)-1], worth(h.score, step)})
			case !end && len(beams) < o.Beams:
				beams = append(beams, h)
			}
		}
		if step == o.MaxTokens {
			for _, h := range beams {
				ended = append(ended, hypothesis{h.text, worth(h.score, step)})
			}
			return likeliest(ended)[0].text[len(prompt):]
		}
		if ended = likeliest(ended); len(ended) >= o.Beams && worth(beams[0].score, step) <= ended[o.Beams-1].score {
			return ended[0].text[len(prompt):]
		}
	}
}

// TestBeamsEqualForward compares beam search with one by whole forwards, on one rank and on two.
func TestBeamsEqualForward(t *testing.T) {
	prompts := [][]int{prompt(1, 3), prompt(2, 11), prompt(3, 6), prompt(4, 1), prompt(7, 7), prompt(5, 2), prompt(6, 9), prompt(8, 4)}
	for _, o := range []generate.Options{
		{MaxTokens: 9, Beams: 3, Stop: []int{1, 5, 9, 13, 17}},
		{MaxTokens: 6, Beams: 2, Stop: []int{2, 3}, LengthPenalty: 2},
		{MaxTokens: 5, Beams: 4},
		{MaxTokens: 10, Beams: 2, Stop: prompt(0, 9), LengthPenalty: 0.5},
		{MaxTokens: 10, Beams: 3, Stop: prompt(1, 7), LengthPenalty: 3},
		{MaxTokens: 10, Beams: 2, Stop: prompt(2, 12), LengthPenalty: 1.2},
	} {
		gpt := models["llama"]
		var want [][]int
		require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
			m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
			defer m.Close()
			for _, p := range prompts {
				want = append(want, searched(func(text []int) []float64 { return next(t, ctx, m, text) }, p, o))
			}
			return nil
		}))
		for _, ranks := range []int{1, 2} {
			require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
				m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
				defer m.Close()
				w, err := generate.New(m, gpt.Cache(), generate.Config{Float64: true})
				require.NoError(t, err)
				mine := prompts[g.Rank():]
				got, err := w.Generate(ctx, mine, o)
				require.NoError(t, err)
				for i := range mine {
					require.Equal(t, want[g.Rank()+i], append([]int{}, got[i]...), "prompt %d of rank %d, %+v", i, g.Rank(), o)
				}
				return nil
			}))
		}
	}
}

// TestEncoderEqualsForward writes after what an encoder has read, prompts of all lengths in one
// batch, and compares with whole forwards: greedily and by beams, on one rank and on two.
func TestEncoderEqualsForward(t *testing.T) {
	prompts := [][]int{prompt(1, 3), prompt(2, 21), prompt(3, 6), prompt(4, 1), prompt(7, 16)}
	for name, t5 := range map[string]*nn.T5{
		"1.0": {Vocab: vocab, Encoder: 2, Decoder: 2, Dim: 16, Heads: 2, Hidden: 24, Act: nn.ReLU, Tied: true, Context: 40, Buckets: 8, MaxDistance: 20},
		"1.1": {Vocab: vocab, Encoder: 1, Decoder: 2, Dim: 16, Heads: 2, HeadDim: 6, Hidden: 24, Act: nn.GELUTanh, Gated: true, Dropout: 0.1},
	} {
		for _, o := range []generate.Options{
			{MaxTokens: 20, Start: []int{0}, Beams: 1, Stop: []int{}},
			{MaxTokens: 8, Start: []int{4, 7, 1}, Beams: 3, Stop: []int{3, 12}, LengthPenalty: 2},
		} {
			t.Run(fmt.Sprint(name, " beams ", o.Beams), func(t *testing.T) {
				var want [][]int
				require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
					m := wrap(t, g, t5, fsdp.Config{Precision: doubles})
					defer m.Close()
					for _, p := range prompts {
						want = append(want, searched(func(text []int) []float64 {
							shape := tensor.WithShape(1, len(p))
							source, mask := tensor.New(shape, tensor.WithBacking(slices.Clone(p))), tensor.New(shape, tensor.WithBacking(ones(len(p))))
							so := tensor.New(tensor.WithShape(1, len(text)), tensor.WithBacking(slices.Clone(text)))
							out, err := m.Eval(ctx, source, mask, so, so)
							require.NoError(t, err)
							return last(out[1])
						}, o.Start, o))
					}
					return nil
				}))
				require.Greater(t, len(slices.CompactFunc(slices.SortedFunc(slices.Values(want), slices.Compare), slices.Equal)), 2, "texts that differ")
				for _, ranks := range []int{1, 2} {
					require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
						m := wrap(t, g, t5, fsdp.Config{Precision: doubles})
						defer m.Close()
						w, err := generate.New(m, t5.Cache(), generate.Config{Float64: true})
						require.NoError(t, err)
						mine := prompts[2*g.Rank():]
						got, err := w.Generate(ctx, mine, o)
						require.NoError(t, err)
						for i := range mine {
							require.Equal(t, want[2*g.Rank()+i], append([]int{}, got[i]...), "prompt %d of rank %d", i, g.Rank())
						}
						return nil
					}))
				}
			})
		}
	}
}

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

// TestSamplesDoNotDependOnTheBatch: what is drawn for a prompt depends on its index and the seed.
func TestSamplesDoNotDependOnTheBatch(t *testing.T) {
	gpt := models["gpt"]
	prompts := [][]int{prompt(1, 3), prompt(2, 11), prompt(3, 6)}
	require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
		m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
		defer m.Close()
		write := func(batch int, o generate.Options) [][]int {
			w, err := generate.New(m, gpt.Cache(), generate.Config{Float64: true, Batch: batch})
			require.NoError(t, err)
			got, err := w.Generate(ctx, prompts, o)
			require.NoError(t, err)
			return got
		}
		o := generate.Options{MaxTokens: 10, Temperature: 2, Seed: 5}
		want := write(8, o)
		require.Equal(t, want, write(1, o))
		require.Equal(t, want, write(2, o))
		o.TopP, o.TopK = 0.9, 20
		require.NotEqual(t, want, write(8, o))
		o.Temperature = 0
		greedy := write(8, o)
		o.Temperature, o.TopK = 1, 1
		require.Equal(t, greedy, write(8, o))
		return nil
	}))
}

// TestStreamEnds breaks off on one rank while the other goes on.
func TestStreamEnds(t *testing.T) {
	gpt := models["gpt"]
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
		defer m.Close()
		w, err := generate.New(m, gpt.Cache(), generate.Config{Float64: true})
		require.NoError(t, err)
		n := 0
		for token, err := range w.Stream(ctx, [][]int{prompt(1, 3), prompt(2, 4)}, generate.Options{MaxTokens: 7}) {
			require.NoError(t, err)
			require.Less(t, token.Token, vocab)
			if n++; g.Rank() == 0 && n == 3 {
				break
			}
		}
		require.Equal(t, []int{3, 14}[g.Rank()], n)
		got, err := w.Generate(ctx, nil, generate.Options{MaxTokens: 1})
		require.NoError(t, err)
		require.Empty(t, got)
		return nil
	}))
}

// TestPrecisions writes with models in float32 and bfloat16, and inside an iteration of Join in
// which a rank has nothing.
func TestPrecisions(t *testing.T) {
	gpt := models["llama"]
	for _, p := range []fsdp.Precision{{}, fsdp.BF16()} {
		require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
			m, err := fsdp.Wrap(gpt, fsdp.Config{Group: g, Precision: p})
			require.NoError(t, err)
			defer m.Close()
			w, err := generate.New(m, gpt.Cache(), generate.Config{})
			require.NoError(t, err)
			batches := [][]fsdp.Tensor{{}, {}}[:2-g.Rank()]
			iterations := 0
			for _, err := range m.Join(ctx, fsdp.Batches(batches...)) {
				require.NoError(t, err)
				got, err := w.Generate(ctx, [][]int{prompt(1, 3)}, generate.Options{MaxTokens: 4})
				require.NoError(t, err)
				if iterations++; iterations <= len(batches) {
					require.Len(t, got[0], 4)
				}
			}
			require.Equal(t, 2, iterations)
			return nil
		}))
	}
}

// TestErrors checks what is refused, on all ranks though one of them is wrong.
func TestErrors(t *testing.T) {
	gpt := models["gpt"]
	for want, o := range map[string]generate.Options{
		"MaxTokens is 0, want 1 or more":                                                 {},
		"Temperature is NaN, want 0 or more":                                             {MaxTokens: 1, Temperature: math.NaN()},
		"TopK is -1, want 0 or more":                                                     {MaxTokens: 1, TopK: -1},
		"TopP is 1.5, want 0 to 1":                                                       {MaxTokens: 1, TopP: 1.5},
		"Beams is -2, want 0 or more":                                                    {MaxTokens: 1, Beams: -2},
		"LengthPenalty is -1, want 0 or more":                                            {MaxTokens: 1, LengthPenalty: -1},
		"beam search does not sample: Temperature must be 0":                             {MaxTokens: 1, Beams: 2, Temperature: 1},
		"9 beams do not fit into passes of 8 rows, see Config.Batch":                     {MaxTokens: 1, Beams: 9},
		"Start has 1 tokens, want 1 to 39 for a model with an encoder, and 0 for others": {MaxTokens: 1, Start: []int{1}},
		"prompt 1 has 0 tokens, want 1 to 39":                                            {MaxTokens: 1},
	} {
		require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
			m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
			defer m.Close()
			w, err := generate.New(m, gpt.Cache(), generate.Config{Float64: true})
			require.NoError(t, err)
			mine := generate.Options{MaxTokens: 1}
			if g.Rank() == 1 {
				mine = o
			}
			prompts := [][]int{{1}, {2}}
			if g.Rank() == 1 && strings.HasPrefix(want, "prompt 1") {
				prompts[1] = nil
			}
			_, err = w.Generate(ctx, prompts, mine)
			require.ErrorContains(t, err, want)
			return nil
		}))
	}
	_, err := generate.New(nil, gpt.Cache(), generate.Config{})
	require.ErrorContains(t, err, "the model is nil")
}

// TestCut writes texts that end with the context, before MaxTokens: a warning, but not if MaxTokens
// asks for all that there is room for, and not of texts that end otherwise.
func TestCut(t *testing.T) {
	log, before := new(bytes.Buffer), slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	defer slog.SetDefault(before)
	gpt := models["gpt"]
	m := wrap(t, comm.Local(1)[0], gpt, fsdp.Config{})
	defer m.Close()
	w, err := generate.New(m, gpt.Cache(), generate.Config{})
	require.NoError(t, err)
	prompts := [][]int{prompt(1, 35), prompt(2, 32), prompt(3, 30)}
	for _, o := range []generate.Options{{MaxTokens: 8}, {MaxTokens: 8, Beams: 2}} {
		log.Reset()
		texts, err := w.Generate(t.Context(), prompts, o)
		require.NoError(t, err)
		require.Len(t, texts[0], 5)
		require.Contains(t, log.String(), "texts=1 of=3 context=40 \"longest prompt\"=35 MaxTokens=8")
	}
	log.Reset()
	_, err = w.Generate(t.Context(), prompts, generate.Options{MaxTokens: 40})
	require.NoError(t, err)
	texts, err := w.Generate(t.Context(), prompts[:1], generate.Options{MaxTokens: 4})
	require.NoError(t, err)
	_, err = w.Generate(t.Context(), prompts[:1], generate.Options{MaxTokens: 8, Stop: texts[0][3:]})
	require.NoError(t, err)
	require.Empty(t, log.String())
}

// TestErrorTexts: errors name the fault, the prompt and the rank, and mention no calls that the
// caller has not made.
func TestErrorTexts(t *testing.T) {
	gpt := models["gpt"]
	errs := make([]error, 2)
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
		defer m.Close()
		w, err := generate.New(m, gpt.Cache(), generate.Config{Float64: true})
		require.NoError(t, err)
		_, errs[g.Rank()] = w.Generate(ctx, [][]int{{1}, {2, vocab * g.Rank()}}, generate.Options{MaxTokens: 1})
		return nil
	}))
	require.EqualError(t, errs[0], fmt.Sprintf("generate: rank 0: rank 1: prompt 1: token 1 is %d, want 0 to %d", vocab, vocab-1))
	require.EqualError(t, errs[1], fmt.Sprintf("generate: rank 1: prompt 1: token 1 is %d, want 0 to %d", vocab, vocab-1))

	m := wrap(t, comm.Local(1)[0], gpt, fsdp.Config{Precision: doubles})
	size := gpt.Cache()
	size.Vocab = 0
	w, err := generate.New(m, size, generate.Config{Float64: true})
	require.NoError(t, err)
	_, err = w.Generate(t.Context(), [][]int{{vocab}}, generate.Options{MaxTokens: 1})
	require.EqualError(t, err, fmt.Sprintf("generate: rank 0: batch tensor 0: call wte: embedding: index %d at position 0 is outside the table of %[1]d rows, 0 to %d: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context", vocab, vocab-1))
	require.NoError(t, m.Close())
	ctx, cancel := context.WithCancel(t.Context())
	m = wrap(t, comm.Local(1)[0], gpt, fsdp.Config{Precision: doubles})
	w, err = generate.New(m, gpt.Cache(), generate.Config{Float64: true})
	require.NoError(t, err)
	cancel()
	_, err = w.Generate(ctx, [][]int{{1}}, generate.Options{MaxTokens: 1})
	require.EqualError(t, err, "generate: rank 0: context canceled")
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, m.Close())
	w, err = generate.New(wrap(t, comm.Local(1)[0], &nn.Llama{Vocab: 9, Layers: 1, Dim: 4, Heads: 2, Hidden: 5}, fsdp.Config{Precision: doubles}),
		generate.Size{Layers: 1, Width: 4, Context: 8, Encoder: true}, generate.Config{Float64: true})
	require.NoError(t, err)
	_, err = w.Generate(t.Context(), [][]int{{1}}, generate.Options{MaxTokens: 1, Start: []int{0}})
	require.EqualError(t, err, `generate: rank 0: the model has no program "encode": its programs are ["decode"]`)
}

// TestMaxTokens: any number of tokens ends where the context does.
func TestMaxTokens(t *testing.T) {
	gpt := models["tied"]
	require.NoError(t, comm.Run(t.Context(), 1, func(ctx context.Context, g comm.Group) error {
		m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
		defer m.Close()
		w, err := generate.New(m, gpt.Cache(), generate.Config{Float64: true})
		require.NoError(t, err)
		for _, o := range []generate.Options{{MaxTokens: math.MaxInt}, {MaxTokens: math.MaxInt, Beams: 2}} {
			got, err := w.Generate(ctx, [][]int{prompt(1, 31)}, o)
			require.NoError(t, err)
			require.Len(t, got[0], 40-31)
		}
		return nil
	}))
}

// TestNoProbabilities: a model whose logits are no numbers writes nothing, on no rank.
func TestNoProbabilities(t *testing.T) {
	gpt := models["gpt"]
	for value, want := range map[float64]string{
		math.NaN():  "rank 0: prompt 0: token 3: the logit of token 0 is NaN",
		math.Inf(1): "rank 0: prompt 0: token 3: the logit of",
	} {
		for _, o := range []generate.Options{{}, {Temperature: 1}, {Beams: 2}} {
			o.MaxTokens = 2
			require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
				m := wrap(t, g, gpt, fsdp.Config{Precision: doubles})
				defer m.Close()
				for _, p := range m.Params() {
					if p.Name == "head.weight" {
						for i := range p.Value.(optim.Host).F64 {
							p.Value.(optim.Host).F64[i] = value
						}
					}
				}
				w, err := generate.New(m, gpt.Cache(), generate.Config{Float64: true})
				require.NoError(t, err)
				_, err = w.Generate(ctx, [][]int{prompt(1, 3)}[:1-g.Rank()], o)
				require.ErrorContains(t, err, want)
				return nil
			}))
		}
	}
}

// longer is a GPT with a Forward of its own.
type longer struct{ *nn.GPT }

func (m longer) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	x := t.Call("words", &nn.Embedding{Rows: m.Vocab, Dim: m.Dim}, in[0])
	return []fsdp.Ref{t.Call("head", &nn.Head{Dim: m.Dim, Classes: m.Vocab}, x, in[1])}, nil
}

// TestEmbeddedModel: Wrap says what a model lacks whose programs are not those of its Forward.
func TestEmbeddedModel(t *testing.T) {
	_, err := fsdp.Wrap(longer{models["gpt"].(*nn.GPT)}, fsdp.Config{})
	require.EqualError(t, err, `fsdp: rank 0: program "decode": call "wte": the model's Forward has no call of this name; a model that embeds `+
		`one with Programs, but has its own Forward, needs its own method Programs, which may return nil`)
}
