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

// A parameter that is absent at times has the bits of one that is alone in its optimizer, which is
// called only when there is a gradient. That is freezing at first (absent, then present), freezing
// later, and everything else.
func TestAbsent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f64 := drawConfig(t), rapid.Bool().Draw(t, "f64")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		const params, steps, n = 3, 6, 20
		var absent [params]bool
		var asked, updates [params]int
		var together, alone [params]tensorData
		var list []optim.Param
		var singles [params]optim.Optimizer
		for k := range params {
			together[k], alone[k] = newTensor(n, f64), newTensor(n, f64)
			fill(together[k].value, rng)
			copyVec(alone[k].value, together[k].value)
			p := whole(string(rune('a'+k)), together[k])[0]
			p.Absent = func() bool { asked[k]++; return absent[k] }
			list = append(list, p)
			var err error
			singles[k], err = c.New(whole(p.Name, alone[k]))
			require.NoError(t, err)
		}
		opt, err := c.New(list)
		require.NoError(t, err)
		for step := range steps {
			lr := 0.1 / float64(step+1)
			for k := range params {
				fill(together[k].grad, rng)
				copyVec(alone[k].grad, together[k].grad)
				if absent[k] = rapid.Bool().Draw(t, "absent"); absent[k] {
					continue
				}
				updates[k]++
				require.NoError(t, singles[k].Step(lr))
			}
			require.NoError(t, opt.Step(lr))
			require.Equal(t, step+1, opt.Steps(), "absent or not, it is a step of the schedule")
			require.Equal(t, alone, together)
			var want []optim.Entry
			for k := range params {
				require.Equal(t, step+1, asked[k], "once a step")
				want = append(want, singles[k].State()...)
			}
			require.Equal(t, want, opt.State(), "counts included")
		}
		for _, e := range opt.State() {
			require.Equal(t, updates[e.Param[0]-'a'], e.Steps)
		}
	})
}

// What the gradient buffer of an absent piece holds is nobody's business, and weight decay leaves
// the piece alone, too.
func TestAbsentLooksAtNothing(t *testing.T) {
	for _, c := range []config{
		optim.SGD{WeightDecay: 0.1}, optim.SGD{Momentum: 0.9, WeightDecay: 0.1}, optim.Adam{WeightDecay: 0.1}, optim.AdamW{WeightDecay: 0.1},
	} {
		d := tensorData{optim.Host{F64: []float64{1, 2}}, optim.Host{F64: []float64{math.NaN(), math.Inf(1)}}}
		params := whole("w", d)
		params[0].Absent = func() bool { return true }
		opt, err := c.New(params)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, opt.Step(0.5))
		}
		require.Equal(t, []float64{1, 2}, d.value.F64)
		for _, e := range opt.State() {
			require.Equal(t, []float64{0, 0}, e.Data.(optim.Host).F64)
			require.Zero(t, e.Steps)
		}
	}
}

// Momentum begins with the first gradient of the piece itself, whatever its buffer held before.
func TestMomentumBeginsAtFirstPresence(t *testing.T) {
	d := tensorData{optim.Host{F64: []float64{0}}, optim.Host{F64: []float64{1}}}
	absent := true
	params := whole("w", d)
	params[0].Absent = func() bool { return absent }
	opt, err := optim.SGD{Momentum: 0.5}.New(params)
	require.NoError(t, err)
	require.NoError(t, opt.Step(1))
	opt.State()[0].Data.(optim.Host).F64[0] = 100
	absent = false
	require.NoError(t, opt.Step(1))
	require.NoError(t, opt.Step(1))
	require.Equal(t, []float64{-2.5}, d.value.F64, "b = 1, 1.5")
}

func TestAllocPlacesState(t *testing.T) {
	for _, f64 := range []bool{false, true} {
		d := newTensor(5, f64)
		var given []optim.Vec
		params := whole("w", d)
		params[0].Alloc = func(n int) (optim.Vec, error) {
			v := newTensor(n, f64).value
			fill(v, rand.New(rand.NewPCG(1, 1))) // New clears it
			given = append(given, v)
			return v, nil
		}
		params = append(params, optim.Param{Name: "empty", Shape: []int{4}, Offset: 4, Alloc: func(int) (optim.Vec, error) {
			return optim.Host{}, errors.New("asked for nothing")
		}})
		opt, err := optim.AdamW{}.New(params)
		require.NoError(t, err)
		require.Len(t, given, 2)
		for i, v := range given {
			require.Equal(t, make([]float64, 5), wide(v.(optim.Host)))
			fill(v.(optim.Host), rand.New(rand.NewPCG(2, uint64(i))))
			require.Equal(t, v, opt.State()[i].Data, "the optimizer's own buffer")
		}
		plain, err := optim.SGD{}.New(params)
		require.NoError(t, err)
		require.Empty(t, plain.State())
		require.Len(t, given, 2, "no state, no buffer")
	}
}

