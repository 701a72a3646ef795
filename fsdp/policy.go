package fsdp

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"

	"github.com/gofsdp/gofsdp/internal/caught"
)

// A Policy selects calls of a model. As Config.WrapPolicy it groups parameters. Calls with the same name
// form a unit, whose parameters are gathered, freed and reduced together. Calls with the name "" go
// to the root unit, which stays whole from its first use in a pass to its last. As
// Config.Activations.Recompute, Config.Activations.Save or Config.Activations.Offload it selects the calls that it gives a name.
//
// It returns a name for each call, in order. It must be a pure function: every rank applies it.
type Policy func(calls []CallInfo) []string

// CallInfo describes a call to a Policy.
type CallInfo struct {
	Name   string
	Module Module
	Params []Param // that the call owns, with full names; empty for a repeated call

	notes *notes // of the library's policies, or nil
}

// notes collects the warnings of the library's policies about all calls of a model. A user's policy
// may show them a part of the calls, for which they warn of nothing.
type notes struct {
	calls int
	texts []string
}

// Len returns the number of parameter elements that the call owns.
func (c CallInfo) Len() int { return countElements(c.Params) }

// WrapTypes makes a unit of each call of a module that has the type of one of these, whose values
// do not matter: WrapTypes(&nn.Block{}, &Encoder{}). It selects calls on the Tape, not the parts
// that a module calls with Builder.Call. A type that no call has is a warning, which names a call
// that has it as a part.
func WrapTypes(modules ...Module) Policy {
	return func(calls []CallInfo) []string {
		names := make([]string, len(calls))
		for _, m := range modules {
			want, found := reflect.TypeOf(m), false
			for i, c := range calls {
				if reflect.TypeOf(c.Module) == want {
					names[i], found = c.Name, true
				}
			}
			if !found {
				note(calls, missing(want, calls))
			}
		}
		return names
	}
}

// missing returns the warning that no call is of that type, with the calls that have it as a part.
func missing(want reflect.Type, calls []CallInfo) string {
	if want == nil {
		return "WrapTypes was given a nil module"
	}
	where, param, more := "", "", 0
	for _, c := range calls {
		i := slices.IndexFunc(c.Params, func(p Param) bool { return slices.Contains(p.parts, want) })
		switch {
		case i < 0:
		case where == "":
			where, param = fmt.Sprintf("%s (%T)", c.Name, c.Module), c.Params[i].Name
		default:
			more++
		}
	}
	if where == "" {
		return fmt.Sprintf("no call is a %v", want)
	}
	if more > 0 {
		where += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("no call is a %v, but it is a part of %s, with parameter %s: select the type of the call, or call the part on the Tape", want, where, param)
}

// WrapEach makes a unit of every call.
func WrapEach() Policy { return each(func(c CallInfo) string { return c.Name }) }

// WrapNames makes a unit of the calls whose names match re, one for each different match: `^h\.\d+`
// puts the calls h.3.a and h.3.b in one unit, h.3.
func WrapNames(re *regexp.Regexp) Policy {
	return each(func(c CallInfo) string { return re.FindString(c.Name) })
}

// WrapMinParams makes units of calls that follow each other, closing a unit as soon as it has at
// least n elements. The remaining calls at the end belong to the root unit.
func WrapMinParams(n int) Policy {
	return func(calls []CallInfo) []string {
		names := make([]string, len(calls))
		first, total := 0, 0
		for i, c := range calls {
			if total += c.Len(); total >= n && total > 0 {
				for j := first; j <= i; j++ {
					names[j] = calls[first].Name
				}
				first, total = i+1, 0
			}
		}
		return names
	}
}

// WrapAny selects every call that one of the policies selects. The first policy that names a call
// names its unit. Each sees all calls; nil selects none. A policy that selects nothing is a
// warning.
func WrapAny(policies ...Policy) Policy {
	return func(calls []CallInfo) []string {
		all := make([]string, len(calls))
		for i, p := range policies {
			names := p.nested(fmt.Sprintf("policy %d of WrapAny", i+1), calls)
			if len(names) != len(calls) {
				return names // Wrap refuses that
			}
			for k, name := range names {
				all[k] = cmp.Or(all[k], name)
			}
		}
		return all
	}
}

// WrapAllBut makes a unit of each call that p does not select. If p selects nothing, that is a
// warning, unless p is nil.
func WrapAllBut(p Policy) Policy {
	return func(calls []CallInfo) []string {
		names := slices.Clone(p.nested("the policy of WrapAllBut", calls))
		for i := range min(len(names), len(calls)) {
			if names[i] != "" {
				names[i] = ""
			} else {
				names[i] = calls[i].Name
			}
		}
		return names
	}
}

// nested returns the names that p gives to the calls when it is a part of another policy.
func (p Policy) nested(place string, calls []CallInfo) []string {
	if p == nil {
		return make([]string, len(calls))
	}
	names := p(calls)
	if !slices.ContainsFunc(names, func(name string) bool { return name != "" }) {
		note(calls, place+" selects nothing")
	}
	return names
}

// note makes Wrap warn of a finding of a policy.
func note(calls []CallInfo, text string) {
	if len(calls) == 0 || calls[0].notes == nil {
		return
	}
	if n := calls[0].notes; len(calls) == n.calls && !slices.Contains(n.texts, text) {
		n.texts = append(n.texts, text)
	}
}

// apply returns p's names for the calls, checked, and keeps its warnings. A nil policy names none.
func (p Policy) apply(field string, tr *trace) (names []string, err error) {
	calls := tr.callInfos()
	if p == nil {
		return make([]string, len(calls)), nil
	}
	defer caught.Panic(&err, "policy Config."+field)
	n := &notes{calls: len(calls)}
	for i := range calls {
		calls[i].notes = n
	}
	if names = p(calls); len(names) != len(calls) {
		return nil, fmt.Errorf("policy Config.%s returned %d names for %d calls", field, len(names), len(calls))
	}
	tr.notes[field] = n.texts
	return names, nil
}

func each(name func(CallInfo) string) Policy {
	return func(calls []CallInfo) []string {
		names := make([]string, len(calls))
		for i, c := range calls {
			names[i] = name(c)
		}
		return names
	}
}
