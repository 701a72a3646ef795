package optim_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// config is what SGD, Adam and AdamW have in common.
type config interface {
	New(params []optim.Param) (optim.Optimizer, error)
}

// drawConfig draws an optimizer without rules.
func drawConfig(t *rapid.T) config {
	wd := rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "wd")
	beta1 := rapid.SampledFrom([]float64{optim.Zero, 0, 0.5}).Draw(t, "beta1")
	switch rapid.SampledFrom([]string{"sgd", "adam", "adamw"}).Draw(t, "kind") {
	case "sgd":
		momentum := rapid.SampledFrom([]float64{0, 0.9}).Draw(t, "momentum")
		return optim.SGD{Momentum: momentum, WeightDecay: wd, Nesterov: momentum > 0 && rapid.Bool().Draw(t, "nesterov")}
	case "adam":
		return optim.Adam{Beta1: beta1, Beta2: 0.95, WeightDecay: wd}
	default:
		return optim.AdamW{Beta1: beta1, Eps: 1e-3, WeightDecay: wd}
	}
}

// twin updates one element at a time, in float64 and exactly as the documentation of the
// configurations says.
type twin struct{ p, m, v []float64 }

func (w twin) step(c config, t int, lr float64, grad []float64) {
	orDefault := func(v, def float64) float64 {
		return map[bool]float64{true: def, false: v}[v == 0]
	}
	for i, g := range grad {
		switch c := c.(type) {
		case optim.SGD:
			g += c.WeightDecay * w.p[i]
			if t == 1 {
				w.m[i] = g
			} else {
				w.m[i] = c.Momentum*w.m[i] + g
			}
			d := g
			if c.Nesterov {
				d = g + c.Momentum*w.m[i]
			} else if c.Momentum > 0 {
				d = w.m[i]
			}
			w.p[i] -= lr * d
		case optim.Adam:
			w.adam(i, t, lr, g+c.WeightDecay*w.p[i], orDefault(c.Beta1, 0.9), orDefault(c.Beta2, 0.999), orDefault(c.Eps, 1e-8))
		case optim.AdamW:
			w.p[i] -= lr * c.WeightDecay * w.p[i]
			w.adam(i, t, lr, g, orDefault(c.Beta1, 0.9), orDefault(c.Beta2, 0.999), orDefault(c.Eps, 1e-8))
		}
	}
}

func (w twin) adam(i, t int, lr, g, beta1, beta2, eps float64) {
	w.m[i] = beta1*w.m[i] + (1-beta1)*g
	w.v[i] = beta2*w.v[i] + (1-beta2)*g*g
	c1, c2 := 1-math.Pow(beta1, float64(t)), 1-math.Pow(beta2, float64(t))
	w.p[i] -= lr / c1 * w.m[i] / (math.Sqrt(w.v[i])/math.Sqrt(c2) + eps)
}

// tensorData is a whole parameter for tests, in both types, with its gradient. Only one type is in
// use.
type tensorData struct{ value, grad optim.Host }

func newTensor(n int, f64 bool) tensorData {
	if f64 {
		return tensorData{optim.Host{F64: make([]float64, n)}, optim.Host{F64: make([]float64, n)}}
	}
	return tensorData{optim.Host{F32: make([]float32, n)}, optim.Host{F32: make([]float32, n)}}
}

// fill sets v to numbers of magnitude [0.5, 1), so that no sum with decay comes close to zero:
// there Adam turns rounding noise into full steps.
func fill(v optim.Host, rng *rand.Rand) {
	draw := func() float32 { return (0.5 + rng.Float32()/2) * float32(1-2*rng.IntN(2)) }
	for i := range v.F32 {
		v.F32[i] = draw()
	}
	for i := range v.F64 {
		v.F64[i] = float64(draw())
	}
}

// slice returns elements [from, to) of v.
func slice(v optim.Host, from, to int) optim.Host {
	if v.F64 != nil {
		return optim.Host{F64: v.F64[from:to]}
	}
	return optim.Host{F32: v.F32[from:to]}
}

func wide(v optim.Host) []float64 {
	out := slices.Clone(v.F64)
	for _, x := range v.F32 {
		out = append(out, float64(x))
	}
	return out
}

