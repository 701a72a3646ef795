package optim_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/optim"
)

// lion is the update of Lion, https://arxiv.org/abs/2302.06675.
func lion[T float32 | float64](u optim.Elements[T]) {
	lr, decay, m := T(u.LR), T(u.WeightDecay), u.State[0]
	beta1, beta2 := T(u.Numbers["beta1"]), T(u.Numbers["beta2"])
	for i, g := range u.Grad {
		direction := T(math.Copysign(1, float64(beta1*m[i]+(1-beta1)*g)))
		u.Value[i] -= lr * (direction + decay*u.Value[i])
		m[i] = beta2*m[i] + (1-beta2)*g
	}
}

// newLion returns the configuration of Lion.
func newLion(beta1 float64) optim.Elementwise {
	return optim.Elementwise{
		Kind: "Lion", State: []string{"exp_avg"}, WeightDecay: 0.1,
		Numbers: map[string]float64{"beta1": beta1, "beta2": 0.75},
		Float32: lion[float32], Float64: lion[float64],
	}
}

// Lion, an optimizer that this package does not have, in a function of its formula.
func ExampleElementwise() {
	value, grad := []float32{1, 1}, []float32{0.5, -3}
	opt, err := optim.Elementwise{
		Kind: "Lion", State: []string{"exp_avg"},
		Numbers: map[string]float64{"beta1": 0.9, "beta2": 0.75},
		Float32: lion[float32],
	}.New([]optim.Param{{Name: "w", Shape: []int{2}, Value: optim.Host{F32: value}, Grad: optim.Host{F32: grad}}})
	if err != nil {
		panic(err)
	}
	if err := opt.Step(0.25); err != nil {
		panic(err)
	}
	fmt.Println(value)
	for _, e := range opt.State() {
		fmt.Println(e.Param, e.Name, e.Data.(optim.Host).F32)
	}
	fmt.Println(optim.Groups(opt)[0].Facts())
	// Output:
	// [0.75 1.25]
	// w exp_avg [0.125 -0.75]
	// [Lion weight decay 0 LRScale 1 beta1 0.9 beta2 0.75]
}

// TestElementwiseIsSGD writes SGD with momentum, and three vectors of state, as an Elementwise. Its
// numbers are powers of two, so that SGD of this package has the same bits.
func TestElementwiseIsSGD(t *testing.T) {
	update := func(u optim.Elements[float64]) {
		for i, g := range u.Grad {
			g += u.WeightDecay * u.Value[i]
			if u.Steps > 1 {
				g += u.Numbers["momentum"] * u.State[1][i]
			}
			u.State[1][i] = g
			u.Value[i] -= u.LR * g
			u.State[0][i]++
			u.State[2][i] = u.Value[i]
		}
	}
	rule := optim.Rule{Match: func(p optim.Param) bool { return p.Name == "b" }, LRScale: new(0.5), WeightDecay: new(0.0)}
	rapid.Check(t, func(t *rapid.T) {
		momentum := rapid.SampledFrom([]float64{0.25, 0.5}).Draw(t, "momentum")
		var values [2][]optim.Host
		var opts [2]optim.Optimizer
		for k, c := range []config{
			optim.SGD{Momentum: momentum, WeightDecay: 0.125, Rules: []optim.Rule{rule}},
			optim.Elementwise{
				Kind: "Momentum", State: []string{"count", "momentum_buffer", "copy"}, Numbers: map[string]float64{"momentum": momentum},
				WeightDecay: 0.125, Float64: update, Rules: []optim.Rule{rule},
			},
		} {
			var params []optim.Param
			for _, name := range []string{"a", "b"} {
				value, grad := optim.Host{F64: []float64{1, -2, 4, 0.5}}, optim.Host{F64: []float64{0.5, 8, -1, 0.25}}
				values[k] = append(values[k], value)
				parts := [][2]int{{0, 4}}
				if k > 0 {
					cut := rapid.IntRange(1, 3).Draw(t, "cut")
					parts = [][2]int{{0, cut}, {cut, 4}}
				}
				for _, part := range parts {
					params = append(params, optim.Param{
						Name: name, Shape: []int{4}, Offset: part[0],
						Value: value.Slice(part[0], part[1]), Grad: grad.Slice(part[0], part[1]),
					})
				}
			}
			var err error
			opts[k], err = c.New(params)
			require.NoError(t, err)
		}
		for range 4 {
			require.NoError(t, opts[0].Step(0.25))
			require.NoError(t, opts[1].Step(0.25))
		}
		require.Equal(t, values[0], values[1])
		for _, e := range opts[1].State() {
			if e.Name == "count" {
				for _, x := range e.Data.(optim.Host).F64 {
					require.Equal(t, 4.0, x)
				}
			}
		}
		require.Zero(t, testing.AllocsPerRun(3, func() { _ = opts[1].Step(0.25) }))
	})
}

