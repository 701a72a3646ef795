package optim_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestEMAAsTorch compares with torch.optim.swa_utils.AveragedModel and get_ema_multi_avg_fn(0.9),
// updated after every step of AdamW, of PyTorch 2.
func TestEMAAsTorch(t *testing.T) {
	value := []float64{0.4755808787707404, -1.411880603700996, 3.1250904010983667, -0.014604473599501164}
	average := []float64{0.7958666000655815, -1.7736218605664849, 3.097577111123715, 0.30191912728824266}
	for _, f64 := range []bool{false, true} {
		d := newTensor(4, f64)
		for i, x := range []float64{1, -2, 3, 0.5} {
			set(d.value, i, x)
		}
		opt := newOptimizer(t, optim.AdamW{WeightDecay: 0.1}, whole("w", d))
		require.NoError(t, optim.EMA(opt, 0.9))
		for step := range 5 {
			x := float64(step)
			for i, g := range []float64{0.5 * (x + 1), -1, 0.25*x - 0.5, 2} {
				set(d.grad, i, g)
			}
			require.NoError(t, opt.Step(0.1))
		}
		tolerance := 1e-6
		if f64 {
			tolerance = 1e-14
		}
		require.InDeltaSlice(t, value, wide(d.value), tolerance)
		require.InDeltaSlice(t, average, wide(opt.State()[2].Data.(optim.Host)), tolerance)
	}
}

func set(v optim.Host, i int, x float64) {
	if v.F64 != nil {
		v.F64[i] = x
		return
	}
	v.F32[i] = float32(x)
}

// TestEMAFollows draws optimizers, cuts, and when a parameter is absent. The averages are those of
// the definition, the updates what they are without averages, and other pieces take the state over.
func TestEMAFollows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f64, decay := drawConfig(t), rapid.Bool().Draw(t, "f64"), rapid.SampledFrom([]float64{0.5, 0.9, 0.999}).Draw(t, "decay")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		const n = 20
		with, without := newTensor(n, f64), newTensor(n, f64)
		fill(with.value, rng)
		copyVec(without.value, with.value)
		absent := false
		pieces, plain := cut(t, "w", with), whole("w", without)
		for _, list := range [][]optim.Param{pieces, plain} {
			for i := range list {
				list[i].Absent = func() bool { return absent }
			}
		}
		opt, err := c.New(pieces)
		require.NoError(t, err)
		other, err := c.New(plain)
		require.NoError(t, err)
		begin, updates := rapid.IntRange(0, 2).Draw(t, "begins"), 0
		var want []float64
		for step := range 6 {
			if step == begin {
				require.NoError(t, optim.EMA(opt, decay))
				if updates > 0 {
					want = wide(with.value)
				}
			}
			fill(with.grad, rng)
			copyVec(without.grad, with.grad)
			absent = rapid.Bool().Draw(t, "absent")
			require.NoError(t, opt.Step(0.1))
			require.NoError(t, other.Step(0.1))
			require.Equal(t, without.value, with.value)
			if absent {
				continue
			}
			updates++
			if step < begin {
				continue
			}
			now := wide(with.value)
			if want == nil {
				want = now
			}
			for i := range want {
				want[i] += (1 - decay) * (now[i] - want[i])
			}
		}
		if want == nil {
			want = make([]float64, n) // nothing has had an update
		}
		requireEMA(t, want, opt, 1e-6)

		next := newTensor(n, f64)
		copyVec(next.value, with.value)
		again, err := c.New(cut(t, "w", next))
		require.NoError(t, err)
		require.ErrorContains(t, again.Restore(opt.Steps(), opt.State()), `has state "ema"`)
		require.NoError(t, optim.EMA(again, decay))
		require.NoError(t, again.Restore(opt.Steps(), opt.State()))
		absent = false
		fill(with.grad, rng)
		copyVec(next.grad, with.grad)
		require.NoError(t, opt.Step(0.1))
		require.NoError(t, again.Step(0.1))
		require.Equal(t, with.value, next.value)
		var bits []float64
		for i := range n {
			bits = append(bits, emaOf(opt, i))
		}
		requireEMA(t, bits, again, 0)
	})
}

// emaOf returns element i of the average of the one parameter.
func emaOf(opt optim.Optimizer, i int) float64 {
	for _, e := range opt.State() {
		if e.Name == "ema" && e.Offset <= i && i < e.Offset+e.Data.Len() {
			return wide(e.Data.(optim.Host))[i-e.Offset]
		}
	}
	panic("no average")
}

