package layout

import "strings"

// A Kind is what the parameters of one flat group have in common.
type Kind struct {
	Buffer  bool // untrained state of one rank
	Ignored bool // whole on every rank
	Frozen  bool // not trained
	Full    bool // never narrowed on the way
}

// String names what is unusual about the kind.
func (k Kind) String() string {
	var words []string
	for _, w := range []struct {
		is   bool
		name string
	}{{k.Buffer, "buffers"}, {k.Ignored, "ignored"}, {k.Frozen && !k.Buffer, "frozen"}, {k.Full && !k.Buffer && !k.Ignored, "full"}} {
		if w.is {
			words = append(words, w.name)
		}
	}
	if words == nil {
		return "trained"
	}
	return strings.Join(words, " ")
}

// label orders the kinds of a unit: the usual one comes first.
func (k Kind) label() string {
	if k == (Kind{}) {
		return ""
	}
	return k.String()
}
