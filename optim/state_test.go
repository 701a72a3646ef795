package optim_test

import (
	"math/rand/v2"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A job that is saved, cut anew and restored continues with the bits of one that never stopped.
func TestRestoreAcrossCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, f64 := drawConfig(t), rapid.Bool().Draw(t, "f64")
		n := rapid.IntRange(0, 100).Draw(t, "n")
		a, b := newTensor(n, f64), newTensor(n, f64)
		late, late2 := newTensor(n, f64), newTensor(n, f64) // absent at first: its count is another
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		fill(a.value, rng)
		fill(late.value, rng)
		unfrozen := rapid.IntRange(0, 4).Draw(t, "unfrozen")
		step := 0
		pieces := append(cut(t, "w", a), cut(t, "late", late)...)
		for i := range pieces {
			if pieces[i].Name == "late" {
				pieces[i].Absent = func() bool { return step < unfrozen }
			}
		}
		first, err := c.New(pieces)
		require.NoError(t, err)
		for step = range rapid.IntRange(0, 3).Draw(t, "steps") {
			fill(a.grad, rng)
			fill(late.grad, rng)
			require.NoError(t, first.Step(0.1))
		}

		saved := first.State()
		for i := range saved {
			saved[i].Data = clone(saved[i].Data.(optim.Host))
		}
		copyVec(b.value, a.value)
		copyVec(late2.value, late.value)
		second, err := c.New(append(cut(t, "w", b), cut(t, "late", late2)...))
		require.NoError(t, err)
		require.NoError(t, second.Restore(first.Steps(), rapid.Permutation(saved).Draw(t, "saved")))
		require.Equal(t, first.Steps(), second.Steps())
		for i := range saved { // Restore copied
			fill(saved[i].Data.(optim.Host), rng)
		}
		step = unfrozen
		for range 2 {
			fill(a.grad, rng)
			fill(late.grad, rng)
			copyVec(b.grad, a.grad)
			copyVec(late2.grad, late.grad)
			require.NoError(t, first.Step(0.1))
			require.NoError(t, second.Step(0.1))
		}
		require.Equal(t, a.value, b.value)
		require.Equal(t, late.value, late2.value)
	})
}

func copyVec(dst, src optim.Host) {
	copy(dst.F32, src.F32)
	copy(dst.F64, src.F64)
}

func TestStateNamesPieces(t *testing.T) {
	d := newTensor(5, false)
	params := []optim.Param{
		{Name: "a", Shape: []int{2, 4}, Offset: 3, Value: slice(d.value, 0, 5), Grad: slice(d.grad, 0, 5)},
		{Name: "b", Shape: []int{9}},
		{Name: "c", Shape: nil, Value: optim.Host{F64: []float64{1}}, Grad: optim.Host{F64: []float64{2}}},
	}
	opt, err := optim.Adam{Beta1: 0.5, Beta2: 0.5}.New(params)
	require.NoError(t, err)
	state := opt.State()
	require.NoError(t, opt.Step(0))
	zero := optim.Host{F32: make([]float32, 5)}
	require.Equal(t, []optim.Entry{
		{Param: "a", Name: "exp_avg", Shape: []int{2, 4}, Offset: 3, Data: zero},
		{Param: "a", Name: "exp_avg_sq", Shape: []int{2, 4}, Offset: 3, Data: zero},
		{Param: "c", Name: "exp_avg", Data: optim.Host{F64: []float64{1}}}, // entries are live
		{Param: "c", Name: "exp_avg_sq", Data: optim.Host{F64: []float64{2}}},
	}, state)

	momentum, err := optim.SGD{Momentum: 0.9}.New(params)
	require.NoError(t, err)
	require.Equal(t, "momentum_buffer", momentum.State()[0].Name)
	plain, err := optim.SGD{}.New(params)
	require.NoError(t, err)
	require.Empty(t, plain.State())
}

