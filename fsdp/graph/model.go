package graph

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
)

// graphModel is a graph as a Model.
type graphModel struct {
	inputs  []string
	calls   []graphCall
	results []graphRef
}

// graphRef is an output of a call, or a batch tensor if call is -1.
type graphRef struct{ call, out int }

// graphCall is a call of the model.
type graphCall struct {
	name   string
	module *graphModule
	in     []graphRef
}

// Inputs names the batch tensors.
func (m *graphModel) Inputs() []string { return m.inputs }

// Forward implements Model.
func (m *graphModel) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	outs := make([]fsdp.Ref, len(m.calls))
	find := func(refs []graphRef) (list []fsdp.Ref) {
		for _, r := range refs {
			if r.call < 0 {
				list = append(list, in[r.out])
			} else {
				list = append(list, outs[r.call].At(r.out))
			}
		}
		return list
	}
	for i, c := range m.calls {
		outs[i] = t.Call(c.name, c.module, find(c.in)...)
	}
	return find(m.results), nil
}

// newGraphModel cuts the graph and makes a call of each part.
func newGraphModel(r *graphReader, inputs, learnables gorgonia.Nodes) (*graphModel, error) {
	m := &graphModel{}
	for _, n := range inputs {
		m.inputs = append(m.inputs, n.Name())
	}
	names := newGraphNames(learnables)
	parts := cutGraph(r)
	home := make(map[int]graphRef) // where other calls find a value
	for i := range r.values {
		if v := &r.values[i]; v.origin == fromBatch {
			home[i] = graphRef{-1, v.index}
		}
	}
	leaving := r.leaving(parts)
	var done []*graphPart
	for n, part := range parts {
		p := newGraphPart(r, part)
		for _, i := range part {
			if leaving[i] {
				home[i] = graphRef{n, len(p.outs)}
				p.outs = append(p.outs, p.local[i])
			}
		}
		c := graphCall{name: names.call(p)}
		for _, i := range p.inputs {
			c.in = append(c.in, home[i])
		}
		var err error
		if c.module, err = p.module(done); err != nil {
			return nil, fmt.Errorf("call %q: %w", c.name, err)
		}
		done, m.calls = append(done, p), append(m.calls, c)
	}
	for _, n := range r.results {
		m.results = append(m.results, home[r.index[n]])
	}
	return m, nil
}

// leaving returns the computed values that are used outside their part, or are results.
func (r *graphReader) leaving(parts [][]int) map[int]bool {
	leaving := make(map[int]bool)
	for _, n := range r.results {
		leaving[r.index[n]] = true
	}
	for _, part := range parts {
		inside := make(map[int]bool)
		for _, i := range part {
			inside[i] = true
		}
		for _, i := range part {
			for _, from := range r.values[i].reads {
				leaving[from] = leaving[from] || !inside[from]
			}
		}
	}
	return leaving
}

// graphNames names parameters and calls.
type graphNames struct {
	learnable []string       // by index, all different
	owner     map[int]string // full names of the learnables that a call has already
	taken     map[string]bool
}

func newGraphNames(learnables gorgonia.Nodes) *graphNames {
	g := &graphNames{owner: make(map[int]string), taken: make(map[string]bool)}
	local := make(map[string]bool)
	for _, n := range learnables {
		name := newName(sanitized(n.Name()), func(s string) bool { return local[s] })
		local[name] = true
		g.learnable = append(g.learnable, name)
	}
	return g
}

// call fills in the parameters of a part and names its call. Parameters that an earlier call has are tied to it.
func (g *graphNames) call(p *graphPart) string {
	first := -1 // that the call owns
	for i, id := range p.learnables {
		v := &p.values[id]
		param := fsdp.Param{Name: g.learnable[v.index], Shape: v.shape, Tied: g.owner[v.index]}
		if param.Tied == "" {
			param.Init = v.init()
			if first < 0 {
				first = i
			}
		}
		p.params = append(p.params, param)
	}
	base := "graph"
	if len(p.params) > 0 {
		base = p.params[max(first, 0)].Name
	}
	name := newName(base, func(s string) bool {
		return g.taken[s] || slices.ContainsFunc(p.params, func(p fsdp.Param) bool { return p.Tied == "" && g.taken[s+"."+p.Name] })
	})
	g.taken[name] = true
	for i, id := range p.learnables {
		if full := name + "." + p.params[i].Name; p.params[i].Tied == "" {
			g.owner[p.values[id].index], g.taken[full] = full, true
		}
	}
	return name
}

// sanitized returns a node's name as the tape takes it.
func sanitized(name string) string {
	if name == "" {
		return "unnamed"
	}
	return strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) || unicode.IsControl(c) || c == '#' {
			return '_'
		}
		return c
	}, name)
}

// newName returns base, with a suffix if it is taken.
func newName(base string, taken func(string) bool) string {
	name := base
	for i := 2; taken(name); i++ {
		name = fmt.Sprintf("%s@%d", base, i)
	}
	return name
}
