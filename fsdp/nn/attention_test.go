package nn_test

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// attentions are the forms of attention that models use, on five channels a head or fewer.
var attentions = map[string]nn.Attention{
	"plain":         {Dim: 8, Heads: 2},
	"grouped keys":  {Dim: 8, Heads: 4, KVHeads: 2, Causal: true, NoBias: true},
	"a window":      {Dim: 6, Heads: 2, KVHeads: 1, Causal: true, Window: 2},
	"both sides":    {Dim: 8, Heads: 2, Rope: true, Masked: true, Window: 2},
	"rope":          {Dim: 6, Heads: 2, HeadDim: 4, KVHeads: 1, Causal: true, Rope: true, Rotary: op.Rotary{Base: 50}, NoProjBias: true},
	"normalised":    {Dim: 6, Heads: 4, HeadDim: 2, KVHeads: 2, Causal: true, QKNorm: true, Rope: true, NoBias: true, Eps: 0.1},
	"apart, masked": {Dim: 8, Heads: 2, Apart: true, Masked: true, Rope: true},
	"biased":        {Dim: 5, Heads: 3, HeadDim: 2, Biased: true, Scale: 1, NoBias: true},
	"across":        {Dim: 6, Heads: 3, KVHeads: 1, Cross: true, Masked: true},
	"all across":    {Dim: 6, Heads: 4, HeadDim: 3, KVHeads: 2, Cross: true, Biased: true, Masked: true, QKNorm: true, Causal: true, Window: 3},
}

// The sequences have so many positions, those that keys come from more if they are others.
const sequences, queries, across = 12, 4, 6

// keysOf returns the number of positions that keys come from.
func keysOf(m nn.Attention) int {
	if m.Cross {
		return across
	}
	return queries
}

// inputsOf returns the inputs of m and targets: those of a rank, which has its share of the
// sequences.
func inputsOf(m nn.Attention, rank, ranks int) (in []fsdp.Tensor) {
	share := func(whole *tensor.Dense) *tensor.Dense {
		part, err := whole.Slice(tensor.S(rank*sequences/ranks, (rank+1)*sequences/ranks))
		if err != nil {
			panic(err)
		}
		return part.Materialize().(*tensor.Dense)
	}
	remainders := func(by, n int) *tensor.Dense {
		v := make([]int, sequences*n)
		for i := range v {
			v[i] = i * i % by
		}
		return share(ints([]int{sequences, n}, v...))
	}
	in = append(in, share(floats(sequences, queries, m.Dim)))
	if m.Cross {
		in = append(in, share(floats(sequences, across, m.Dim)))
	}
	if m.Biased {
		in = append(in, floats(m.Heads, queries, keysOf(m)))
	}
	if m.Masked {
		in = append(in, remainders(4, keysOf(m)))
	}
	return append(in, remainders(3, queries))
}

// formula is attention as its comment has it.
type formula struct {
	nn.Attention
	params map[string]*tensor.Dense
	mask   []int
	bias   []float64
	keys   int
}

// rows multiplies each row of x by rows [lo, hi) of a layer's weight.
func (f *formula) rows(x []float64, name string, lo, hi int) (y [][]float64) {
	w, bias := f.params["m."+name+".weight"], f.params["m."+name+".bias"]
	in := w.Shape()[1]
	for ; len(x) > 0; x = x[in:] {
		row := make([]float64, hi-lo)
		for o := range row {
			for c := range in {
				row[o] += x[c] * w.Float64s()[(lo+o)*in+c]
			}
			if bias != nil {
				row[o] += bias.Float64s()[lo+o]
			}
		}
		y = append(y, row)
	}
	return y
}

// heads returns the rows of queries, keys or values, which begin at a row of the joined layer.
func (f *formula) heads(x []float64, name string, at, n int) [][]float64 {
	d := cmp.Or(f.HeadDim, f.Dim/f.Heads)
	if _, joined := f.params["m.qkv.weight"]; joined {
		return f.rows(x, "qkv", at*d, (at+n)*d)
	}
	y := f.rows(x, name, 0, n*d)
	if f.QKNorm && name != "v" {
		gain := f.params["m."+name+"_norm.weight"].Float64s()
		for i := range y {
			for h := 0; h < n*d; h += d {
				normalise(y[i][h:h+d], gain, cmp.Or(f.Eps, 1e-6))
			}
		}
	}
	return y
}

