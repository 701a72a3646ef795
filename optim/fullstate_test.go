package optim_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the parameters of a test, whole: what one process trains, and its twin that ranks hold
// in pieces.
type model struct {
	kinds     []config       // of the parameter groups
	names     []string       // of the parameters
	kind      map[string]int // of a parameter
	shape     map[string][]int
	one, many map[string]tensorData
	absent    map[string]bool // now
}

func drawModel(t *rapid.T, rng *rand.Rand) *model {
	m := &model{
		kinds:  []config{optim.AdamW{WeightDecay: 0.1}, optim.SGD{Momentum: 0.9}, optim.SGD{}},
		kind:   make(map[string]int),
		shape:  make(map[string][]int),
		one:    make(map[string]tensorData),
		many:   make(map[string]tensorData),
		absent: make(map[string]bool),
	}
	f64 := rapid.Bool().Draw(t, "f64")
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		m.names = append(m.names, name)
		m.kind[name] = rapid.IntRange(0, len(m.kinds)-1).Draw(t, "kind of "+name)
		m.shape[name] = rapid.SliceOfN(rapid.IntRange(0, 6), 0, 3).Draw(t, "shape of "+name)
		n := 1
		for _, d := range m.shape[name] {
			n *= d
		}
		m.one[name], m.many[name] = newTensor(n, f64), newTensor(n, f64)
		fill(m.one[name].value, rng)
		copyVec(m.many[name].value, m.one[name].value)
	}
	return m
}

// dress gives pieces of a parameter what cut does not know.
func (m *model) dress(pieces []optim.Param) []optim.Param {
	for i := range pieces {
		p := &pieces[i]
		p.Shape = m.shape[p.Name]
		p.Absent = func() bool { return m.absent[p.Name] }
	}
	return pieces
}

// single makes one optimizer of each kind over whole parameters, as one process has without
// Compose.
func (m *model) single(t *rapid.T) (opts []optim.Optimizer) {
	for k, c := range m.kinds {
		var params []optim.Param
		for _, name := range m.names {
			if m.kind[name] == k {
				params = append(params, m.dress(whole(name, m.one[name]))...)
			}
		}
		opt, err := c.New(params)
		require.NoError(t, err)
		opts = append(opts, opt)
	}
	return opts
}

// ranks cuts all parameters at random and deals the pieces to a random number of ranks.
func (m *model) ranks(t *rapid.T) (opts []optim.Optimizer) {
	params := make([][]optim.Param, rapid.IntRange(1, 4).Draw(t, "world"))
	for _, name := range m.names {
		for _, p := range m.dress(cut(t, name, m.many[name])) {
			r := rapid.IntRange(0, len(params)-1).Draw(t, "rank")
			params[r] = append(params[r], p)
		}
	}
	for _, own := range params {
		var parts []optim.Optimizer
		for k, c := range m.kinds {
			foreign := func(p optim.Param) bool { return m.kind[p.Name] != k }
			part, err := c.New(slices.DeleteFunc(slices.Clone(own), foreign)) // often empty
			require.NoError(t, err)
			parts = append(parts, part)
		}
		if rapid.Bool().Draw(t, "nested") {
			inner, err := optim.Compose(parts[:2]...)
			require.NoError(t, err)
			parts = []optim.Optimizer{inner, parts[2]}
		}
		opt, err := optim.Compose(parts...)
		require.NoError(t, err)
		opts = append(opts, opt)
	}
	return opts
}

// step is one step of the process and of the ranks.
func (m *model) step(t *rapid.T, rng *rand.Rand, single, ranks []optim.Optimizer) {
	for _, name := range m.names {
		fill(m.one[name].grad, rng)
		copyVec(m.many[name].grad, m.one[name].grad)
		m.absent[name] = rapid.IntRange(0, 3).Draw(t, "absent") == 0
	}
	for _, opt := range slices.Concat(single, ranks) {
		require.NoError(t, opt.Step(0.1))
	}
}

// joined puts pieces of state together into whole tensors.
func joined(t require.TestingT, steps int, entries []optim.Entry) *optim.FullState {
	full, there := &optim.FullState{Steps: steps, Params: make(map[string]optim.FullParam)}, make(map[string]int)
	for _, e := range entries {
		n := 1
		for _, d := range e.Shape {
			n *= d
		}
		p, ok := full.Params[e.Param]
		if !ok {
			p = optim.FullParam{Shape: e.Shape, Steps: e.Steps, Entries: make(map[string]optim.Host)}
			full.Params[e.Param] = p
		}
		require.Equal(t, p.Steps, e.Steps, e.Param)
		if _, ok := p.Entries[e.Name]; !ok {
			p.Entries[e.Name] = newTensor(n, e.Data.Float64()).value
			there[e.Param+e.Name] = -n
		}
		require.NoError(t, e.Data.Read(slice(p.Entries[e.Name], e.Offset, e.Offset+e.Data.Len())))
		there[e.Param+e.Name] += e.Data.Len()
	}
	for name, missing := range there {
		require.Zero(t, missing, name)
	}
	return full
}