func clone(v optim.Host) optim.Host {
	return optim.Host{F32: slices.Clone(v.F32), F64: slices.Clone(v.F64)}
}

// cut draws a split of the tensor into pieces, some of them perhaps empty, in any order.
func cut(t *rapid.T, name string, d tensorData) []optim.Param {
	n := d.value.Len()
	ends := append(rapid.SliceOfNDistinct(rapid.IntRange(0, n), 0, min(4, n), rapid.ID).Draw(t, "cuts"), n)
	slices.Sort(ends)
	var pieces []optim.Param
	from := 0
	for i, to := range ends {
		if i > 0 && from == to {
			continue // a second piece at the same offset would be an error
		}
		pieces = append(pieces, optim.Param{
			Name: name, Shape: []int{n}, Offset: from, Value: slice(d.value, from, to), Grad: slice(d.grad, from, to),
		})
		from = to
	}
	if len(pieces) > 1 && pieces[0].Value.Len() == 0 {
		pieces = pieces[1:]
	}
	return rapid.Permutation(pieces).Draw(t, "order")
}

func whole(name string, d tensorData) []optim.Param {
	return []optim.Param{{Name: name, Shape: []int{d.value.Len()}, Value: d.value, Grad: d.grad}}
}

func TestFormulas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f64 := drawConfig(t), rapid.Bool().Draw(t, "f64")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		d := newTensor(rapid.IntRange(0, 70).Draw(t, "n"), f64)
		fill(d.value, rng)
		want := twin{wide(d.value), make([]float64, d.value.Len()), make([]float64, d.value.Len())}
		opt, err := c.New(cut(t, "w", d))
		require.NoError(t, err)
		tolerance := 1e-13
		if !f64 {
			tolerance = 2e-5
		}
		for step := 1; step <= 5; step++ {
			lr := 0.1 / float64(step)
			fill(d.grad, rng)
			want.step(c, step, lr, wide(d.grad))
			require.NoError(t, opt.Step(lr))
			require.Equal(t, step, opt.Steps())
			require.InDeltaSlice(t, want.p, wide(d.value), tolerance)
		}
	})
}

// However a parameter is cut, the bits are those of the whole.
func TestSplitChangesNoBit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f64 := drawConfig(t), rapid.Bool().Draw(t, "f64")
		n := rapid.IntRange(0, 200).Draw(t, "n")
		a, b := newTensor(n, f64), newTensor(n, f64)
		seed := rapid.Uint64().Draw(t, "seed")
		rngA, rngB := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 0))
		fill(a.value, rngA)
		fill(b.value, rngB)
		one, err := c.New(whole("w", a))
		require.NoError(t, err)
		many, err := c.New(cut(t, "w", b))
		require.NoError(t, err)
		for range 3 {
			fill(a.grad, rngA)
			fill(b.grad, rngB)
			require.NoError(t, one.Step(0.01))
			require.NoError(t, many.Step(0.01))
		}
		require.Equal(t, a.value, b.value)
	})
}

// Expected values are worked out by hand; every number is exact in binary unless a tolerance is
// given.
func TestByHand(t *testing.T) {
	for _, c := range []struct {
		name   string
		config config
		lr, p  float64
		grads  []float64
		want   float64
	}{
		{"sgd", optim.SGD{}, 0.5, 1, []float64{1, 2}, -0.5},
		{"decay", optim.SGD{WeightDecay: 0.5}, 0.5, 2, []float64{1}, 1},
		{"momentum: b = 1, 1.5, 1.75", optim.SGD{Momentum: 0.5}, 1, 0, []float64{1, 1, 1}, -4.25},
		{"nesterov: d = 1.5, 1.75, 1.875", optim.SGD{Momentum: 0.5, Nesterov: true}, 1, 0, []float64{1, 1, 1}, -5.125},
		{"without averages Adam is the sign", optim.Adam{Beta1: optim.Zero, Beta2: optim.Zero, Eps: optim.Zero, WeightDecay: 2},
			0.25, 1, []float64{-1}, 0.75},
		{"decoupled decay", optim.AdamW{Beta1: optim.Zero, Beta2: optim.Zero, Eps: optim.Zero, WeightDecay: 0.5},
			0.25, 1, []float64{3}, 0.625},
		{"m/c1 = 2, 2/3; v/c2 = 4, 12/7", optim.Adam{Beta1: 0.5, Beta2: 0.75}, 1, 0, []float64{2, 0},
			-1 - 2.0/3/math.Sqrt(12.0/7)},
		{"eps", optim.Adam{Eps: 1}, 1, 0, []float64{1}, -0.5},
	} {
		p32, p64 := newTensor(1, false), newTensor(1, true)
		p32.value.F32[0], p64.value.F64[0] = float32(c.p), c.p
		opt, err := c.config.New(append(whole("single", p32), whole("double", p64)...))
		require.NoError(t, err)
		for _, g := range c.grads {
			p32.grad.F32[0], p64.grad.F64[0] = float32(g), g
			require.NoError(t, opt.Step(c.lr))
		}
		require.InDelta(t, c.want, p64.value.F64[0], 2e-8, c.name) // the default Eps is 1e-8
		require.InDelta(t, c.want, p32.value.F32[0], 1e-6, c.name)
	}
}

