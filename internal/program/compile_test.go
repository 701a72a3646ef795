package program

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chain returns a model of n calls h.0, h.1, …, each with a group of its own and the input of the next. The last is the
// loss.
func chain(n int) *Model {
	m := &Model{Inputs: 1, Groups: []Group{{Name: "root"}}}
	for i := range n {
		name, in := fmt.Sprint("h.", i), Ref{i - 1, 0}
		if i == 0 {
			in = Ref{Batch, 0}
		}
		m.Groups = append(m.Groups, Group{name})
		m.Params = append(m.Params, Param{name + ".w", i + 1})
		m.Calls = append(m.Calls, Call{name, []Ref{in}, []int{i}})
	}
	m.Results = []Ref{{n - 1, 0}}
	return m
}

// text returns a program on one line.
func text(p *Program) string {
	var b strings.Builder
	p.Describe(&b)
	return strings.ReplaceAll(strings.TrimSpace(b.String()), "\n", " · ")
}

// TestFigure holds the program in the package comment against a real one.
func TestFigure(t *testing.T) {
	p, err := Compile(chain(6), Options{Prefetch: 1})
	require.NoError(t, err)
	require.Contains(t, text(p), "free h.0 · gather h.2 · wait h.1 · forward h.1 · free h.1 · gather h.3 · wait h.2 · forward h.2 · ")
	require.Contains(t, text(p), " · free h.2 · drain h.3 · reduce h.2 · gather h.0 · wait h.1 · backward h.1 · free h.1 · drain h.2 · reduce h.1 · ")
}

// TestCompileErrors are models with references that lead nowhere.
func TestCompileErrors(t *testing.T) {
	for want, spoil := range map[string]func(*Model){
		"program: model has no root group":                                        func(m *Model) { m.Groups = nil },
		"program: model has no results":                                           func(m *Model) { m.Results = nil },
		"program: parameter 1 (h.1.w) is in group 3 of 3":                         func(m *Model) { m.Params[1].Group = 3 },
		"program: parameter 0 (h.0.w) is in group -1 of 3":                        func(m *Model) { m.Params[0].Group = -1 },
		"program: input 0 of call h.1 is {1 0}, which is not computed before it":  func(m *Model) { m.Calls[1].In[0] = Ref{1, 0} },
		"program: input 0 of call h.0 is {-1 1}, which is not computed before it": func(m *Model) { m.Calls[0].In[0].Out = 1 },
		"program: input 0 of call h.0 is {-2 0}, which is not computed before it": func(m *Model) { m.Calls[0].In[0].Call = -2 },
		"program: input 0 of call h.1 is {0 -1}, which is not computed before it": func(m *Model) { m.Calls[1].In[0].Out = -1 },
		"program: call h.1 uses parameter 2 of 2":                                 func(m *Model) { m.Calls[1].Params[0] = 2 },
		"program: call h.1 uses parameter h.1.w twice":                            func(m *Model) { m.Calls[1].Params = []int{1, 0, 1} },
		"program: result 0 is {2 0}, which no call computes":                      func(m *Model) { m.Results[0].Call = 2 },
		"program: result 0 is {-1 0}, which no call computes":                     func(m *Model) { m.Results[0].Call = Batch },
	} {
		m := chain(2)
		spoil(m)
		_, err := Compile(m, Options{})
		require.EqualError(t, err, want)
	}
	_, err := Compile(chain(2), Options{Prefetch: -1})
	require.EqualError(t, err, "program: prefetch depth -1 is negative")
}

// TestBoundlessPrefetch gathers everything at once.
func TestBoundlessPrefetch(t *testing.T) {
	deep, err := Compile(chain(5), Options{Prefetch: math.MaxInt})
	require.NoError(t, err)
	require.NoError(t, Verify(deep))
	same, err := Compile(chain(5), Options{Prefetch: 10})
	require.NoError(t, err)
	require.Equal(t, same.Ops, deep.Ops)
}

// TestHash pins the hash of a program and changes it by every change of the model and of the schedule.
func TestHash(t *testing.T) {
	hash := func(m *Model, o Options) uint64 {
		p, err := Compile(m, o)
		require.NoError(t, err)
		return p.Hash()
	}
	const pinned = 0x154ddefe138c6789
	require.Equal(t, uint64(pinned), hash(chain(3), Options{Prefetch: 1}), "the same on every machine and in every run")
	seen := map[uint64]string{pinned: "the original"}
	distinct := func(what string, h uint64) {
		require.NotContains(t, seen, h, "%s has the hash of %s", what, seen[h])
		seen[h] = what
	}
	distinct("no prefetch", hash(chain(3), Options{}))
	distinct("more prefetch", hash(chain(3), Options{Prefetch: 2}))
	distinct("evaluation", hash(chain(3), Options{Prefetch: 1, Eval: true}))
	distinct("a longer chain", hash(chain(4), Options{Prefetch: 1}))
	for what, change := range map[string]func(*Model){
		"another input":          func(m *Model) { m.Inputs = 2 },
		"another result":         func(m *Model) { m.Results[0].Out = 1 },
		"more results":           func(m *Model) { m.Results = append(m.Results, Ref{0, 0}) },
		"another call name":      func(m *Model) { m.Calls[1].Name = "x" },
		"another parameter name": func(m *Model) { m.Params[1].Name = "x" },
		"another group name":     func(m *Model) { m.Groups[1].Name = "x" },
		"another edge":           func(m *Model) { m.Calls[2].In[0].Out = 1 },
		"a shared parameter":     func(m *Model) { m.Calls[2].Params = []int{0, 2} },
		"another grouping":       func(m *Model) { m.Params[1].Group = 1 },
	} {
		m := chain(3)
		change(m)
		distinct(what, hash(m, Options{Prefetch: 1}))
	}
}

// TestKind names the operations, and those that do not exist.
func TestKind(t *testing.T) {
	require.Equal(t, "drain", Drain.String())
	require.Equal(t, "kind(8)", Kind(8).String())
}
