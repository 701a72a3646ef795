package nn_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// TestBlockIsItsParts compares a block with its parts called one by one, as its comment has it.
func TestBlockIsItsParts(t *testing.T) {
	x := floats(2, 3, 8)
	for _, block := range []nn.Block{
		{Dim: 8, Heads: 2}, {Dim: 8, Heads: 4, Full: true, Act: nn.ReLU}, {Dim: 8, Heads: 1, Hidden: 3, NoBias: true, Act: nn.GELUTanh, Eps: 0.1},
	} {
		hidden := block.Hidden
		if hidden == 0 {
			hidden = 32
		}
		parts := model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
			attention := &nn.Attention{Dim: 8, Heads: block.Heads, Causal: !block.Full, NoBias: block.NoBias}
			mlp := &nn.MLP{Dim: 8, Hidden: hidden, Act: block.Act, NoBias: block.NoBias}
			x := in[0]
			x = t.Call("add1", &nn.Add{}, x, t.Call("attn", attention, t.Call("ln1", &nn.LayerNorm{Dim: 8, Eps: block.Eps}, x)))
			return t.Call("add2", &nn.Add{}, x, t.Call("mlp", mlp, t.Call("ln2", &nn.LayerNorm{Dim: 8, Eps: block.Eps}, x)))
		})
		whole, split := wrap(t, calling(&block, 1)), wrap(t, parts)
		state, err := whole.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		for _, p := range split.Params() {
			name := strings.TrimPrefix(strings.TrimPrefix(p.Name, "attn."), "mlp.")
			require.Contains(t, state, "m."+name)
			require.NoError(t, p.Value.Write(optim.Host{F64: state["m."+name].Float64s()[p.Offset:]}))
		}
		require.InDeltaSlice(t, eval(t, split, x), eval(t, whole, x), 1e-12)
	}
}

// TestActivations pass numbers through an MLP whose matrices are the identity.
func TestActivations(t *testing.T) {
	for act, f := range map[nn.Activation]func(float64) float64{
		nn.GELU:     func(x float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) },
		nn.GELUTanh: func(x float64) float64 { return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))) },
		nn.ReLU:     func(x float64) float64 { return math.Max(x, 0) },
		nn.SiLU:     func(x float64) float64 { return x / (1 + math.Exp(-x)) },
		nn.Tanh:     math.Tanh,
		nn.Sigmoid:  func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	} {
		s := wrap(t, calling(&nn.MLP{Dim: 2, Hidden: 2, Act: act, NoBias: true}, 1))
		set(t, s, "m.fc.weight", 1, 0, 0, 1)
		set(t, s, "m.out.weight", 1, 0, 0, 1)
		x := floats(3, 2)
		for i, y := range eval(t, s, x) {
			require.InDelta(t, f(x.Float64s()[i]), y, 1e-12)
		}
		alone := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
			return t.Call("a", &nn.Pointwise{Act: act}, t.Call("m", &nn.Linear{In: 2, Out: 2, NoBias: true}, in[0]))
		}))
		set(t, alone, "m.weight", 1, 0, 0, 1)
		require.InDeltaSlice(t, eval(t, s, x), eval(t, alone, x), 1e-12)
	}
}

// TestGatedMLP holds the gated MLP against its formula, and takes an adapter. Tanh is no gate.
func TestGatedMLP(t *testing.T) {
	silu := func(x float64) float64 { return x / (1 + math.Exp(-x)) }
	for act, f := range map[nn.Activation]func(float64) float64{
		nn.SiLU: silu,
		nn.GELU: func(x float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) },
		nn.GELUTanh: func(x float64) float64 {
			return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		},
		nn.ReLU:    func(x float64) float64 { return math.Max(x, 0) },
		nn.Sigmoid: func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
	} {
		s := wrap(t, calling(&nn.MLP{Dim: 2, Hidden: 1, Act: act, Gated: true, NoBias: true}, 1))
		set(t, s, "m.fc.weight", 1, 2, 3, 4) // gate, up
		set(t, s, "m.out.weight", 5, 6)
		x := floats(3, 2)
		for i, y := range eval(t, s, x) {
			a, b := x.Float64s()[i/2*2], x.Float64s()[i/2*2+1]
			require.InDelta(t, f(a+2*b)*(3*a+4*b)*float64(5+i%2), y, 1e-12)
		}
	}
	adapted := wrap(t, calling(&nn.MLP{Dim: 2, Hidden: 1, Act: nn.SiLU, Gated: true, NoBias: true, LoRA: nn.LoRA{Rank: 1}}, 1))
	for _, p := range adapted.Params() {
		if p.Name == "m.fc.lora_b" {
			require.Equal(t, 2, p.Value.Len())
		}
	}
	set(t, adapted, "m.fc.weight", 1, 2, 3, 4)
	set(t, adapted, "m.fc.lora_a", 1, 1)
	set(t, adapted, "m.fc.lora_b", 0, 1)
	set(t, adapted, "m.out.weight", 1, 1)
	set(t, adapted, "m.out.lora_b", 0, 0)
	x := floats(1, 2)
	a, b := x.Float64s()[0], x.Float64s()[1]
	require.InDelta(t, silu(a+2*b)*(4*a+5*b), eval(t, adapted, x)[0], 1e-12)

	wrong := wrap(t, calling(&nn.MLP{Dim: 2, Hidden: 1, Act: nn.Tanh, Gated: true}, 1))
	_, err := wrong.Eval(t.Context(), x)
	require.ErrorContains(t, err, "no gated linear unit has activation 4")
}

