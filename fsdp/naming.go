package fsdp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// A naming says how parameters of the model appear in a file or state.
type naming struct {
	names      []string // by parameter of the model
	transposed []bool
	text       string // all of it, to be compared with the other ranks'
}

// naming asks the options. Names must be one-to-one, and what is transposed must be a matrix.
func (s *Sharded) naming(o *stateOptions) (naming, error) {
	n := naming{}
	var b strings.Builder
	fmt.Fprintf(&b, "options %s\nAs %v\n", slices.Sorted(slices.Values(o.given)), o.dtype)
	err := ranks.Guarded(func() error {
		model := make(map[string]string) // names in the model by those there
		for _, p := range s.trace.params {
			name, transposed := o.rename(p.Name), o.transposed(p.Name)
			if other, ok := model[name]; ok {
				return fmt.Errorf("Rename gives both %s and %s the name %q", other, p.Name, name)
			}
			if transposed && len(p.Shape) != 2 {
				return fmt.Errorf("Transpose selects %s %v, which has not two dimensions", p.Name, p.Shape)
			}
			model[name] = p.Name
			n.names, n.transposed = append(n.names, name), append(n.transposed, transposed)
			fmt.Fprintf(&b, "parameter %s is %q, transposed %t\n", p.Name, name, transposed)
		}
		return nil
	})
	n.text = b.String()
	return n, err
}

// of returns the name of a tensor there.
func (n *naming) of(t *stateTensor) string {
	return checkpoint.Key{Param: n.names[t.param], Entry: t.Entry, Owner: t.Owner}.Name()
}

// param returns the name there of the parameter that a tensor is about.
func (n *naming) param(t *stateTensor) string {
	return checkpoint.Key{Param: n.names[t.param], Owner: t.Owner}.Name()
}

// shape returns the shape of a tensor there.
func (n *naming) shape(t *stateTensor) []int {
	shape := slices.Clone(t.shape)
	if n.transposed[t.param] {
		slices.Reverse(shape)
	}
	return shape
}

// cols returns the columns of a matrix of the model that lies transposed there, or 0.
func (n *naming) cols(t *stateTensor) int {
	if !n.transposed[t.param] {
		return 0
	}
	return t.shape[1]
}