// check compares values, and the state of all ranks joined, which it returns, with the one process.
func (m *model) check(t *rapid.T, single, ranks []optim.Optimizer) *optim.FullState {
	require.Equal(t, m.one, m.many)
	state := func(opts []optim.Optimizer) (entries []optim.Entry) {
		for _, opt := range opts {
			require.Equal(t, single[0].Steps(), opt.Steps())
			entries = append(entries, opt.State()...)
		}
		return entries
	}
	full := joined(t, single[0].Steps(), state(ranks))
	require.Equal(t, joined(t, single[0].Steps(), state(single)), full)
	return full
}

// A job of several kinds of optimizers, at any cut over any ranks, has the state of one process,
// and continues at another cut over other ranks with the bits of one process.
func TestFullStateAcrossRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m := drawModel(t, rng)
		single := m.single(t)
		ranks := m.ranks(t)
		for range 2 {
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				m.step(t, rng, single, ranks)
			}
			full := m.check(t, single, ranks)
			full.Extra = map[string]any{"scale": 2.0}
			next := m.ranks(t)
			for _, opt := range next {
				if rapid.Bool().Draw(t, "restore") {
					require.NoError(t, opt.Restore(full.Steps, full.Entries()))
				} else {
					require.NoError(t, opt.Adopt(full.Steps, full.Entries()))
				}
			}
			require.Equal(t, map[string]any{"scale": 2.0}, full.Extra)
			ranks = next
			m.step(t, rng, single, ranks)
		}
		m.check(t, single, ranks)
	})
}

// ramp is n elements that differ, from one on.
func ramp(n int) optim.Host {
	v := optim.Host{F32: make([]float32, n)}
	for i := range v.F32 {
		v.F32[i] = float32(i + 1)
	}
	return v
}

func TestFullStateEntries(t *testing.T) {
	w, b := ramp(10), optim.Host{F32: []float32{5}}
	full := &optim.FullState{Params: map[string]optim.FullParam{
		"w": {Shape: []int{2, 5}, Steps: 3, Entries: map[string]optim.Host{"exp_avg_sq": w, "exp_avg": w}},
		"b": {Shape: []int{1}, Steps: 2, Entries: map[string]optim.Host{"momentum_buffer": b}},
		"c": {Shape: []int{4}}, // no state
	}}
	entries := full.Entries()
	require.Equal(t, []optim.Entry{
		{Param: "b", Name: "momentum_buffer", Shape: []int{1}, Steps: 2, Data: b},
		{Param: "w", Name: "exp_avg", Shape: []int{2, 5}, Steps: 3, Data: w},
		{Param: "w", Name: "exp_avg_sq", Shape: []int{2, 5}, Steps: 3, Data: w},
	}, entries)
	require.Same(t, &w.F32[0], &entries[1].Data.(optim.Host).F32[0], "no copy")
	require.Empty(t, (&optim.FullState{}).Entries())
}

// What a state lacks is for Restore and Adopt to judge.
func TestFullStateLacks(t *testing.T) {
	w, u := newTensor(4, false), newTensor(4, false)
	params := append(whole("w", w), whole("u", u)...)
	opt := newOptimizer(t, optim.SGD{Momentum: 0.5}, params)
	full := &optim.FullState{Steps: 5, Params: map[string]optim.FullParam{
		"w": {Shape: []int{4}, Steps: 5, Entries: map[string]optim.Host{"momentum_buffer": ramp(4)}},
	}}
	require.ErrorContains(t, opt.Restore(full.Steps, full.Entries()), `momentum_buffer of parameter "u": element 0 is missing`)
	require.NoError(t, opt.Adopt(full.Steps, full.Entries()))
	require.Equal(t, ramp(4), opt.State()[0].Data)
	require.Zero(t, opt.State()[1].Steps)
	plain := newOptimizer(t, optim.SGD{}, params)
	require.NoError(t, plain.Restore(5, (&optim.FullState{}).Entries()))
	require.Equal(t, 5, plain.Steps())
}
