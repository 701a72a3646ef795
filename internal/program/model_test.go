package program

import (
	"fmt"
	"math"
	"strings"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// chain returns a model of n calls h.0, h.1, …, each with a group of its own and the input of the
// next. The last is the loss.
func chain(n int) *Model {
	m := &Model{Inputs: 1}
	for i := range n {
		m.link(fmt.Sprint("h.", i), Use)
	}
	return m
}

// rooted returns a chain of n calls between two of a root group that is kept: that of the embedding
// and the tied head.
func rooted(n int) *Model {
	m := &Model{Inputs: 1}
	m.link("root", Keep)
	for i := range n {
		m.link(fmt.Sprint("h.", i), Use)
	}
	m.Calls[0].Name = "embed"
	m.Calls = append(m.Calls, Call{"head", []Ref{{n, 0}}, []int{0}})
	m.Results = []Ref{{n + 1, 0}}
	return m
}

// link adds a call to the end of a chain, with a parameter and a group of its own, cut over four
// ranks.
func (m *Model) link(name string, hold Hold) {
	c := len(m.Calls)
	m.Groups = append(m.Groups, Group{Name: name, Hold: hold, Bytes: 100, Shards: 4})
	m.Params = append(m.Params, Param{name + ".w", c})
	m.Calls = append(m.Calls, Call{name, []Ref{{c - 1, 0}}, []int{c}})
	m.Results = []Ref{{c, 0}}
}

// each changes every group.
func (m *Model) each(change func(g *Group)) *Model {
	for g := range m.Groups {
		change(&m.Groups[g])
	}
	return m
}

// compiled returns the program of a model that is in order.
func compiled(t require.TestingT, m *Model, o Options) *Program {
	p, err := Compile(m, o)
	require.NoError(t, err)
	require.NoError(t, Verify(p))
	return p
}

// text returns a program on one line.
func text(p *Program) string {
	var b strings.Builder
	p.Describe(&b)
	return strings.ReplaceAll(strings.TrimSpace(b.String()), "\n", " · ")
}

// randomModel draws a model: calls with any number of inputs, from the batch and from earlier
// calls, and of parameters, from any group and shared at will; calls that the loss does not need;
// several results; groups of every kind.
func randomModel(t *rapid.T) *Model {
	m := &Model{Inputs: rapid.IntRange(1, 3).Draw(t, "inputs")}
	for g := range rapid.IntRange(1, 6).Draw(t, "groups") {
		m.Groups = append(m.Groups, Group{
			Name: fmt.Sprint("g", g), Unit: rapid.SampledFrom([]string{"", "", "u", "v"}).Draw(t, "unit"),
			Hold:   rapid.SampledFrom([]Hold{Use, Use, Keep, Always}).Draw(t, "hold"),
			Frozen: rapid.IntRange(0, 2).Draw(t, "frozen") == 0, Bytes: rapid.IntRange(0, 20).Draw(t, "bytes"),
			Shards: rapid.IntRange(0, 4).Draw(t, "shards"), Replicas: rapid.IntRange(0, 3).Draw(t, "replicas"),
			Second: rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "second copy over"),
		})
	}
	for p := range rapid.IntRange(0, 10).Draw(t, "params") {
		m.Params = append(m.Params, Param{fmt.Sprint("p", p), rapid.IntRange(0, len(m.Groups)-1).Draw(t, "group")})
	}
	for c := range rapid.IntRange(1, 10).Draw(t, "calls") {
		call := Call{Name: fmt.Sprint("c", c)}
		for range rapid.IntRange(0, 3).Draw(t, "fan-in") {
			call.In = append(call.In, randomInput(t, m))
		}
		for p := range m.Params {
			if rapid.IntRange(0, 3).Draw(t, "uses") == 0 {
				call.Params = append(call.Params, p)
			}
		}
		m.Calls = append(m.Calls, call)
	}
	for range rapid.IntRange(1, 3).Draw(t, "results") {
		m.Results = append(m.Results, randomOutput(t, m, 0))
	}
	return m
}

// outputs is the number of outputs of every call of a random model.
const outputs = 2

// randomInput draws a tensor of the batch or an output of an earlier call, mostly of one just
// before.
func randomInput(t *rapid.T, m *Model) Ref {
	if len(m.Calls) == 0 || rapid.IntRange(0, 4).Draw(t, "batch") == 0 {
		return Ref{Batch, rapid.IntRange(0, m.Inputs-1).Draw(t, "tensor")}
	}
	if rapid.IntRange(0, 4).Draw(t, "far") == 0 {
		return randomOutput(t, m, 0)
	}
	return randomOutput(t, m, len(m.Calls)-2)
}

// randomOutput draws an output of call from, or of a later one.
func randomOutput(t *rapid.T, m *Model, from int) Ref {
	return Ref{rapid.IntRange(max(0, from), len(m.Calls)-1).Draw(t, "call"), rapid.IntRange(0, outputs-1).Draw(t, "output")}
}

// randomOptions draws a schedule for a model.
func randomOptions(t *rapid.T, m *Model) Options {
	o := Options{
		Prefetch: rapid.SampledFrom([]int{0, 1, 1, 2, 3, 4, math.MaxInt}).Draw(t, "prefetch"),
		Eval:     rapid.IntRange(0, 3).Draw(t, "eval") == 0,
		InFlight: rapid.SampledFrom([]int{0, 1, 10, 20, 40}).Draw(t, "in flight"),
	}
	if !o.Eval {
		o.NoSync, o.Pending = rapid.Bool().Draw(t, "no sync"), rapid.Bool().Draw(t, "pending")
	}
	if rapid.Bool().Draw(t, "reads") {
		o.Reads = make([][]bool, len(m.Calls))
		for c, call := range m.Calls {
			if n := len(call.Params); rapid.Bool().Draw(t, "reads of call") {
				o.Reads[c] = rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "read")
			}
		}
	}
	return o
}

// randomProgram compiles a random model.
func randomProgram(t *rapid.T) *Program {
	m := randomModel(t)
	p, err := Compile(m, randomOptions(t, m))
	require.NoError(t, err)
	return p
}

// finds returns the groups that an operation finds gathered, straight from the meaning of the
// fields.
func finds(p *Program, op Op) []int {
	var list []int
	if op.Call < 0 {
		return list
	}
	for j, q := range p.Model.Calls[op.Call].Params {
		unread := op.Kind == Backward && p.Options.Reads != nil && p.Options.Reads[op.Call] != nil && !p.Options.Reads[op.Call][j]
		if g := p.Model.Params[q].Group; !unread && p.Model.Groups[g].Hold != Always {
			list = append(list, g)
		}
	}
	return list
}

// writes returns the groups whose gradients an operation writes.
func writes(p *Program, op Op) []int {
	var list []int
	if op.Kind == Backward {
		for _, q := range p.Model.Calls[op.Call].Params {
			if g := p.Model.Params[q].Group; !p.Model.Groups[g].Frozen {
				list = append(list, g)
			}
		}
	}
	return list
}