// TestTiedLinear multiplies with the rows that an embedding looks up.
func TestTiedLinear(t *testing.T) {
	s := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		x := t.Call("wte", &nn.Embedding{Rows: 3, Dim: 2}, in[0])
		return t.Call("head", &nn.Linear{In: 2, Out: 3, NoBias: true, Tied: "wte.weight"}, x)
	}))
	require.Len(t, s.Params(), 1)
	set(t, s, "wte.weight", 1, 2, 3, 4, 5, 6)
	require.Equal(t, []float64{11, 25, 39}, eval(t, s, ints([]int{1}, 1)))
}

// TestRMSNorm divides by the root mean square and scales.
func TestRMSNorm(t *testing.T) {
	s := wrap(t, calling(&nn.RMSNorm{Dim: 2, Eps: 1}, 1))
	set(t, s, "m.weight", 2, 3)
	x := floats(1, 2)
	copy(x.Float64s(), []float64{3, 4})
	rms := math.Sqrt((9+16)/2. + 1)
	require.InDeltaSlice(t, []float64{2 * 3 / rms, 3 * 4 / rms}, eval(t, s, x), 1e-12)
}

// TestMaskedAttention equals attention without a mask if nothing is hidden, and attention on fewer
// tokens if the last are.
func TestMaskedAttention(t *testing.T) {
	masked := wrap(t, calling(&nn.Attention{Dim: 4, Heads: 2, Masked: true}, 2))
	plain := wrap(t, calling(&nn.Attention{Dim: 4, Heads: 2}, 1))
	x := floats(1, 3, 4)
	require.InDeltaSlice(t, eval(t, plain, x), eval(t, masked, x, ints([]int{1, 3}, 1, 1, 1)), 1e-12)
	shorter := floats(1, 2, 4) // the same numbers
	require.InDeltaSlice(t, eval(t, plain, shorter), eval(t, masked, x, ints([]int{1, 3}, 1, 1, 0))[:8], 1e-12)
}

// TestEmbedding looks rows up and adds positions.
func TestEmbedding(t *testing.T) {
	s := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		return t.Call("wpe", &nn.Positions{Rows: 4, Dim: 2}, t.Call("wte", &nn.Embedding{Rows: 3, Dim: 2}, in[0]))
	}))
	set(t, s, "wte.weight", 1, 2, 3, 4, 5, 6)
	set(t, s, "wpe.weight", 10, 20, 30, 40, 50, 60, 70, 80)
	require.Equal(t, []float64{15, 26, 31, 42, 11, 22, 35, 46}, eval(t, s, ints([]int{2, 2}, 2, 0, 0, 2)))
}

// TestDropoutInEvaluation passes everything on.
func TestDropoutInEvaluation(t *testing.T) {
	x := floats(2, 3, 4)
	plain := eval(t, wrap(t, calling(&nn.Block{Dim: 4, Heads: 2}, 1)), x)
	require.Equal(t, plain, eval(t, wrap(t, calling(&nn.Block{Dim: 4, Heads: 2, Dropout: 0.5}, 1)), x))
	after := model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		return t.Call("drop", &nn.Dropout{Rate: 0.5}, t.Call("m", &nn.Block{Dim: 4, Heads: 2}, in[0]))
	})
	require.Equal(t, plain, eval(t, wrap(t, after), x))
}