// TestElementwiseLoads continues a training in an optimizer whose pieces are cut elsewhere and whose
// numbers are others until Regroup.
func TestElementwiseLoads(t *testing.T) {
	saved, want := grouped(t, newLion(0.5))
	require.NoError(t, optim.EMA(saved, 0.5))
	opt, got := grouped(t, newLion(0.25))
	require.NoError(t, optim.EMA(opt, 0.5))
	for range 3 {
		require.NoError(t, saved.Step(0.25))
	}
	for i := range want {
		require.NoError(t, got[i].Value.Write(want[i].Value.(optim.Host)))
	}
	require.NoError(t, opt.Restore(saved.Steps(), saved.State()))
	require.NotEqual(t, optim.Groups(saved), optim.Groups(opt))
	apply, err := optim.Regroup(opt, optim.Groups(saved))
	require.NoError(t, err)
	apply()
	require.Equal(t, optim.Groups(saved), optim.Groups(opt))
	require.NoError(t, saved.Step(0.25))
	require.NoError(t, opt.Step(0.25))
	for i := range want {
		require.Equal(t, want[i].Value, got[i].Value)
	}
	require.Equal(t, saved.State(), opt.State())

	other := newLion(0.5)
	other.Numbers = map[string]float64{"beta1": 0.5}
	less, _ := grouped(t, other)
	_, err = optim.Regroup(less, optim.Groups(saved))
	require.ErrorContains(t, err, `parameter "a": cannot replace the numbers "beta1=0.5" by "beta1=0.5 beta2=0.75"`)
	adamw, _ := grouped(t, optim.AdamW{})
	_, err = optim.Regroup(adamw, optim.Groups(saved))
	require.ErrorContains(t, err, `parameter "a": its settings are for Lion`)
	groups := optim.Groups(saved)
	groups[0].Numbers = "beta1=fast"
	_, err = optim.Regroup(opt, groups)
	require.ErrorContains(t, err, `numbers "beta1=fast": "beta1=fast" is not name=number`)
}

func TestElementwiseErrors(t *testing.T) {
	edit := func(f func(*optim.Elementwise)) optim.Elementwise {
		c := newLion(0.5)
		f(&c)
		return c
	}
	f32 := whole("w", newTensor(2, false))
	for _, c := range []struct {
		config optim.Elementwise
		params []optim.Param
		want   string
	}{
		{optim.Elementwise{}, f32, `optim: elementwise "": field Kind must be a word`},
		{edit(func(c *optim.Elementwise) { c.Kind = "a b" }), f32, "field Kind must be a word"},
		{edit(func(c *optim.Elementwise) { c.Kind = "AdamW" }), f32, "field Kind is the name of an optimizer of this package"},
		{edit(func(c *optim.Elementwise) { c.Float32, c.Float64 = nil, nil }), f32, "no update: set Float32, Float64 or both"},
		{edit(func(c *optim.Elementwise) { c.Float32 = nil }), f32, `optim: lion: parameter "w" is float32: set field Float32`},
		{edit(func(c *optim.Elementwise) { c.Float64 = nil }), whole("w", newTensor(2, true)), `parameter "w" is float64: set field Float64`},
		{edit(func(c *optim.Elementwise) { c.State = []string{"m", "m"} }), f32, `field State: "m" is empty, given twice`},
		{edit(func(c *optim.Elementwise) { c.State = []string{"ema"} }), f32, `field State: "ema"`},
		{edit(func(c *optim.Elementwise) { c.Numbers["a=b"] = 1 }), f32, `field Numbers: "a=b" = 1: must be a word and a finite number`},
		{edit(func(c *optim.Elementwise) { c.Numbers["beta1"] = math.NaN() }), f32, `field Numbers: "beta1" = NaN`},
		{edit(func(c *optim.Elementwise) { c.WeightDecay = -1 }), f32, "optim: lion: WeightDecay is -1"},
		{edit(func(c *optim.Elementwise) { c.Rules = []optim.Rule{{}} }), f32, "optim: lion: rule 0: field Match is nil"},
		{newLion(0.5), []optim.Param{{Name: "w", Shape: []int{2}, Value: unreachable{}, Grad: unreachable{}}}, "it does not implement vec.Addressable"},
		{edit(func(c *optim.Elementwise) {
			c.Float32 = func(u optim.Elements[float32]) { // the largest gradient of the piece scales the step
				var most float32
				for _, g := range u.Grad {
					most = max(most, g)
				}
				for i, g := range u.Grad {
					u.Value[i] -= float32(u.LR) * g / most
				}
			}
		}), f32, "field Float32: the update of an element depends on other elements: element"},
	} {
		_, err := c.config.New(c.params)
		require.ErrorContains(t, err, c.want)
	}
}
