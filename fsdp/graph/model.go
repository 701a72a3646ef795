package graph

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
)

// model is a graph as an fsdp.Model.
type model struct {
	inputs  []string
	calls   []call
	results []ref
}

// ref is an output of a call. If call is batch, it is a tensor of the batch.
type ref struct{ call, out int }

const batch = -1

// call is a call of the model.
type call struct {
	name   string
	module *module
	in     []ref
}

// Inputs names the batch tensors.
func (m *model) Inputs() []string { return m.inputs }

// Forward implements fsdp.Model.
func (m *model) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	outs := make([]fsdp.Ref, len(m.calls))
	find := func(refs []ref) (list []fsdp.Ref) {
		for _, r := range refs {
			if r.call == batch {
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

// newModel cuts the graph and makes a call of each part.
func newModel(r *reader, inputs, learnables gorgonia.Nodes) (*model, error) {
	m := &model{}
	for _, n := range inputs {
		m.inputs = append(m.inputs, n.Name())
	}
	r.nameParams(learnables)
	cuts := cut(r)
	r.settle(cuts)
	var parts []*part
	taken := make(map[string]bool) // names of calls, and full names of parameters
	for n, list := range cuts {
		p := newPart(r, n, list)
		c := call{name: p.name(taken)}
		for _, i := range p.inputs {
			c.in = append(c.in, r.values[i].home)
		}
		if err := p.compile(parts); err != nil {
			return nil, fmt.Errorf("call %q: %w", c.name, err)
		}
		c.module = p.module
		parts, m.calls = append(parts, p), append(m.calls, c)
	}
	for _, n := range r.results {
		m.results = append(m.results, r.values[r.index[n]].home)
	}
	return m, nil
}

// nameParams gives each learnable a unique name.
func (r *reader) nameParams(learnables gorgonia.Nodes) {
	taken := make(map[string]bool)
	for _, n := range learnables {
		name := newName(sanitized(n.Name()), func(s string) bool { return taken[s] })
		taken[name], r.values[r.index[n]].param = true, name
	}
}

// settle sets each computed value's call, and whether other calls read the value.
func (r *reader) settle(cuts [][]int) {
	for n, list := range cuts {
		for _, i := range list {
			r.values[i].home.call = n
			for _, from := range r.values[i].reads { // computed earlier
				v := &r.values[from]
				v.leaves = v.leaves || v.home.call != n
			}
		}
	}
	for _, n := range r.results {
		r.values[r.index[n]].leaves = true
	}
}

// name names the call of p, and its parameters that no earlier call owns.
func (p *part) name(taken map[string]bool) string {
	owned := func(q fsdp.Param) bool { return q.Tied == "" }
	base := "graph"
	if len(p.params) > 0 {
		base = p.params[max(slices.IndexFunc(p.params, owned), 0)].Name
	}
	name := newName(base, func(s string) bool {
		return taken[s] || slices.ContainsFunc(p.params, func(q fsdp.Param) bool {
			return owned(q) && taken[s+"."+q.Name]
		})
	})
	taken[name] = true
	for _, s := range p.steps {
		if s.origin == fromLearnable && s.full == "" {
			s.full = name + "." + s.param
			taken[s.full] = true
		}
	}
	return name
}

// sanitized returns a node's name in a form that the tape accepts.
func sanitized(name string) string {
	if name == "%!s(<nil>)()" { // Gorgonia's name for a leaf without a name
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