func TestRules(t *testing.T) {
	names := []string{"wte.weight", "fc.weight", "fc.bias", "head.bias"}
	var params []optim.Param
	values := make([]float64, len(names))
	grads := []float64{1, 1, 1, 1}
	for i, name := range names {
		shape := []int{1, 1}
		if i >= 2 {
			shape = []int{1}
		}
		params = append(params, optim.Param{Name: name, Shape: shape,
			Value: optim.Host{F64: values[i : i+1]}, Grad: optim.Host{F64: grads[i : i+1]}})
	}
	head := optim.MatchName(regexp.MustCompile(`^head\.`))
	rules := []optim.Rule{
		{Match: optim.MatchName(regexp.MustCompile(`^wte`)), LRScale: new(0.0)},
		{Match: head, LRScale: new(0.5)},
		optim.NoDecay(),
		{Match: head, LRScale: new(7.0), WeightDecay: new(7.0)}, // both decided before
	}
	for _, c := range []struct {
		config  config
		decayed float64 // what one step leaves of fc.weight, the only parameter with decay
	}{
		{optim.SGD{WeightDecay: 1, Rules: rules}, 0},
		{optim.Adam{Beta1: optim.Zero, Beta2: optim.Zero, Eps: optim.Zero, WeightDecay: 1, Rules: rules}, 0.5},
		{optim.AdamW{Beta1: optim.Zero, Beta2: optim.Zero, Eps: optim.Zero, WeightDecay: 1, Rules: rules}, 0},
	} {
		copy(values, []float64{1, 1, 1, 1})
		opt, err := c.config.New(params)
		require.NoError(t, err)
		require.NoError(t, opt.Step(0.5))
		require.Equal(t, []float64{1, c.decayed, 0.5, 0.75}, values, "%T", c.config)
	}
}

