package layout

import (
	"maps"
	"slices"

	"github.com/gofsdp/gofsdp/internal/program"
)

// # Absence
//
// A batch may lack tensors that its path calls optional, and values may be present under conditions
// of the batch. A call with an absent input is absent itself. A [Choice] ends that: it replaces an
// absent value with another. The present calls differ from rank to rank, but the schedule does not:
// it has all calls that some pass may run (Path.schedule), each after all that it may read. A pass
// runs it with the calls that are present (Path.At).

// A Choice is a value that is present under a condition, or is replaced by another. It stands for a
// value as if it were the output of call firstChoice - its index.
type Choice struct {
	Of   program.Ref
	When int         // of the conditions of the batch, or -1
	Or   program.Ref // replaces Of if that is absent; its Call is program.None if nothing does
}

const firstChoice = program.None - 1

// ChoiceRef returns the value of choice i.
func ChoiceRef(i int) program.Ref { return program.Ref{Call: firstChoice - i} }

// choice returns the choice that r stands for, or nil.
func (p *Path) choice(r program.Ref) *Choice {
	if r.Call > firstChoice {
		return nil
	}
	return &p.Choices[firstChoice-r.Call]
}

// lookup returns the value that r stands for in a pass, an input or an output of a call, and
// whether it is present. given says which inputs, and then which conditions, are present; calls
// says the same of calls.
func (p *Path) lookup(r program.Ref, given, calls []bool) (program.Ref, bool) {
	c := p.choice(r)
	switch {
	case r.Call == program.None:
		return r, false
	case r.Call == program.Batch:
		return r, given[r.Out]
	case c == nil:
		return r, calls[r.Call]
	}
	if of, is := p.lookup(c.Of, given, calls); is && (c.When < 0 || given[p.Inputs+c.When]) {
		return of, true
	}
	return p.lookup(c.Or, given, calls)
}

// At returns the model of a pass, or of an evaluation, without choices. given says which inputs,
// and then which conditions of the path, are present. Calls that it does not run have no inputs,
// and absent results are of program.None.
func (p *Path) At(all *program.Model, eval bool, given []bool) *program.Model {
	m := *all
	m.Calls, m.Results, m.Losses = slices.Clone(all.Calls), nil, 0
	calls := make([]bool, len(p.Calls))
	for i := range p.Calls {
		var in []program.Ref
		calls[i] = true
		for _, r := range p.Calls[i].In {
			r, is := p.lookup(r, given, calls)
			calls[i] = calls[i] && is
			in = append(in, r)
		}
		if m.Calls[i].In = in; !calls[i] {
			m.Calls[i].In = nil
		}
	}
	for _, r := range p.Results {
		r, is := p.lookup(r, given, calls)
		if !is {
			r.Call = program.None
		}
		m.Results = append(m.Results, r)
	}
	for i, need := range m.NeedsForward(m.Ends(eval)) {
		if !need {
			m.Calls[i].In = nil
		}
	}
	return &m
}

// Absent reports which results are absent in a pass without any of its optional inputs and
// conditions.
func (p *Path) Absent() []bool {
	given := make([]bool, p.Inputs+p.Conditions)
	for i := range p.Inputs {
		given[i] = !p.optional(i)
	}
	m := p.At(&program.Model{Calls: make([]program.Call, len(p.Calls))}, true, given)
	absent := make([]bool, len(m.Results))
	for i, r := range m.Results {
		absent[i] = r.Call == program.None
	}
	return absent
}

func (p *Path) optional(input int) bool { return slices.Contains(p.Optional, input) }

// Varies reports whether a pass may lack an input or a result.
func (p *Path) Varies() bool { return len(p.Optional)+p.Conditions > 0 }

// Alternatives returns the values that r may stand for: inputs and outputs of calls.
func (p *Path) Alternatives(r program.Ref) []program.Ref {
	c := p.choice(r)
	switch {
	case r.Call == program.None:
		return nil
	case c == nil:
		return []program.Ref{r}
	}
	return append(p.Alternatives(c.Of), p.Alternatives(c.Or)...)
}

// flat returns the alternatives of all values.
func (p *Path) flat(list []program.Ref) []program.Ref {
	if len(p.Choices) == 0 {
		return list
	}
	var all []program.Ref
	for _, r := range list {
		all = append(all, p.Alternatives(r)...)
	}
	return all
}

// schedule describes the path to the scheduler, with the parameters and groups of like: each call
// comes after all that it may read.
func (p *Path) schedule(like *program.Model) *program.Model {
	m := &program.Model{Inputs: p.Inputs, Params: like.Params, Groups: like.Groups, Results: p.flat(p.Results)}
	if len(p.Choices) > 0 {
		m.Losses = len(p.Alternatives(p.Results[0]))
	}
	for _, c := range p.Calls {
		m.Calls = append(m.Calls, program.Call{Name: c.Name, In: p.flat(c.In), Params: c.Params})
	}
	return m
}

// Certain reports, by call, whether every training pass runs the call and uses every output of it
// that any pass uses. Facts about the gradients of these calls do not depend on the batch.
func (p *Path) Certain() []bool {
	always := p.needs(p.Results[0], make([]map[program.Ref]bool, len(p.Calls)))
	m := p.schedule(&program.Model{})
	used, certain := m.NeedsForward(m.Ends(false)), make([]bool, len(p.Calls))
	for r := range always {
		certain[r.Call] = true
	}
	for i, c := range m.Calls {
		for _, r := range c.In {
			if used[i] && r.Call != program.Batch && !always[r] {
				certain[r.Call] = false
			}
		}
	}
	return certain
}

// needs returns the outputs of calls that every pass needs for r, including r. memo keeps the
// results for the inputs of calls.
func (p *Path) needs(r program.Ref, memo []map[program.Ref]bool) map[program.Ref]bool {
	if r.Call == program.Batch || r.Call == program.None {
		return nil
	}
	all := make(map[program.Ref]bool)
	if c := p.choice(r); c != nil {
		if c.Or.Call == program.None {
			return p.needs(c.Of, memo)
		}
		or := p.needs(c.Or, memo)
		for r := range p.needs(c.Of, memo) {
			if or[r] {
				all[r] = true
			}
		}
		return all
	}
	if memo[r.Call] == nil {
		memo[r.Call] = make(map[program.Ref]bool)
		for _, in := range p.Calls[r.Call].In {
			maps.Copy(memo[r.Call], p.needs(in, memo))
		}
	}
	maps.Copy(all, memo[r.Call])
	all[r] = true
	return all
}

// Votes are words in which each rank reports which parameters have a gradient in a pass. They cover
// the parameters of calls that some passes may do without. If ranks have different parameters of
// one name, each set of ranks has a word.
type Votes struct {
	Words int
	Of    []int // by parameter: this rank's word, or -1
}

// votes returns the votes on training passes.
func (l *Layout) votes() Votes {
	v := Votes{Of: slices.Repeat([]int{-1}, len(l.Model.Params))}
	path := l.Model.Paths[""]
	if path == nil || !path.Varies() {
		return v
	}
	certain := path.Certain()
	sure := make([]bool, len(v.Of))
	for i, c := range path.Calls {
		for _, q := range c.Params {
			sure[q] = sure[q] || certain[i]
		}
	}
	for q := range v.Of {
		if g := &l.Groups[l.Home[q].Group]; !sure[q] && !g.Kind.Buffer {
			owners := g.Owners()
			v.Of[q] = v.Words + slices.Index(owners, g.Owner(0))
			v.Words += len(owners)
		}
	}
	return v
}