func normalise(x, gain []float64, eps float64) {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	for c := range x {
		x[c] *= gain[c] / math.Sqrt(sum/float64(len(x))+eps)
	}
}

// turned returns a head of d columns at a position, turned if Rope says so.
func (f *formula) turned(x []float64, position int) []float64 {
	if !f.Rope {
		return x
	}
	y, half := make([]float64, len(x)), len(x)/2
	for i := range half {
		sin, cos := math.Sincos(float64(position) * math.Pow(cmp.Or(f.Rotary.Base, 10000), -float64(i)/float64(half)))
		y[i], y[i+half] = x[i]*cos-x[i+half]*sin, x[i]*sin+x[i+half]*cos
	}
	return y
}

// sequence returns attention of a sequence x to y.
func (f *formula) sequence(x, y []float64) []float64 {
	kv := cmp.Or(f.KVHeads, f.Heads)
	q, k, v := f.heads(x, "q", 0, f.Heads), f.heads(y, "k", f.Heads, kv), f.heads(y, "v", f.Heads+kv, kv)
	d := len(q[0]) / f.Heads
	var out []float64
	for i := range q {
		for h := range f.Heads {
			at := h / (f.Heads / kv) * d
			sums, total := make([]float64, d), 0.0
			for j := range k {
				ago := i + f.keys - queries - j
				if f.Causal && ago < 0 || f.Window > 0 && max(ago, -ago) >= f.Window || f.mask != nil && f.mask[j] == 0 {
					continue
				}
				score := 0.0
				key := f.turned(k[j][at:at+d], j)
				for c, u := range f.turned(q[i][h*d:(h+1)*d], i) {
					score += u * key[c]
				}
				score *= cmp.Or(f.Scale, 1/math.Sqrt(float64(d)))
				if f.bias != nil {
					score += f.bias[(h*queries+i)*f.keys+j]
				}
				total += math.Exp(score)
				for c := range d {
					sums[c] += math.Exp(score) * v[j][at+c]
				}
			}
			for _, s := range sums {
				out = append(out, s/total)
			}
		}
	}
	return slices.Concat(f.rows(out, "proj", 0, f.Dim)...)
}

// evaluate returns attention of the whole batch.
func (f *formula) evaluate(in []fsdp.Tensor) (out []float64) {
	values := func(t fsdp.Tensor) []float64 { return t.(*tensor.Dense).Float64s() }
	x, y, rest := values(in[0]), values(in[0]), in[1:]
	f.keys = keysOf(f.Attention)
	if f.Cross {
		y, rest = values(rest[0]), rest[1:]
	}
	if f.Biased {
		f.bias, rest = values(rest[0]), rest[1:]
	}
	for b := range sequences {
		if f.Masked {
			f.mask = rest[0].(*tensor.Dense).Ints()[b*f.keys:][:f.keys]
		}
		out = append(out, f.sequence(x[b*queries*f.Dim:][:queries*f.Dim], y[b*f.keys*f.Dim:][:f.keys*f.Dim])...)
	}
	return out
}

// TestAttentionForms compares each form with its formula, and one whose adapters are merged with
// one that has them.
func TestAttentionForms(t *testing.T) {
	for name, m := range attentions {
		t.Run(name, func(t *testing.T) {
			in := inputsOf(m, 0, 1)
			in = in[:len(in)-1]
			plain := wrap(t, calling(&m, len(in)))
			state, err := plain.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			require.InDeltaSlice(t, (&formula{Attention: m, params: state}).evaluate(in), eval(t, plain, in...), 1e-12)

			adapted := m
			adapted.LoRA = nn.LoRA{Rank: 2, Alpha: 3}
			tuned := wrap(t, calling(&adapted, len(in)))
			state, err = tuned.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			require.NoError(t, adapted.LoRA.Merge(state))
			require.NoError(t, plain.LoadStateDict(t.Context(), 0, state))
			require.InDeltaSlice(t, eval(t, tuned, in...), eval(t, plain, in...), 1e-12)
		})
	}
}

// given multiplies its input with a parameter of its shape.
type given struct{ shape []int }

func (m *given) Params() []fsdp.Param {
	return []fsdp.Param{{Name: "weight", Shape: m.shape, Init: fsdp.Normal(0.5)}}
}

