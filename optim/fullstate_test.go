package optim_test

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
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
func (m *model) ranks(t *rapid.T) (opts []optim.Optimizer, params [][]optim.Param) {
	params = make([][]optim.Param, rapid.IntRange(1, 4).Draw(t, "world"))
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
	return opts, params
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

// check compares values, and the state of all ranks joined, which it returns, with the one process.
func (m *model) check(t *rapid.T, single, ranks []optim.Optimizer) *optim.FullState {
	require.Equal(t, m.one, m.many)
	var entries []optim.Entry
	for _, opt := range ranks {
		require.Equal(t, single[0].Steps(), opt.Steps())
		entries = append(entries, opt.State()...)
	}
	full, err := optim.Consolidate(ranks[0].Steps(), rapid.Permutation(entries).Draw(t, "entries"))
	require.NoError(t, err)
	want := &optim.FullState{Steps: single[0].Steps(), Params: make(map[string]optim.FullParam)}
	for _, opt := range single {
		for _, e := range opt.State() {
			if _, ok := want.Params[e.Param]; !ok {
				want.Params[e.Param] = optim.FullParam{Shape: m.shape[e.Param], Steps: e.Steps, Entries: make(map[string]optim.Host)}
			}
			want.Params[e.Param].Entries[e.Name] = e.Data.(optim.Host)
		}
	}
	require.Equal(t, len(want.Params), len(full.Params))
	for name, p := range want.Params {
		require.ElementsMatch(t, slices.Collect(maps.Keys(p.Entries)), slices.Collect(maps.Keys(full.Params[name].Entries)))
		require.Equal(t, p.Entries, full.Params[name].Entries, name)
		require.Equal(t, p.Steps, full.Params[name].Steps, name)
		require.True(t, slices.Equal(p.Shape, full.Params[name].Shape), name)
	}
	return full
}

// A job of several kinds of optimizers, at any cut over any ranks, has the state of one process,
// and continues at another cut over other ranks with the bits of one process.
func TestFullStateAcrossRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m := drawModel(t, rng)
		single := m.single(t)
		ranks, _ := m.ranks(t)
		for range 2 {
			for range rapid.IntRange(0, 3).Draw(t, "steps") {
				m.step(t, rng, single, ranks)
			}
			full := m.check(t, single, ranks)
			full.Extra = map[string]any{"scale": 2.0}
			next, params := m.ranks(t)
			for r, opt := range next {
				entries, err := full.Shard(params[r])
				require.NoError(t, err)
				switch rapid.IntRange(0, 2).Draw(t, "how") {
				case 0:
					require.NoError(t, opt.Restore(full.Steps, entries))
				case 1:
					require.NoError(t, opt.Adopt(full.Steps, entries))
				default:
					require.NoError(t, opt.Restore(full.Steps, full.Entries()), "more than a rank needs")
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

// stateOf is elements [from, to) of an entry of parameter "w" [2 5] that holds ramp.
func stateOf(name string, from, to int) optim.Entry {
	return optim.Entry{Param: "w", Name: name, Shape: []int{2, 5}, Offset: from, Steps: 3, Data: slice(ramp(10), from, to)}
}

func TestConsolidateErrors(t *testing.T) {
	m, v := "exp_avg", "exp_avg_sq"
	edit := func(e optim.Entry, f func(*optim.Entry)) optim.Entry {
		f(&e)
		return e
	}
	for _, c := range []struct {
		steps   int
		entries []optim.Entry
		want    string
	}{
		{-1, nil, "optim: consolidate: -1 steps"},
		{1, []optim.Entry{stateOf(m, 3, 10)}, `optim: consolidate: exp_avg of parameter "w": elements [0:3] are missing`},
		{1, []optim.Entry{stateOf(m, 0, 3), stateOf(m, 5, 10)}, `exp_avg of parameter "w": elements [3:5] are missing`},
		{1, []optim.Entry{stateOf(m, 0, 10), stateOf(v, 0, 9)}, `exp_avg_sq of parameter "w": elements [9:10] are missing`},
		{1, []optim.Entry{stateOf(m, 0, 0)}, `exp_avg of parameter "w": elements [0:10] are missing`},
		{1, []optim.Entry{stateOf(m, 4, 10), stateOf(m, 0, 6)}, `exp_avg of parameter "w": elements [4:6] are there twice`},
		{1, []optim.Entry{stateOf(m, 0, 10), stateOf(m, 0, 10)}, `exp_avg of parameter "w": elements [0:10] are there twice`},
		{1, []optim.Entry{stateOf(m, 0, 10), stateOf(m, 2, 3)}, `elements [2:3] are there twice`},
		{1, []optim.Entry{stateOf(m, 0, 4), edit(stateOf(m, 4, 10), func(e *optim.Entry) { e.Shape = []int{10} })},
			`exp_avg of parameter "w": elements [4:10] are of shape [10], exp_avg [0:4] of [2 5]`},
		{1, []optim.Entry{stateOf(m, 0, 10), edit(stateOf(v, 0, 10), func(e *optim.Entry) { e.Shape = []int{5, 2} })},
			`exp_avg_sq of parameter "w": elements [0:10] are of shape [5 2], exp_avg [0:10] of [2 5]`},
		{1, []optim.Entry{stateOf(m, 0, 4), edit(stateOf(m, 4, 10), func(e *optim.Entry) { e.Steps = 2 })},
			`exp_avg of parameter "w": elements [4:10] have had 2 steps, exp_avg [0:4] 3`},
		{1, []optim.Entry{stateOf(m, 0, 10), edit(stateOf(v, 0, 10), func(e *optim.Entry) { e.Steps = 4 })},
			`exp_avg_sq of parameter "w": elements [0:10] have had 4 steps, exp_avg [0:10] 3`},
		{1, []optim.Entry{edit(stateOf(m, 0, 10), func(e *optim.Entry) { e.Steps = -2 })}, `elements [0:10] have had -2 steps`},
		{1, []optim.Entry{stateOf(m, 0, 4), edit(stateOf(m, 4, 10), func(e *optim.Entry) { e.Data = optim.Host{F64: make([]float64, 6)} })},
			`exp_avg of parameter "w": elements [4:10] are float64, [0:4] float32`},
		{1, []optim.Entry{edit(stateOf(m, 0, 10), func(e *optim.Entry) { e.Data = optim.Host{F32: make([]float32, 10), F64: []float64{}} })}, `elements [0:10] are both float32 and float64`},
		{1, []optim.Entry{edit(stateOf(m, 0, 4), func(e *optim.Entry) { e.Offset = -1 })}, `elements [-1:3] are outside shape [2 5]`},
		{1, []optim.Entry{edit(stateOf(m, 0, 4), func(e *optim.Entry) { e.Offset = 7 })}, `elements [7:11] are outside shape [2 5]`},
		{1, []optim.Entry{edit(stateOf(m, 0, 4), func(e *optim.Entry) { e.Offset = math.MaxInt })}, `are outside shape [2 5]`},
		{1, []optim.Entry{edit(stateOf(m, 0, 10), func(e *optim.Entry) { e.Shape = []int{-2, -5} })}, `"w": negative dimension in shape [-2 -5]`},
		{1, []optim.Entry{edit(stateOf(m, 0, 10), func(e *optim.Entry) { e.Shape = []int{math.MaxInt, 2} })}, `"w": shape`},
		{1, []optim.Entry{edit(stateOf(m, 0, 10), func(e *optim.Entry) { e.Shape = []int{math.MaxInt} })},
			`exp_avg of parameter "w": elements [10:9223372036854775807] are missing`}, // not allocated
		{1, []optim.Entry{edit(stateOf(m, 0, 10), func(e *optim.Entry) { e.Param = "" })}, "no name"},
	} {
		full, err := optim.Consolidate(c.steps, c.entries)
		require.ErrorContains(t, err, c.want)
		require.Nil(t, full)
	}
}

// Losing or doubling any one piece is noticed.
func TestConsolidateNoticesEveryPiece(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newTensor(rapid.IntRange(1, 30).Draw(t, "n"), false)
		opt, err := optim.AdamW{}.New(cut(t, "w", d))
		require.NoError(t, err)
		entries := opt.State()
		_, err = optim.Consolidate(0, entries)
		require.NoError(t, err)
		i := rapid.IntRange(0, len(entries)-1).Draw(t, "piece")
		_, err = optim.Consolidate(0, append(slices.Clone(entries), entries[i]))
		require.ErrorContains(t, err, "twice")
		if len(entries) > 2 { // otherwise a whole entry is left
			_, err = optim.Consolidate(0, slices.Delete(entries, i, i+1))
			require.ErrorContains(t, err, "missing")
		}
	})
}

// What Consolidate returns is no optimizer's memory, and survives its own lists.
func TestConsolidateCopies(t *testing.T) {
	entries := []optim.Entry{
		stateOf("exp_avg", 0, 10),
		{Param: "none", Name: "exp_avg", Shape: []int{0, 3}, Steps: 1}, // a tensor, too
		{Param: "scalar", Name: "exp_avg", Steps: 2, Data: optim.Host{F64: []float64{7}}},
		stateOf("exp_avg", 5, 5), // what a rank may say of a parameter that it has nothing of
	}
	full, err := optim.Consolidate(9, entries)
	require.NoError(t, err)
	want := &optim.FullState{Steps: 9, Params: map[string]optim.FullParam{
		"w":      {Shape: []int{2, 5}, Steps: 3, Entries: map[string]optim.Host{"exp_avg": ramp(10)}},
		"none":   {Shape: []int{0, 3}, Steps: 1, Entries: map[string]optim.Host{"exp_avg": {F32: []float32{}}}},
		"scalar": {Steps: 2, Entries: map[string]optim.Host{"exp_avg": {F64: []float64{7}}}},
	}}
	require.Equal(t, want, full)
	clear(entries[0].Data.(optim.Host).F32)
	entries[0].Shape[0] = 10
	require.Equal(t, want, full)
	again, err := optim.Consolidate(9, full.Entries())
	require.NoError(t, err)
	require.Equal(t, want, again)

	none, err := optim.Consolidate(4, nil)
	require.NoError(t, err)
	require.Equal(t, &optim.FullState{Steps: 4, Params: map[string]optim.FullParam{}}, none, "plain SGD")
	require.Empty(t, none.Entries())
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

	part, err := full.Shard([]optim.Param{
		{Name: "w", Shape: []int{2, 5}, Offset: 6, Value: ramp(3)},
		{Name: "c", Shape: []int{4}, Value: ramp(4)},
		{Name: "unknown", Shape: []int{4}, Value: ramp(4)},
		{Name: "w", Shape: []int{2, 5}, Offset: 0}, // nothing of it
		{Name: "b", Shape: []int{1}, Value: ramp(1)},
	})
	require.NoError(t, err)
	require.Equal(t, []optim.Entry{
		{Param: "w", Name: "exp_avg", Shape: []int{2, 5}, Offset: 6, Steps: 3, Data: slice(w, 6, 9)},
		{Param: "w", Name: "exp_avg_sq", Shape: []int{2, 5}, Offset: 6, Steps: 3, Data: slice(w, 6, 9)},
		{Param: "b", Name: "momentum_buffer", Shape: []int{1}, Steps: 2, Data: b},
	}, part)
	require.Same(t, &w.F32[6], &part[0].Data.(optim.Host).F32[0], "no copy")
	require.Equal(t, 3, cap(part[0].Data.(optim.Host).F32), "appending does not write to the rest")
}

func TestShardErrors(t *testing.T) {
	full := &optim.FullState{Params: map[string]optim.FullParam{
		"w":     {Shape: []int{2, 5}, Entries: map[string]optim.Host{"exp_avg": ramp(10)}},
		"short": {Shape: []int{4}, Entries: map[string]optim.Host{"exp_avg": ramp(4), "exp_avg_sq": ramp(3)}},
		"both":  {Shape: []int{1}, Entries: map[string]optim.Host{"exp_avg": {F32: []float32{}, F64: []float64{1}}}},
	}}
	fine := optim.Param{Name: "w", Shape: []int{2, 5}, Value: ramp(10)}
	entries, err := full.Shard([]optim.Param{
		{Name: "w", Shape: []int{5, 2}, Value: ramp(4)},
		{Name: "short", Shape: []int{4}, Value: ramp(2)},
		fine,
		{Name: "w", Shape: []int{5, 2}, Offset: 4, Value: ramp(6)},
		{Name: "w", Shape: []int{2, 5}, Offset: 5, Value: ramp(6)},
		{Name: "both", Shape: []int{1}, Value: ramp(1)},
	})
	require.EqualError(t, err, `optim: shard: parameter "w": state has shape [2 5], parameter [5 2]; `+
		`exp_avg_sq of parameter "short": 3 elements, shape [4] has 4; `+
		`parameter "w": elements [5:11] are outside shape [2 5]; `+
		`exp_avg of parameter "both": data is both float32 and float64`)
	require.Nil(t, entries)

	var many []optim.Param
	for n := range 20 {
		many = append(many, optim.Param{Name: "w", Shape: []int{n}})
	}
	_, err = full.Shard(many)
	require.ErrorContains(t, err, "parameter [7]; and 12 more")
	require.Equal(t, 8, strings.Count(err.Error(), "state has shape"))
}

// What a state lacks is for Restore and Adopt to judge.
func TestShardLacks(t *testing.T) {
	w, u := newTensor(4, false), newTensor(4, false)
	params := append(whole("w", w), whole("u", u)...)
	opt, err := optim.SGD{Momentum: 0.5}.New(params)
	require.NoError(t, err)
	full := &optim.FullState{Steps: 5, Params: map[string]optim.FullParam{
		"w": {Shape: []int{4}, Steps: 5, Entries: map[string]optim.Host{"momentum_buffer": ramp(4)}},
	}}
	entries, err := full.Shard(params)
	require.NoError(t, err)
	require.ErrorContains(t, opt.Restore(full.Steps, entries), `momentum_buffer of parameter "u": element 0 is missing`)
	require.NoError(t, opt.Adopt(full.Steps, entries))
	require.Equal(t, ramp(4), opt.State()[0].Data)
	require.Zero(t, opt.State()[1].Steps)
	plain, err := optim.SGD{}.New(params)
	require.NoError(t, err)
	require.NoError(t, plain.Restore(5, (&optim.FullState{}).Entries()))
	require.Equal(t, 5, plain.Steps())
}