func requireEMA(t require.TestingT, want []float64, opt optim.Optimizer, tolerance float64) {
	for i, w := range want {
		require.InDelta(t, w, emaOf(opt, i), tolerance, "element %d", i)
	}
}

// TestSwap puts averages in the place of values and back. In between the optimizer does nothing.
func TestSwap(t *testing.T) {
	for _, n := range []int{3, 1<<16 + 5} {
		w, u := newTensor(n, false), newTensor(2, true)
		rng := rand.New(rand.NewPCG(1, 2))
		fill(w.value, rng)
		fill(u.value, rng)
		var told []string
		var bad error
		params := append(whole("w", w), whole("u", u)...)
		params[0].Updated = func(u optim.Update) { told = append(told, u.Facts()[0]) }
		params[0].Ready = func() error { return bad }
		params[1].Absent = func() bool { return true }
		opt := compose(t, newOptimizer(t, optim.AdamW{}, params[:1]), newOptimizer(t, optim.SGD{}, params[1:]))
		require.NoError(t, optim.EMA(opt, 0.5))
		for range 3 {
			fill(w.grad, rng)
			require.NoError(t, opt.Step(0.1))
		}
		value, average, still := clone(w.value), clone(opt.State()[2].Data.(optim.Host)), clone(u.value)
		require.NotEqual(t, value, average)
		bad = errors.New("in the middle")
		require.ErrorIs(t, optim.Swap(opt), bad)
		require.Equal(t, value, w.value)
		bad = nil
		state := opt.State()
		require.NoError(t, optim.Swap(opt))
		require.Equal(t, average, w.value)
		require.Equal(t, value, opt.State()[2].Data)
		require.Equal(t, still, u.value, "what has had no update has no average")
		for _, err := range []error{opt.Step(0.1), opt.Restore(3, state), opt.Adopt(3, state), optim.Params(opt)[0].Ready()} {
			require.ErrorIs(t, err, optim.ErrSwapped)
		}
		bad = errors.New("in the middle")
		require.ErrorIs(t, optim.Swap(opt), bad)
		bad = nil
		require.NoError(t, optim.Swap(opt))
		require.Equal(t, value, w.value)
		require.Equal(t, average, opt.State()[2].Data)
		require.Equal(t, 3, opt.Steps())
		require.NoError(t, opt.Step(0.1))
		require.Equal(t, []string{"AdamW", "AdamW", "AdamW", "Swap", "Swap", "AdamW"}, told)
	}
}

// TestEMAErrors are of arguments, and change nothing.
func TestEMAErrors(t *testing.T) {
	d := newTensor(3, false)
	opt := newOptimizer(t, optim.SGD{Momentum: 0.5}, whole("w", d))
	for _, decay := range []float64{0, 1, -1, 2} {
		require.ErrorContains(t, optim.EMA(opt, decay), "optim: ema: the decay is ")
	}
	require.ErrorContains(t, optim.EMA(nil, 0.5), "is not of this package")
	require.ErrorContains(t, optim.Swap(nil), "is not of this package")
	require.EqualError(t, optim.Swap(opt), "optim: swap: sgd keeps no averages, see EMA")
	broken, fails := errors.New("disk full"), false
	params := whole("w", d)
	params[0].Alloc = func(n int) (optim.Vec, error) {
		if fails {
			return nil, broken
		}
		return newTensor(n, false).value, nil
	}
	tight := newOptimizer(t, optim.SGD{Momentum: 0.5}, params)
	fails = true
	require.ErrorIs(t, optim.EMA(tight, 0.5), broken)
	require.Len(t, tight.State(), 1)
	require.NoError(t, optim.EMA(opt, 0.5))
	require.EqualError(t, optim.EMA(opt, 0.5), "optim: ema: sgd: it already keeps averages: call EMA once")
	require.Equal(t, 0.5, optim.Groups(opt)[0].EMA)

	_, err := optim.Regroup(tight, optim.Groups(opt))
	require.ErrorContains(t, err, `parameter "w": EMA cannot change from 0 to 0.5: only an optimizer with EMA has an average`)
	groups := optim.Groups(opt)
	groups[0].EMA = 0.25
	apply, err := optim.Regroup(opt, groups)
	require.NoError(t, err)
	apply()
	require.Equal(t, 0.25, optim.Groups(opt)[0].EMA)
	for i, x := range []float64{8, 4, 0} {
		set(d.value, i, x)
	}
	require.NoError(t, opt.Step(0))
	set(d.value, 0, 16)
	require.NoError(t, opt.Step(0))
	require.Equal(t, 14.0, emaOf(opt, 0), "8/4 + 16·3/4")
}

