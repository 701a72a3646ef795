package optim

import (
	"maps"
	"slices"
)

// FullState is the state of an optimizer over all ranks, by parameter name: what the optimizer of
// one process would have. It is data only, to be kept, sent, edited or written by other means than
// this library's.
type FullState struct {
	Steps  int                  // calls of Step
	Params map[string]FullParam // parameters that have state, by full name
	Groups []Group              // what the parameters are updated with; nil if that is not known
	Extra  map[string]any       // the caller's own; nothing here looks at it
}

// FullParam is the state of a whole parameter.
type FullParam struct {
	Shape   []int
	Steps   int             // number of updates that made the entries
	Entries map[string]Host // whole tensors of that shape, row-major, by name such as "exp_avg"
}

// Entries lists the state, sorted by parameter and entry, each whole: what any rank of any number
// of ranks can Restore or Adopt. The data is f's own memory.
func (f *FullState) Entries() []Entry {
	var entries []Entry
	for _, param := range slices.Sorted(maps.Keys(f.Params)) {
		p := f.Params[param]
		for _, name := range slices.Sorted(maps.Keys(p.Entries)) {
			entries = append(entries, Entry{Param: param, Name: name, Shape: p.Shape, Steps: p.Steps, Data: p.Entries[name]})
		}
	}
	return entries
}
