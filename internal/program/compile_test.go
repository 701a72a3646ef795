package program

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFigure holds the programs in the package comment against real ones.
func TestFigure(t *testing.T) {
	p := text(compiled(t, chain(6), Options{Prefetch: 1}))
	require.Contains(t, p, "free h.0 · gather h.2 · wait h.1 · forward h.1 · free h.1 · gather h.3 · wait h.2 · forward h.2 · ")
	require.Contains(t, p, " · free h.2 · drain h.3 · reduce h.2 · gather h.0 · wait h.1 · backward h.1 · free h.1 · drain h.2 · reduce h.1 · ")
	p = text(compiled(t, chain(6).each(func(g *Group) { g.Replicas = 2 }), Options{Prefetch: 1}))
	require.Contains(t, p, " · free h.1 · drain h.3 · sync h.2 · reduce h.1 · wait h.0 · backward h.0 · free h.0 · drain h.2 · sync h.1 · ")
}

// TestCompileErrors are models with references that lead nowhere.
func TestCompileErrors(t *testing.T) {
	for want, spoil := range map[string]func(*Model){
		"program: model has no results":                                           func(m *Model) { m.Results = nil },
		"program: parameter 1 (h.1.w) is in group 2, but there are 2 groups":      func(m *Model) { m.Params[1].Group = 2 },
		"program: parameter 0 (h.0.w) is in group -1, but there are 2 groups":     func(m *Model) { m.Params[0].Group = -1 },
		"program: input 0 of call h.1 is {1 0}, which is not computed before it":  func(m *Model) { m.Calls[1].In[0] = Ref{1, 0} },
		"program: input 0 of call h.0 is {-1 1}, which is not computed before it": func(m *Model) { m.Calls[0].In[0].Out = 1 },
		"program: input 0 of call h.0 is {-2 0}, which is not computed before it": func(m *Model) { m.Calls[0].In[0].Call = -2 },
		"program: input 0 of call h.1 is {0 -1}, which is not computed before it": func(m *Model) { m.Calls[1].In[0].Out = -1 },
		"program: call h.1 uses parameter 2, but there are 2 parameters":          func(m *Model) { m.Calls[1].Params[0] = 2 },
		"program: call h.1 uses parameter h.1.w twice":                            func(m *Model) { m.Calls[1].Params = []int{1, 0, 1} },
		"program: result 0 is {2 0}, which no call computes":                      func(m *Model) { m.Results[0].Call = 2 },
		"program: result 0 is {-1 0}, which no call computes":                     func(m *Model) { m.Results[0].Call = Batch },
	} {
		m := chain(2)
		spoil(m)
		_, err := Compile(m, Options{})
		require.EqualError(t, err, want)
	}
}

// TestOptionErrors are options that mean nothing, or nothing for the model.
func TestOptionErrors(t *testing.T) {
	for want, o := range map[string]Options{
		"program: prefetch depth -1 is negative":                    {Prefetch: -1},
		"program: limit of -1 bytes in flight is negative":          {InFlight: -1},
		"program: an evaluation has no gradients":                   {Eval: true, NoSync: true},
		"program: Reads has 1 calls, but the model has 2":           {Reads: [][]bool{nil}},
		"program: Reads has 2 parameters for call h.1, which has 1": {Reads: [][]bool{{true}, {true, false}}},
		"program: Reads has 0 parameters for call h.0, which has 1": {Reads: [][]bool{{}, nil}},
	} {
		_, err := Compile(chain(2), o)
		require.EqualError(t, err, want)
	}
	_, err := Compile(chain(2), Options{Eval: true, Pending: true})
	require.EqualError(t, err, "program: an evaluation has no gradients")
}

// TestBoundlessPrefetch gathers everything at once.
func TestBoundlessPrefetch(t *testing.T) {
	deep := compiled(t, chain(5), Options{Prefetch: math.MaxInt})
	require.Equal(t, compiled(t, chain(5), Options{Prefetch: 10}).Ops, deep.Ops)
	require.Equal(t, 5, deep.Counts().Gathers)
}

// TestHash pins the hash of a program and changes it by every change of the model and of the
// schedule.
func TestHash(t *testing.T) {
	hash := func(m *Model, o Options) uint64 { return compiled(t, m, o).Hash() }
	const pinned = 0x7ac1a33ce443c9c1
	require.Equal(t, uint64(pinned), hash(chain(3), Options{Prefetch: 1}), "the same on every machine and in every run")
	seen := map[uint64]string{pinned: "the original"}
	distinct := func(what string, h uint64) {
		require.NotContains(t, seen, h, "%s has the hash of %s", what, seen[h])
		seen[h] = what
	}
	for what, o := range map[string]Options{
		"no prefetch":       {},
		"more prefetch":     {Prefetch: 2},
		"evaluation":        {Prefetch: 1, Eval: true},
		"no reductions":     {Prefetch: 1, NoSync: true},
		"gradients waiting": {Prefetch: 1, Pending: true},
		"both":              {Prefetch: 1, NoSync: true, Pending: true},
		"a limit":           {Prefetch: 1, InFlight: 150},
		"unread parameters": {Prefetch: 1, Reads: [][]bool{{false}, {false}, {false}}},
	} {
		distinct(what, hash(chain(3), o))
	}
	distinct("a longer chain", hash(chain(4), Options{Prefetch: 1}))
	for what, change := range map[string]func(*Model){
		"another input":          func(m *Model) { m.Inputs = 2 },
		"another result":         func(m *Model) { m.Results[0].Out = 1 },
		"more results":           func(m *Model) { m.Results = append(m.Results, Ref{0, 0}) },
		"another call name":      func(m *Model) { m.Calls[1].Name = "x" },
		"another parameter name": func(m *Model) { m.Params[1].Name = "x" },
		"another group name":     func(m *Model) { m.Groups[1].Name = "x" },
		"another unit":           func(m *Model) { m.Groups[1].Unit = "x" },
		"another hold":           func(m *Model) { m.Groups[2].Hold = Keep },
		"a frozen group":         func(m *Model) { m.Groups[1].Frozen = true },
		"another size":           func(m *Model) { m.Groups[1].Bytes = 1 },
		"another mesh":           func(m *Model) { m.Groups[1].Shards = 2 },
		"replicas":               func(m *Model) { m.Groups[1].Replicas = 2 },
		"second copy":            func(m *Model) { m.Groups[1].Second = 2 },
		"another edge":           func(m *Model) { m.Calls[2].In[0].Out = 1 },
		"a shared parameter":     func(m *Model) { m.Calls[2].Params = []int{0, 2} },
		"another grouping":       func(m *Model) { m.Params[1].Group = 0 },
	} {
		m := chain(3)
		change(m)
		distinct(what, hash(m, Options{Prefetch: 1}))
	}
}

// TestKind names the operations, and those that do not exist.
func TestKind(t *testing.T) {
	require.Equal(t, "drain", Drain.String())
	require.Equal(t, "kind(9)", Kind(9).String())
}

// BenchmarkCompile compiles and verifies a model of a thousand calls and 200 groups, with the
// window of one stage and with everything in the window. Both take time in proportion to the calls.
func BenchmarkCompile(b *testing.B) {
	m := chain(1000)
	for c := range m.Calls {
		m.Params[c].Group = c / 5
	}
	m.Groups = m.Groups[:200]
	for name, prefetch := range map[string]int{"one": 1, "all": math.MaxInt} {
		b.Run(fmt.Sprint("window=", name), func(b *testing.B) {
			for b.Loop() {
				compiled(b, m, Options{Prefetch: prefetch})
			}
		})
	}
}
