package optim

import (
	"maps"
	"slices"
)

// FullState is the state of an optimizer over all ranks, by parameter name: the state that the
// optimizer of one process would have. It is only data, which other libraries can keep, send, edit
// or write.
type FullState struct {
	Steps  int                  // calls of Step
	Params map[string]FullParam // parameters that have state, by full name
	Groups []Group              // settings of the parameters; nil if they are unknown
	Extra  map[string]any       // the caller's own data; this package does not read it
}

// FullParam is the state of a whole parameter.
type FullParam struct {
	Shape   []int
	Steps   int             // number of updates that made the entries
	Entries map[string]Host // whole tensors of that shape, row-major, by name such as "exp_avg"
}

// Entries lists the state, sorted by parameter and entry. Each entry is whole, so any rank of any
// number of ranks can Restore or Adopt the list. The data is f's own memory.
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