// TestEMAAllocatesNothing in a Step.
func TestEMAAllocatesNothing(t *testing.T) {
	opt := compose(t,
		newOptimizer(t, optim.AdamW{Bits: 8}, whole("a", newTensor(5000, false))),
		newOptimizer(t, optim.SGD{}, whole("b", newTensor(4, true))))
	require.NoError(t, optim.EMA(opt, 0.99))
	for _, e := range opt.State() {
		_, full := e.Data.(optim.Host)
		require.Equal(t, e.Name == "ema", full, "averages are not in 8 bits")
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = opt.Step(0.1) }))
}

func BenchmarkEMA(b *testing.B) {
	for _, average := range []bool{false, true} {
		b.Run(map[bool]string{false: "without", true: "with"}[average], func(b *testing.B) {
			d := newTensor(1<<20, false)
			fill(d.value, rand.New(rand.NewPCG(1, 1)))
			fill(d.grad, rand.New(rand.NewPCG(1, 2)))
			opt, err := optim.AdamW{}.New(whole("w", d))
			require.NoError(b, err)
			if average {
				require.NoError(b, optim.EMA(opt, 0.999))
			}
			b.SetBytes(4 << 20)
			for b.Loop() {
				_ = opt.Step(1e-3)
			}
		})
	}
}

// TestUpdateEMA moves averages as EMA does, to the bit and without an allocation. Parameters are found by
// name, and may be in another order and more.
func TestUpdateEMA(t *testing.T) {
	for _, f64 := range []bool{false, true} {
		w, b, teacher, other := newTensor(50, f64), newTensor(7, f64), newTensor(50, f64), newTensor(7, f64)
		rng := rand.New(rand.NewPCG(1, 2))
		fill(w.value, rng)
		fill(b.value, rng)
		params := append(append(whole("further", newTensor(3, f64)), whole("b", b)...), whole("w", w)...)
		frozen := append(whole("w", teacher), whole("b", other)...)
		frozen[0].Grad, frozen[1].Grad = nil, nil
		opt := newOptimizer(t, optim.SGD{}, params)
		require.NoError(t, optim.EMA(opt, 0.9))
		for step := range 4 {
			fill(w.grad, rng)
			fill(b.grad, rng)
			require.NoError(t, opt.Step(0.1))
			decay := 0.9
			if step == 0 {
				decay = 0
			}
			require.NoError(t, optim.UpdateEMA(frozen, params, decay))
			for _, e := range opt.State() {
				switch e.Param {
				case "w":
					require.Equal(t, e.Data, frozen[0].Value)
				case "b":
					require.Equal(t, e.Data, frozen[1].Value)
				}
			}
		}
		require.Zero(t, testing.AllocsPerRun(10, func() { _ = optim.UpdateEMA(frozen, params, 0.9) }))
	}
}

// TestUpdateEMARefuses gives UpdateEMA wrong arguments: each is an error, and no value changes.
func TestUpdateEMARefuses(t *testing.T) {
	unready := errors.New("not now")
	for want, change := range map[string]func(e, p *optim.Param){
		`parameter "w" has no parameter of this name to follow`:                                      func(e, _ *optim.Param) { e.Name = "w" },
		`parameter "b" has shape [2 2], and the parameter that it follows has [4]`:                   func(e, _ *optim.Param) { e.Shape = []int{2, 2} },
		`this rank owns elements [1:4] of parameter "b", and [0:3] of the parameter that it follows`: func(e, p *optim.Param) { e.Offset, e.Value, p.Value = 1, e.Value.Slice(1, 4), p.Value.Slice(0, 3) },
		`parameter "b" is float64, and the parameter that it follows is float32`:                     func(e, _ *optim.Param) { e.Value = optim.Host{F64: make([]float64, 4)} },
		"optim: UpdateEMA: not now": func(e, _ *optim.Param) { e.Ready = func() error { return unready } },
		"not now":                   func(_, p *optim.Param) { p.Ready = func() error { return unready } },
	} {
		a, b, c, d := newTensor(4, false), newTensor(4, false), newTensor(4, false), newTensor(4, false)
		set(c.value, 0, 1)
		frozen, params := append(whole("a", a), whole("b", b)...), append(whole("a", c), whole("b", d)...)
		change(&frozen[1], &params[1])
		require.ErrorContains(t, optim.UpdateEMA(frozen, params, 0.5), want)
		require.Zero(t, a.value.F32[0])
	}
	for _, decay := range []float64{-0.1, 1, math.NaN()} {
		require.ErrorContains(t, optim.UpdateEMA(nil, nil, decay), "must be at least 0 and less than 1")
	}
}