// TestHead gives the mean loss over the targets that count, and the logits.
func TestHead(t *testing.T) {
	s := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		return t.Call("m", &nn.Head{Dim: 2, Classes: 3}, in[0], in[1])
	}))
	set(t, s, "m.weight", make([]float64, 6)...)
	x := floats(1, 3, 2)
	require.InDeltaSlice(t, []float64{math.Log(3)}, eval(t, s, x, ints([]int{1, 3}, 2, nn.IgnoreTarget, 0)), 1e-12)

	logits := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		return t.Call("m", &nn.Head{Dim: 2, Classes: 3}, in[0], in[1]).At(1)
	}))
	linear := wrap(t, calling(&nn.Linear{In: 2, Out: 3, NoBias: true}, 1))
	require.Equal(t, eval(t, linear, x), eval(t, logits, x, ints([]int{1, 3}, 0, 0, 0)))
}

// TestCrossEntropy is the loss of a head without its linear layer.
func TestCrossEntropy(t *testing.T) {
	s := wrap(t, model(func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref {
		return t.Call("loss", &nn.CrossEntropy{}, t.Call("m", &nn.Linear{In: 2, Out: 3}, in[0]), in[1])
	}))
	set(t, s, "m.weight", make([]float64, 6)...)
	set(t, s, "m.bias", math.Log(1), math.Log(2), math.Log(5))
	got := eval(t, s, floats(1, 3, 2), ints([]int{1, 3}, 2, nn.IgnoreTarget, 0))
	require.InDeltaSlice(t, []float64{-(math.Log(5./8) + math.Log(1./8)) / 2}, got, 1e-12)
}

// spread returns mean and standard deviation.
func spread(v []float64) (mean, std float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		std += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, math.Sqrt(std)
}

// TestInitialValues draws weights with the promised deviation and starts biases at zero and gains
// at one.
func TestInitialValues(t *testing.T) {
	const layers = 8
	m := &nn.GPT{Vocab: 64, Context: 64, Layers: layers, Dim: 64, Heads: 2}
	s, err := fsdp.Wrap(m, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}, Seed: 1})
	require.NoError(t, err)
	state, err := s.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	for name, v := range state {
		mean, std := spread(v.Float64s())
		switch {
		case strings.HasSuffix(name, "bias"):
			require.Zero(t, mean, name)
			require.Zero(t, std, name)
		case v.Dims() == 1:
			require.EqualValues(t, 1, mean, name)
			require.Zero(t, std, name)
		default:
			want := 0.02
			if strings.Contains(name, "proj") || strings.Contains(name, "out") {
				want /= math.Sqrt(2 * layers)
			}
			require.InDelta(t, 1, std/want, 0.05, name)
			require.InDelta(t, 0, mean/want, 0.1, name)
		}
	}
	own, err := fsdp.Wrap(calling(&nn.Attention{Dim: 64, Heads: 2, Std: 0.5}, 1), fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.Float64}})
	require.NoError(t, err)
	state, err = own.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	for _, name := range []string{"m.qkv.weight", "m.proj.weight"} {
		_, std := spread(state[name].Float64s())
		require.InDelta(t, 0.5, std, 0.02, name)
	}
}

// twice applies dropout in two parts and adds everything up.
type twice struct{}

func (twice) Params() []fsdp.Param { return []fsdp.Param{{Name: "unused", Shape: []int{1}}} }

func (twice) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	first, err := b.Call("first", &nn.Dropout{Rate: 0.5}, in[0])
	if err != nil {
		return nil, err
	}
	second, err := b.Call("second", &nn.Dropout{Rate: 0.5}, first[0])
	if err != nil {
		return nil, err
	}
	total, err := gorgonia.Sum(second[0])
	return gorgonia.Nodes{total}, err
}

// TestDropoutsOfAModuleDiffer: with independent masks a quarter of the elements passes both, scaled
// by 4; with the same mask half of them would.
func TestDropoutsOfAModuleDiffer(t *testing.T) {
	const n = 10_000
	x := floats(1, n)
	for i := range x.Float64s() {
		x.Float64s()[i] = 1
	}
	total, err := wrap(t, calling(twice{}, 1)).Forward(t.Context(), x)
	require.NoError(t, err)
	require.InDelta(t, n, total, 0.1*n)
}