func (m *given) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	w, err := b.Param("weight")
	if err != nil {
		return nil, err
	}
	y, err := gorgonia.HadamardProd(in[0], w)
	return gorgonia.Nodes{y}, err
}

// attending is a model of attention whose every input but a mask depends on parameters. Its last
// input is the targets.
func attending(m nn.Attention) model {
	return func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		args := []fsdp.Ref{t.Call("x", &nn.Linear{In: m.Dim, Out: m.Dim}, in[0])}
		if m.Cross {
			args = append(args, t.Call("y", &nn.Linear{In: m.Dim, Out: m.Dim}, in[1]))
		}
		if m.Biased {
			args = append(args, t.Call("bias", &given{[]int{m.Heads, queries, keysOf(m)}}, in[len(args)]))
		}
		if m.Masked {
			args = append(args, in[len(args)])
		}
		y := t.Call("m", &m, args...)
		return t.Call("head", &nn.Head{Dim: m.Dim, Classes: 3}, y, in[len(args)])
	}
}

// TestAttentionGradients compares those of each form, adapted, with central differences, and then
// those of ranks that share a batch with those of one rank.
func TestAttentionGradients(t *testing.T) {
	for name, m := range attentions {
		t.Run(name, func(t *testing.T) {
			m.LoRA.Rank = 1
			alone := wrap(t, attending(m))
			checkGradients(t, alone, inputsOf(m, 0, 1)...)
			state, err := alone.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			want, err := alone.FullGrads(t.Context())
			require.NoError(t, err)
			for ranks := 1; ranks <= 4; ranks++ {
				require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
					s, err := fsdp.Wrap(attending(m), fsdp.Config{
						Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64}, WrapPolicy: fsdp.WrapEach(), Poison: true,
					})
					if err != nil {
						return err
					}
					defer s.Close()
					if err := s.LoadStateDict(ctx, 0, state); err != nil {
						return err
					}
					if _, err := s.Forward(ctx, inputsOf(m, g.Rank(), ranks)...); err != nil {
						return err
					}
					if err := s.Backward(ctx); err != nil {
						return err
					}
					grads, err := s.FullGrads(ctx)
					if err != nil {
						return err
					}
					for name, w := range want {
						require.InDeltaSlice(t, w.Float64s(), grads[name].Float64s(), 1e-13, "%s on %d ranks", name, ranks)
					}
					return nil
				}))
			}
		})
	}
}

// single returns v in float32, unless it holds integers.
func single(v *tensor.Dense) *tensor.Dense {
	if v.Dtype() == tensor.Int {
		return v
	}
	s := tensor.New(tensor.WithShape(v.Shape()...), tensor.Of(tensor.Float32))
	for i, x := range v.Float64s() {
		s.Float32s()[i] = float32(x)
	}
	return s
}

// TestAttentionPrecisions computes each form in float32 and in bfloat16, within their roundings of
// float64, and by two and four threads, with the bits of one.
func TestAttentionPrecisions(t *testing.T) {
	for name, m := range attentions {
		t.Run(name, func(t *testing.T) {
			state, err := wrap(t, attending(m)).StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			run := func(compute fsdp.DType, threads int) (loss float64, grads map[string]*tensor.Dense) {
				s, err := fsdp.Wrap(attending(m), fsdp.Config{Precision: fsdp.Precision{Compute: compute}, Threads: threads, Poison: true})
				require.NoError(t, err)
				defer s.Close()
				params, batch := maps.Clone(state), inputsOf(m, 0, 1)
				if compute != fsdp.Float64 {
					for name, v := range params {
						params[name] = single(v)
					}
					for i, v := range batch {
						batch[i] = single(v.(*tensor.Dense))
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
			exact, _ := run(fsdp.Float64, 1)
			for compute, tolerance := range map[fsdp.DType]float64{fsdp.Float32: 1e-5, fsdp.BFloat16: 3e-2} {
				want, grads := run(compute, 1)
				require.InEpsilon(t, exact, want, tolerance)
				for _, threads := range []int{2, 4} {
					loss, other := run(compute, threads)
					require.Equal(t, want, loss)
					for name, g := range grads {
						require.Equal(t, g.Data(), other[name].Data(), name)
					}
				}
			}
		})
	}
}
