package optim_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// sixteenBits has parameters of any size keep their state in 16 bits.
var sixteenBits = optim.Rule{Match: func(optim.Param) bool { return true }, Bits: new(16)}

// TestSixteenBitsAnyCut: values and state have the same bits however a parameter is cut, in one run
// and in two with state from elsewhere between them: through 32 bits, or on a device.
func TestSixteenBitsAnyCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 3000).Draw(t, "n")
		c := rapid.SampledFrom([]config{
			optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{sixteenBits}},
			optim.SGD{Momentum: 0.9, Rules: []optim.Rule{sixteenBits}},
			optim.SGD{Momentum: 0.9, Nesterov: true, WeightDecay: 0.1, Rules: []optim.Rule{sixteenBits}},
		}).Draw(t, "optimizer")
		wide := map[bool]config{true: optim.AdamW{}, false: optim.SGD{Momentum: 0.9}}
		_, adam := c.(optim.AdamW)
		steps := rapid.IntRange(1, 4).Draw(t, "steps")
		x := func() tensorData {
			d := newTensor(n, false)
			fill(d.value, rand.New(rand.NewPCG(3, 4)))
			return d
		}
		cut := func(d tensorData, at int) []optim.Param {
			return []optim.Param{
				{Name: "w", Shape: []int{n}, Value: slice(d.value, 0, at), Grad: slice(d.grad, 0, at)},
				{Name: "w", Shape: []int{n}, Offset: at, Value: slice(d.value, at, n), Grad: slice(d.grad, at, n)},
			}
		}
		run := func(opt optim.Optimizer, d tensorData, from, to int) {
			for step := from; step < to; step++ {
				fill(d.grad, rand.New(rand.NewPCG(5, uint64(step))))
				require.NoError(t, opt.Step(0.01))
			}
		}
		make := func(c config, params []optim.Param) optim.Optimizer {
			opt, err := c.New(params)
			require.NoError(t, err)
			return opt
		}
		one := x()
		want := make(c, whole("w", one))
		run(want, one, 0, 2*steps)

		two := x()
		first := make(c, cut(two, rapid.IntRange(1, n-1).Draw(t, "cut")))
		run(first, two, 0, steps)
		between := make(wide[adam], cut(two, rapid.IntRange(1, n-1).Draw(t, "cut in 32 bits")))
		require.NoError(t, between.Restore(first.Steps(), first.State()))
		second := make(c, cut(two, rapid.IntRange(1, n-1).Draw(t, "second cut")))
		require.NoError(t, second.Restore(between.Steps(), between.State()))
		d := new(device)
		var far []optim.Param
		for _, p := range cut(two, rapid.IntRange(1, n-1).Draw(t, "cut of a device")) {
			far = append(far, d.moved(t, p))
		}
		there := make(c, far)
		require.NoError(t, there.Restore(between.Steps(), between.State()))
		require.Equal(t, read(t, second), read(t, there), "state on a device")
		run(second, two, steps, 2*steps)
		require.Equal(t, one.value, two.value)
		require.Equal(t, read(t, want), read(t, second))
	})
}

// read returns the state of a parameter by entry.
func read(t require.TestingT, opt optim.Optimizer) map[string][]float32 {
	all := make(map[string][]float32)
	for _, e := range opt.State() {
		h := optim.Host{F32: make([]float32, e.Data.Len())}
		require.NoError(t, e.Data.Read(h))
		all[e.Name] = append(all[e.Name], h.F32...)
	}
	return all
}

// TestSixteenBitsKeepSmallChanges: a second moment that shrinks by 0.1 % a step follows its
// expectation, where rounding to the nearest would keep it forever. Parameters and states have
// draws of their own.
func TestSixteenBitsKeepSmallChanges(t *testing.T) {
	const n, steps = 4096, 700
	moment := func(name string) []float32 {
		x := newTensor(n, false)
		for i := range x.grad.F32 {
			x.grad.F32[i] = 1
		}
		opt, err := optim.AdamW{Bits: 16}.New(whole(name, x))
		require.NoError(t, err)
		require.NoError(t, opt.Step(0))
		require.NoError(t, x.grad.Zero())
		for range steps {
			require.NoError(t, opt.Step(0))
		}
		return read(t, opt)["exp_avg_sq"]
	}
	a, b := moment("a"), moment("b")
	mean := 0.0
	for _, v := range a {
		mean += float64(v) / n
	}
	want := 0.001 * math.Pow(0.999, steps)
	require.InDelta(t, want, mean, 0.003*want)
	require.NotEqual(t, a, b)
	require.Equal(t, a, moment("a"))
}

// TestSixteenBitsLoadOthers: state of 8 and of 32 bits loads, rounded to the nearest value, and state of
// 16 bits loads into optimizers with 8 and 32.
func TestSixteenBitsLoadOthers(t *testing.T) {
	const n = 1000
	make := func(rules ...optim.Rule) (optim.Optimizer, tensorData) {
		d := newTensor(n, false)
		fill(d.grad, rand.New(rand.NewPCG(1, 2)))
		opt, err := optim.AdamW{Rules: rules}.New(whole("w", d))
		require.NoError(t, err)
		return opt, d
	}
	for _, from := range [][]optim.Rule{nil, {eightBits}, {sixteenBits}} {
		source, _ := make(from...)
		require.NoError(t, source.Step(0.1))
		for _, to := range [][]optim.Rule{nil, {eightBits}, {sixteenBits}} {
			opt, _ := make(to...)
			require.NoError(t, opt.Restore(source.Steps(), source.State()))
			got := read(t, opt)
			for name, want := range read(t, source) {
				for i := range want {
					require.InDelta(t, want[i], got[name][i], 0.02*math.Abs(float64(want[i])), "%s %d", name, i)
				}
			}
			require.NoError(t, opt.Step(0.1))
		}
	}
}