func TestNewErrors(t *testing.T) {
	f32, f64 := optim.Host{F32: make([]float32, 2)}, optim.Host{F64: make([]float64, 2)}
	ok := optim.Param{Name: "w", Shape: []int{4}, Value: f32, Grad: f32}
	edit := func(f func(*optim.Param)) []optim.Param {
		p := ok
		f(&p)
		return []optim.Param{p}
	}
	for _, c := range []struct {
		params []optim.Param
		want   string
	}{
		{edit(func(p *optim.Param) { p.Name = "" }), "without a name"},
		{edit(func(p *optim.Param) { p.Grad = optim.Host{F32: make([]float32, 3)} }), `parameter "w": value has 2 elements, gradient 3`},
		{edit(func(p *optim.Param) { p.Grad = f64 }), `parameter "w": value is float32, gradient float64`},
		{edit(func(p *optim.Param) { p.Value = optim.Host{F32: f32.F32, F64: f64.F64} }), `parameter "w": a buffer is both`},
		{edit(func(p *optim.Param) { p.Offset = 3 }), `parameter "w": elements [3:5] are outside shape [4]`},
		{edit(func(p *optim.Param) { p.Offset = -1 }), `parameter "w": elements [-1:1] are outside`},
		{edit(func(p *optim.Param) { p.Shape = []int{-4} }), `parameter "w": negative dimension`},
		{append(edit(func(p *optim.Param) { p.Offset = 1 }), ok), `parameter "w": pieces [0:2] and [1:3] overlap`},
		{[]optim.Param{ok, ok}, `parameter "w": pieces [0:2] and [0:2] overlap`},
		{append(edit(func(p *optim.Param) { p.Offset = 2; p.Shape = []int{2, 2} }), ok), `parameter "w": its pieces have different shapes, [4] and [2 2]`},
	} {
		for _, config := range []config{optim.SGD{}, optim.Adam{}, optim.AdamW{}} {
			_, err := config.New(c.params)
			require.ErrorContains(t, err, c.want)
		}
	}
	all := func(optim.Param) bool { return true }
	for _, c := range []struct {
		config config
		want   string
	}{
		{optim.SGD{Momentum: 1}, "optim: sgd: Momentum is 1: must be in [0, 1)"},
		{optim.SGD{Momentum: math.NaN()}, "Momentum is NaN"},
		{optim.SGD{WeightDecay: -1}, "WeightDecay is -1: must be in [0, +Inf)"},
		{optim.SGD{Nesterov: true}, "field Nesterov needs Momentum"},
		{optim.Adam{Beta1: 1}, "optim: adam: Beta1 is 1: must be in [0, 1)"},
		{optim.AdamW{Beta1: -0.5}, "optim: adamw: Beta1 is -0.5"},
		{optim.Adam{Beta2: math.NaN()}, "Beta2 is NaN"},
		{optim.Adam{Eps: math.Inf(1)}, "Eps is +Inf"},
		{optim.AdamW{WeightDecay: math.NaN()}, "WeightDecay is NaN"},
		{optim.AdamW{Rules: []optim.Rule{optim.NoDecay(), {}}}, "optim: adamw: rule 1: field Match is nil"},
		{optim.SGD{Rules: []optim.Rule{{Match: all, LRScale: new(-1.0)}}}, "optim: sgd: rule 0: LRScale is -1"},
		{optim.SGD{Rules: []optim.Rule{{Match: all, WeightDecay: new(math.Inf(1))}}}, "rule 0: WeightDecay is +Inf"},
	} {
		_, err := c.config.New([]optim.Param{ok})
		require.ErrorContains(t, err, c.want)
	}
}

func TestStepErrorChangesNothing(t *testing.T) {
	for _, c := range []config{optim.SGD{Momentum: 0.9}, optim.AdamW{}} {
		d := newTensor(3, true)
		fill(d.value, rand.New(rand.NewPCG(1, 1)))
		before := clone(d.value)
		opt, err := c.New(whole("w", d))
		require.NoError(t, err)
		for _, lr := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -0.1} {
			require.ErrorContains(t, opt.Step(lr), fmt.Sprintf("step 0: learning rate is %v", lr))
		}
		require.Equal(t, before.F64, d.value.F64)
		require.Zero(t, opt.Steps())
	}
}

func TestOwningNothing(t *testing.T) {
	empty := []optim.Param{{Name: "w", Shape: []int{4}, Offset: 4}}
	for _, params := range [][]optim.Param{nil, empty} {
		for _, c := range []config{optim.SGD{Momentum: 0.9}, optim.Adam{}, optim.AdamW{}} {
			opt, err := c.New(params)
			require.NoError(t, err)
			require.NoError(t, opt.Step(0.1))
			require.Empty(t, opt.State())
			require.NoError(t, opt.Restore(7, nil))
			require.Equal(t, 7, opt.Steps())
		}
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	a, b := newTensor(100, false), newTensor(33, true)
	for _, c := range []config{optim.SGD{}, optim.SGD{Momentum: 0.9}, optim.Adam{}, optim.AdamW{Rules: []optim.Rule{optim.NoDecay()}}} {
		params := append(whole("a", a), whole("b", b)...)
		params[1].Absent = func() bool { return false }
		opt, err := c.New(params)
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(10, func() {
			if err := opt.Step(0.1); err != nil {
				t.Error(err)
			}
		}), "%T", c)
	}
	params := whole("a", newTensor(1000, false))
	opt, err := optim.AdamW{Rules: []optim.Rule{eightBits}}.New(params)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = opt.Step(0.1) }))
}
