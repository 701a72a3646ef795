package op

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/internal/exec"
)

// rule is the parsed form of Shapes and Reads of a Custom.
type rule struct {
	args, results []operand
	floats        int   // number of arguments that hold floats; they come first
	at            []int // by argument: where Backward finds it, or -1
	packed        int   // where it finds the results, or -1
}

// operand is an argument or a result.
type operand struct {
	name, mark string // mark is "int", "f32" or ""
	dims       []string
	sizes      []int // by dimension: its size if dims has a number, otherwise 0
}

var (
	dim   = `[A-Za-z_]\w*|[1-9]\d*`
	shape = regexp.MustCompile(`^\s*([A-Za-z_]\w*)(?:\s+(int|f32))?\s*\[\s*((?:\.\.\.|` + dim + `)(?:\s+(?:` + dim + `))*)\s*\]\s*$`)
)

// len returns the number of elements of o in a use.
func (o *operand) len(use *exec.Op) int {
	n := 1
	for i, size := range o.sizes {
		if size == 0 {
			size = use.Dim(o.dims[i])
		}
		n *= size
	}
	return n
}

// String returns o in the form of Shapes.
func (o operand) String() string {
	return fmt.Sprintf("%s [%s]", strings.TrimSpace(o.name+" "+o.mark), strings.Join(o.dims, " "))
}

// parse parses the fields of c.
func parse(c *Custom) (r rule, err error) {
	args, results, ok := strings.Cut(c.Shapes, "->")
	if !ok || c.Name == "" {
		return r, errors.New("field Name is empty, or Shapes has no ->")
	}
	if r.args, err = parseOperands(args, ","); err != nil {
		return r, err
	}
	if r.results, err = parseOperands(results, "|"); err != nil {
		return r, err
	}
	r.floats = len(r.args)
	if i := slices.IndexFunc(r.args, isInt); i >= 0 {
		r.floats = i
	}
	switch {
	case r.floats == 0 || slices.ContainsFunc(r.args[r.floats:], func(o operand) bool { return !isInt(o) }):
		return r, errors.New("in Shapes, arguments of floats must come before arguments of integers")
	case slices.ContainsFunc(r.results, isInt) || !slices.IsSortedFunc(r.results, func(a, b operand) int { return cmp.Compare(a.mark, b.mark) }):
		return r, errors.New("in Shapes, results must be floats, and results in f32 must come last")
	case (c.Forward.Split || c.Backward.Split) && !strings.Contains(c.Shapes, "..."):
		return r, errors.New("field Split is set, but Shapes has no ... dimensions")
	}
	return r, r.parseReads(c.Reads)
}

func isInt(o operand) bool { return o.mark == "int" }

// parseReads decides where Backward finds the values that it reads.
func (r *rule) parseReads(reads []string) error {
	unknown := slices.Clone(reads)
	named := func(o operand) bool {
		unknown = slices.DeleteFunc(unknown, func(name string) bool { return name == o.name })
		return slices.Contains(reads, o.name)
	}
	next := 0
	place := func(wanted bool) int {
		if !wanted {
			return -1
		}
		next++
		return next - 1
	}
	for _, o := range r.args {
		r.at = append(r.at, place(named(o) || reads == nil))
	}
	kept := false
	for _, o := range r.results {
		kept = named(o) || kept
	}
	r.packed = place(kept)
	if len(unknown) > 0 {
		return fmt.Errorf("%q is in Reads but not in Shapes", unknown[0])
	}
	return nil
}

// parseOperands parses one side of Shapes.
func parseOperands(s, separator string) (list []operand, err error) {
	for text := range strings.SplitSeq(s, separator) {
		m := shape.FindStringSubmatch(text)
		if m == nil {
			return nil, fmt.Errorf("%q in Shapes is invalid: want the form %q", text, "x [... d]")
		}
		o := operand{name: m[1], mark: m[2], dims: strings.Fields(m[3])}
		for _, d := range o.dims {
			n, _ := strconv.Atoi(d) // 0 if d is a name
			o.sizes = append(o.sizes, n)
		}
		list = append(list, o)
	}
	return list, nil
}

// shapes returns Row.Shapes of the operation.
func (r *rule) shapes() string { return join(r.args, ", ") + " -> " + join(r.results, " | ") }

// gradShapes returns the shapes of the gradient. If it has more than one result, the results stay
// in float32, as gradients of parameters must.
func (r *rule) gradShapes() string {
	var args, grads []string
	for i, o := range r.args {
		if r.at[i] >= 0 {
			args = append(args, o.String())
		}
		if i < r.floats {
			o.name = "d" + o.name
			if r.floats > 1 {
				o.mark = "f32"
			}
			grads = append(grads, o.String())
		}
	}
	if r.packed >= 0 {
		args = append(args, "results")
	}
	return strings.Join(append(args, "dy"), ", ") + " -> " + strings.Join(grads, " | ")
}

func join(list []operand, separator string) string {
	var texts []string
	for _, o := range list {
		texts = append(texts, o.String())
	}
	return strings.Join(texts, separator)
}
