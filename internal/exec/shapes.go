package exec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// rule is Row.Shapes, parsed.
type rule struct{ args, results []operandRule }

type operandRule struct {
	name  string
	isInt bool
	// isWide marks float32 where other values are bfloat16
	isWide bool
	// isAny accepts the stored form
	isAny bool
	dims  []string // nil if not given
}

func parseRule(s string) rule {
	args, results, _ := strings.Cut(s, "->")
	return rule{parseOperands(args, ", "), parseOperands(results, " | ")}
}

func parseOperands(s, separator string) (list []operandRule) {
	for text := range strings.SplitSeq(strings.TrimSpace(s), separator) {
		var o operandRule
		name, dims, said := strings.Cut(text, "[")
		if said {
			o.dims = strings.Fields(strings.TrimSuffix(dims, "]"))
		}
		o.name, o.isInt = strings.CutSuffix(strings.TrimSpace(name), " int")
		o.name, o.isWide = strings.CutSuffix(o.name, " f32")
		o.name, o.isAny = strings.CutSuffix(o.name, " any")
		o.name = strings.TrimSuffix(o.name, "?")
		if o.name != "" {
			list = append(list, o)
		}
	}
	return list
}

// Dim returns the size of a dimension in Row.Shapes. The operation of a gradient has the dimensions
// of the operation that it differentiates. Dim("...") is the product of the dimensions that it
// stands for, such as a number of rows.
func (o *Op) Dim(name string) int {
	n, known := o.lookup(name)
	if !known {
		panic(fmt.Sprintf("exec: %s has no dimension %q", o.Kind, name))
	}
	return n
}

// dim is a dimension of known size. An operation has few of them, so a list is faster than a map.
type dim struct {
	name string
	n    int
}

func (o *Op) lookup(name string) (n int, known bool) {
	for _, d := range o.dims {
		if d.name == name {
			return d.n, true
		}
	}
	return 0, false
}

// SetDim sets an unknown dimension. Row.Fit may call it for a dimension of a result that follows
// from others.
func (o *Op) SetDim(name string, n int) { o.dims = append(o.dims, dim{name, n}) }

// fit compares the arguments with Row.Shapes and records the dimensions.
func (o *Op) fit(r rule) error {
	o.dims = make([]dim, 0, 4)
	for i, a := range r.args[:min(len(o.In), len(r.args))] {
		if a.dims == nil || o.match(a.dims, o.In[i]) {
			continue
		}
		err := fmt.Errorf("%s is %v, want %v", a.name, o.In[i], o.known(a.dims))
		if i > 0 {
			err = fmt.Errorf("%w for %s %v", err, r.args[0].name, o.In[0])
		}
		return err
	}
	if o.Fit == nil {
		return nil
	}
	return o.Fit(o)
}

// match compares a shape with dims, and records dimensions that were unknown.
func (o *Op) match(dims []string, s tensor.Shape) bool {
	if want, open := o.eval(dims); !open {
		return want.Eq(s)
	}
	if at := slices.Index(dims, "..."); at >= 0 {
		n := len(s) - len(dims) + 1
		if n < 0 {
			return false
		}
		if _, known := o.lookup("..."); !known {
			o.lead = s[at : at+n]
			o.SetDim("...", Numel(o.lead))
		}
		if !slices.Equal(s[at:at+n], o.lead) {
			return false
		}
		s, dims = slices.Delete(slices.Clone(s), at, at+n), slices.Delete(slices.Clone(dims), at, at+1)
	}
	if len(s) != len(dims) {
		return false
	}
	for i, d := range dims {
		if n, known := o.size(d); known && n != s[i] {
			return false
		}
	}
	for i, d := range dims {
		if n, known := o.size(d); !known {
			o.SetDim(d, s[i])
		} else if n != s[i] { // the same word twice
			return false
		}
	}
	return true
}

// size returns the value of a word in brackets, which may be a number.
func (o *Op) size(word string) (n int, known bool) {
	if n, known = o.lookup(word); known {
		return n, true
	}
	n, err := strconv.Atoi(word)
	return n, err == nil
}

// eval returns the shape that dims stand for. open is true if some of them are unknown.
func (o *Op) eval(dims []string) (s tensor.Shape, open bool) {
	s = make(tensor.Shape, 0, len(dims)+len(o.lead))
	for _, d := range dims {
		n, known := o.size(d)
		open = open || !known
		if d == "..." {
			s = append(s, o.lead...)
		} else {
			s = append(s, n)
		}
	}
	return s, open
}

// known returns dims with known sizes in place of words.
func (o *Op) known(dims []string) (words []string) {
	for _, d := range dims {
		s, open := o.eval([]string{d})
		if open {
			words = append(words, d)
			continue
		}
		for _, n := range s {
			words = append(words, strconv.Itoa(n))
		}
	}
	return words
}

// place decides the shape of the result. If there are several results, it also decides their
// offsets.
func (o *Op) place(r rule) error {
	total := 0
	for _, p := range r.results {
		s, open := o.eval(p.dims)
		if open {
			return fmt.Errorf("no argument determines the shape %v of %s", p.dims, p.name)
		}
		o.parts = append(o.parts, part{total, s})
		total += Numel(s)
	}
	switch len(o.parts) {
	case 0:
		o.Shape = o.In[0].Clone()
	case 1:
		o.Shape, o.parts = o.parts[0].shape, nil
	default:
		o.Shape = tensor.Shape{total}
	}
	return nil
}

// part is one of several results in one vector.
type part struct {
	offset int
	shape  tensor.Shape
}

// Part returns result i of an operation with several. It costs nothing. Only one part may be
// differentiated.
func Part(packed *G.Node, i int) (*G.Node, error) {
	p := packed.Op().(*Op).parts[i]
	return NewView(packed, p.offset, p.shape...)
}