func TestRestoreErrors(t *testing.T) {
	d := newTensor(4, false)
	opt, err := optim.SGD{Momentum: 0.9}.New([]optim.Param{
		{Name: "w", Shape: []int{10}, Offset: 3, Value: d.value, Grad: d.grad},
	})
	require.NoError(t, err)
	entry := func(from, to int) optim.Entry {
		ones := make([]float32, to-from)
		for i := range ones {
			ones[i] = 1
		}
		return optim.Entry{Param: "w", Name: "momentum_buffer", Shape: []int{10}, Offset: from, Steps: 2, Data: optim.Host{F32: ones}}
	}
	other := func(steps int, e optim.Entry) optim.Entry {
		e.Steps = steps
		return e
	}
	edit := func(f func(*optim.Entry)) []optim.Entry {
		e := entry(0, 10)
		f(&e)
		return []optim.Entry{e}
	}
	for _, c := range []struct {
		steps   int
		entries []optim.Entry
		want    string
	}{
		{-1, edit(func(*optim.Entry) {}), "the number of steps is -1: must not be negative"},
		{1, nil, `momentum_buffer of parameter "w": element 3 is missing`},
		{1, []optim.Entry{entry(0, 5)}, "element 5 is missing"},
		{1, []optim.Entry{entry(4, 10)}, "element 3 is missing"},
		{1, []optim.Entry{entry(0, 5), entry(6, 10)}, "element 5 is missing"},
		{1, []optim.Entry{entry(4, 10), entry(0, 5)}, `momentum_buffer of parameter "w": element 4 occurs twice`},
		{1, edit(func(e *optim.Entry) { e.Param = "x" }), "element 3 is missing"},
		{1, edit(func(e *optim.Entry) { e.Name = "exp_avg" }), `parameter "w" has state "exp_avg", this optimizer keeps ["momentum_buffer"]`},
		{1, edit(func(e *optim.Entry) { e.Shape = []int{5, 2} }), `parameter "w": shape [5 2], parameter has [10]`},
		{1, edit(func(e *optim.Entry) { e.Data = optim.Host{F64: make([]float64, 10)} }), `parameter "w": state is float64, parameter float32`},
		{1, edit(func(e *optim.Entry) { e.Data = optim.Host{F32: make([]float32, 10), F64: []float64{}} }), `momentum_buffer of parameter "w": data is both`},
		{1, edit(func(e *optim.Entry) { e.Steps = -1 }), `momentum_buffer of parameter "w": the number of steps is -1`},
		{1, edit(func(e *optim.Entry) { e.Steps = 0 }), `parameter "w": elements [3:7] have made no step but are not zero`},
		{1, []optim.Entry{entry(0, 5), other(3, entry(5, 10))}, `parameter "w": elements [5:7] have made 3 steps, but other elements of this piece have made 2`},
	} {
		require.ErrorContains(t, opt.Restore(c.steps, c.entries), c.want)
		require.Zero(t, opt.Steps())
		require.Equal(t, make([]float32, 4), opt.State()[0].Data.(optim.Host).F32, "an error changes nothing")
	}
	foreign := entry(0, 2)
	foreign.Param = "x"
	elsewhere := other(9, entry(8, 10)) // not this piece's: whoever holds [7:9] has an error
	require.NoError(t, opt.Restore(5, []optim.Entry{elsewhere, foreign, entry(4, 8), entry(0, 4), entry(6, 6)}))
	require.Equal(t, []float32{1, 1, 1, 1}, opt.State()[0].Data.(optim.Host).F32)
	require.Equal(t, 5, opt.Steps())
	require.Equal(t, 2, opt.State()[0].Steps)
	zeros := edit(func(e *optim.Entry) { e.Steps, e.Data = 0, optim.Host{F32: make([]float32, 10)} })
	require.NoError(t, opt.Restore(5, zeros), "never updated")
	require.Zero(t, opt.State()[0].Steps)
}

// The two entries of a piece count the same updates.
func TestRestoreNamesMustAgree(t *testing.T) {
	d := newTensor(4, true)
	opt, err := optim.AdamW{}.New(whole("w", d))
	require.NoError(t, err)
	fill(d.grad, rand.New(rand.NewPCG(1, 1)))
	require.NoError(t, opt.Step(0.1))
	entries := opt.State()
	require.NoError(t, opt.Restore(1, entries))
	entries[1].Steps++
	require.ErrorContains(t, opt.Restore(1, entries), `exp_avg_sq of parameter "w": elements [0:4] have made 2 steps, but other elements of this piece have made 1`)
}
