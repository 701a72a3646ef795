package fsdp

import (
	"fmt"
	"strings"
)

// A StateError says that a file or state does not fit the model or its optimizer. Nothing has been changed, on any rank. Names are
// those of the file or state, in its order or the model's.
type StateError struct {
	Where    string   // the file, checkpoint or state
	Missing  []string // what the model has and the state lacks
	Extra    []string // what the state has and the model lacks
	Reshaped []string // what has another shape, as "name [shape there] -> [shape here]"
}

// Error implements error. It lists a few names of each kind: a model has thousands, and one wrong prefix renames them all.
func (e *StateError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s does not fit the model", e.Where)
	sep := ": "
	for _, kind := range []struct {
		label string
		names []string
	}{{"missing", e.Missing}, {"extra", e.Extra}, {"reshaped", e.Reshaped}} {
		if len(kind.names) == 0 {
			continue
		}
		const most = 5
		fmt.Fprintf(&b, "%s%s %s", sep, kind.label, strings.Join(kind.names[:min(most, len(kind.names))], ", "))
		if more := len(kind.names) - most; more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
		sep = "; "
	}
	return b.String()
}

// orNil returns e, or nil if it says nothing.
func (e *StateError) orNil() error {
	if len(e.Missing)+len(e.Extra)+len(e.Reshaped) == 0 {
		return nil
	}
	return e
}
