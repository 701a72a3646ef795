package fsdp

import (
	"reflect"
	"regexp"
)

// A Policy selects calls of a model. As Config.Wrap it groups parameters. The calls that it gives
// the same name form a unit, whose parameters are gathered, freed and reduced together. Those that
// it gives the name "" go to the root unit, which stays whole from its first use in a pass to its
// last. As Config.Checkpoint, Config.Keep or Config.Spill it selects the calls that it gives a
// name.
//
// It returns a name for each call, in order. It must be a pure function: every rank applies it.
type Policy func(calls []CallInfo) []string

// CallInfo describes a call to a Policy.
type CallInfo struct {
	Name   string
	Module Module
	Params []Param // that the call owns, with full names; empty for a repeated call
}

// Len returns the number of parameter elements that the call owns.
func (c CallInfo) Len() int { return countElements(c.Params) }

// WrapType makes a unit of each call of a module of type M, such as *nn.Block: of calls on the
// Tape, not of the parts that a module calls with Builder.Call.
func WrapType[M Module]() Policy {
	want := reflect.TypeFor[M]()
	return each(func(c CallInfo) string {
		if reflect.TypeOf(c.Module) == want {
			return c.Name
		}
		return ""
	})
}

// WrapEach makes a unit of every call.
func WrapEach() Policy { return each(func(c CallInfo) string { return c.Name }) }

// WrapNames makes a unit of the calls whose names match re, one for each different match: `^h\.\d+`
// puts the calls h.3.a and h.3.b in one unit, h.3.
func WrapNames(re *regexp.Regexp) Policy {
	return each(func(c CallInfo) string { return re.FindString(c.Name) })
}

// WrapMinParams makes units of calls that follow each other, closing a unit as soon as it has at
// least n elements. What is left at the end belongs to the root unit.
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

func each(name func(CallInfo) string) Policy {
	return func(calls []CallInfo) []string {
		names := make([]string, len(calls))
		for i, c := range calls {
			names[i] = name(c)
		}
		return names
	}
}
