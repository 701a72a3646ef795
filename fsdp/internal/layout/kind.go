package layout

import (
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
)

// A Kind is the properties that the parameters of one flat group share.
type Kind struct {
	Buffer  bool // untrained state of one rank
	Ignored bool // whole on every rank
	Frozen  bool // not trained
	Full    bool // never narrowed on the way

	// The types in which they and their gradients travel, in place of the types of Options; 0 keeps
	// those.
	Gather, Reduce comm.DType
}

// String names the unusual properties of the kind.
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
	if k.Gather != 0 {
		words = append(words, fmt.Sprintf("gather %s, reduce %s", traveling(k.Gather), traveling(k.Reduce)))
	}
	if words == nil {
		return "trained"
	}
	return strings.Join(words, " ")
}

// traveling names a type in which elements travel.
func traveling(t comm.DType) string {
	if t == comm.Uint8 {
		return "int8"
	}
	return t.String()
}

// label orders the kinds of a unit: the usual one comes first.
func (k Kind) label() string {
	if k == (Kind{}) {
		return ""
	}
	return k.String()
}