func TestAllocErrors(t *testing.T) {
	broken := errors.New("disk full")
	five, four := make([]float32, 5), make([]float32, 4)
	for _, c := range []struct {
		vec  optim.Vec
		err  error
		want string
	}{
		{optim.Host{}, broken, `optim: adamw: exp_avg of parameter "w": Alloc of 5 elements: disk full`},
		{optim.Host{}, nil, "Alloc returned 0 elements of float32, not 5 of float32"},
		{optim.Host{F32: four}, nil, "Alloc returned 4 elements"},
		{optim.Host{F64: make([]float64, 5)}, nil, "Alloc returned 5 elements of float64, not 5 of float32"},
		{optim.Host{F32: five, F64: []float64{}}, nil, "both float32 and float64"},
	} {
		params := whole("w", newTensor(5, false))
		params[0].Alloc = func(int) (optim.Vec, error) { return c.vec, c.err }
		_, err := optim.AdamW{}.New(params)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, `parameter "w"`)
		if c.err != nil {
			require.ErrorIs(t, err, c.err)
		}
	}
}

// The second half of a job trains other parameters: b stays, a is frozen and left out, c is new.
// What remains of the old optimizer goes on with its bits and c starts as in an optimizer of its
// own, however all is cut.
func TestAdoptAcrossFreezing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f64 := drawConfig(t), rapid.Bool().Draw(t, "f64")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		tensors := make(map[string]tensorData)
		for _, name := range []string{"a", "b", "c", "b'", "c'"} {
			tensors[name] = newTensor(30, f64)
			fill(tensors[name].value, rng)
		}
		old, err := c.New(append(cut(t, "a", tensors["a"]), cut(t, "b", tensors["b"])...))
		require.NoError(t, err)
		fresh, err := c.New(cut(t, "c", tensors["c"]))
		require.NoError(t, err)
		step := func(opts ...optim.Optimizer) {
			for _, name := range []string{"a", "b", "c"} {
				fill(tensors[name].grad, rng)
				if twin, ok := tensors[name+"'"]; ok {
					copyVec(twin.grad, tensors[name].grad)
				}
			}
			for _, o := range opts {
				require.NoError(t, o.Step(0.1))
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "steps") {
			step(old)
		}
		copyVec(tensors["b'"].value, tensors["b"].value)
		copyVec(tensors["c'"].value, tensors["c"].value)
		next, err := c.New(append(cut(t, "b", tensors["b'"]), cut(t, "c", tensors["c'"])...))
		require.NoError(t, err)
		require.NoError(t, next.Adopt(old.Steps(), rapid.Permutation(old.State()).Draw(t, "state")))
		require.Equal(t, old.Steps(), next.Steps())
		for range 3 {
			step(old, fresh, next)
		}
		require.Equal(t, tensors["b"].value, tensors["b'"].value)
		require.Equal(t, tensors["c"].value, tensors["c'"].value)
	})
}

func TestAdoptErrors(t *testing.T) {
	w, u := newTensor(4, false), newTensor(2, false)
	params := append(whole("w", w), whole("u", u)...)
	opt, err := optim.Adam{}.New(params)
	require.NoError(t, err)
	fill(w.grad, rand.New(rand.NewPCG(1, 1)))
	require.NoError(t, opt.Step(0.1))
	entry := func(name string, from, to int) optim.Entry {
		return optim.Entry{Param: "w", Name: name, Shape: []int{4}, Offset: from, Steps: 3, Data: optim.Host{F32: []float32{9, 9, 9, 9}[from:to]}}
	}
	before := opt.State()
	for i := range before {
		before[i].Data = clone(before[i].Data.(optim.Host))
	}
	for _, c := range []struct {
		steps   int
		entries []optim.Entry
		want    string
	}{
		{-1, nil, "optim: adopt: the number of steps is -1: must not be negative"},
		{3, []optim.Entry{entry("exp_avg", 0, 4)}, `adopt: exp_avg_sq of parameter "w": element 0 is missing`},
		{3, []optim.Entry{entry("exp_avg", 0, 4), entry("exp_avg_sq", 0, 3)}, `exp_avg_sq of parameter "w": element 3 is missing`},
		{3, []optim.Entry{entry("exp_avg", 1, 4), entry("exp_avg_sq", 0, 4)}, `exp_avg of parameter "w": element 0 is missing`},
		{3, []optim.Entry{entry("momentum_buffer", 0, 4)}, `has state "momentum_buffer"`},
	} {
		require.ErrorContains(t, opt.Adopt(c.steps, c.entries), c.want)
		require.Equal(t, before, opt.State(), "an error changes nothing")
		require.Equal(t, 1, opt.Steps())
	}
	empty := entry("exp_avg", 2, 2)
	require.NoError(t, opt.Adopt(5, []optim.Entry{empty}), "an empty entry is about nothing")
	require.Equal(t, before, opt.State())
	require.NoError(t, opt.Adopt(7, []optim.Entry{entry("exp_avg", 0, 4), entry("exp_avg_sq", 0, 4)}))
	require.Equal(t, 7, opt.Steps())
	after := opt.State()
	require.Equal(t, []float32{9, 9, 9, 9}, after[0].Data.(optim.Host).F32)
	require.Equal(t, 3, after[1].Steps)
	require.Equal(t, before[2:], after[2:], "u stays as it is")
}
