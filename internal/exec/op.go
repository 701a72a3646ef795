package exec

import (
	"fmt"
	"hash"
	"hash/fnv"
	"strings"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/kernel"
)

// A Frame is a kernel's view of the run. It is valid only during the call.
type Frame struct {
	Op      *Op
	Out     Value   // every element must be written, or added to if Acc
	In      []Value // read only
	First   int     // index of the first element of Out in the result, if the row is split ByElement
	Acc     bool    // add to Out; only ever set for an operation that accumulates
	Scratch []byte  // Row.Scratch elements of the unit's dtype, or Row.BF16Scratch of float32, contents undefined
	Kernel  *kernel.Context
	Seed    uint64 // of this call in this step: the same in forward and backward
	Train   bool   // false in evaluation: dropout is the identity
}

// An Op is one use of a row of the table, as a Gorgonia operation: a kind with attributes, for
// arguments of given shapes. Two Ops of one kind with equal attributes, arguments and results
// compute the same function. It is immutable once it is part of a graph.
type Op struct {
	*Row
	Attrs any            // comparable, of the kind's attribute type; nil if it has none
	Shape tensor.Shape   // of the result
	In    []tensor.Shape // of the arguments

	ints  []bool       // by argument: whether it holds integers
	dims  []dim        // of Row.Shapes
	lead  tensor.Shape // the dimensions that "..." stands for
	parts []part       // of the result, if it has several
}

// Apply adds the operation to the graph of its arguments. If the row has several results, they are
// returned as one vector.
func (r *Row) Apply(attrs any, in ...*G.Node) (*G.Node, error) {
	return (&Op{Row: r, Attrs: attrs}).add(in...)
}

// Gradient adds operation r, which computes gradients of o, to the graph and returns its results.
// It has the attributes and the dimensions of o. The shapes of its arguments are not checked,
// because Gorgonia adds and drops dimensions of 1 in gradients.
func (o *Op) Gradient(r *Row, in ...*G.Node) (G.Nodes, error) {
	g := &Op{Row: r, Attrs: o.Attrs, dims: o.dims, lead: o.lead}
	n, err := g.add(in...)
	if err != nil || g.parts == nil {
		return G.Nodes{n}, err
	}
	parts := make(G.Nodes, len(g.parts))
	for i := range parts {
		if parts[i], err = Part(n, i); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// add adds o to the graph of its arguments. It computes unset dimensions and shapes.
func (o *Op) add(in ...*G.Node) (*G.Node, error) {
	r := parseRule(o.Shapes)
	err := o.check(r, in)
	if err == nil && o.dims == nil {
		err = o.fit(r)
	}
	if err == nil && o.Shape == nil {
		err = o.place(r)
	}
	var n *G.Node
	if err == nil {
		n, err = G.ApplyOp(o, in...)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Kind, err)
	}
	return n, nil
}

// check compares the element types of the arguments with Row.Shapes, and records their shapes.
func (o *Op) check(r rule, in []*G.Node) error {
	for i, n := range in {
		a := operandRule{name: fmt.Sprintf("argument %d", i)}
		if i < len(r.args) {
			a = r.args[i]
		}
		if n == nil {
			return fmt.Errorf("%s is nil", a.name)
		}
		if a.isInt && n.Dtype() != tensor.Int {
			return fmt.Errorf("%s is %v, want int", a.name, n.Dtype())
		}
		if !a.isInt && n.Dtype() == tensor.Int {
			return fmt.Errorf("%s is int, want a float", a.name)
		}
		o.ints, o.In = append(o.ints, a.isInt), append(o.In, n.Shape().Clone())
	}
	return nil
}

var _ G.SDOp = (*Op)(nil)

// Arity implements gorgonia.Op.
func (o *Op) Arity() int { return len(o.In) }

// Type implements gorgonia.Op: integer arguments are Int, all others and the result share one float
// type.
func (o *Op) Type() hm.Type {
	float := hm.TypeVariable('a')
	of := func(dims int, elem hm.Type) hm.Type {
		if dims == 0 {
			return elem
		}
		return G.TensorType{Dims: dims, Of: elem}
	}
	types := make([]hm.Type, 0, len(o.In)+1)
	for i, s := range o.In {
		if o.ints[i] {
			types = append(types, of(s.Dims(), tensor.Int))
		} else {
			types = append(types, of(s.Dims(), float))
		}
	}
	return hm.NewFnType(append(types, of(o.Shape.Dims(), float))...)
}

// InferShape implements gorgonia.Op.
func (o *Op) InferShape(...G.DimSizer) (tensor.Shape, error) { return o.Shape.Clone(), nil }

// ReturnsPtr implements gorgonia.Op.
func (o *Op) ReturnsPtr() bool { return true }

// CallsExtern implements gorgonia.Op.
func (o *Op) CallsExtern() bool { return false }

// OverwritesInput implements gorgonia.Op. Gorgonia's machines must never run the op in place.
func (o *Op) OverwritesInput() int { return -1 }

// WriteHash implements gorgonia.Op.
func (o *Op) WriteHash(h hash.Hash) {
	fmt.Fprintf(h, "fsdp/%v%v", o, o.Shape)
	if o.Serial > 0 {
		fmt.Fprint(h, o.Serial)
	}
}

// Hashcode implements gorgonia.Op.
func (o *Op) Hashcode() uint32 { h := fnv.New32a(); o.WriteHash(h); return h.Sum32() }

// String implements gorgonia.Op: the kind with its attributes, such as "attention(2,true)", or the
// name of a stock operation.
func (o *Op) String() string {
	switch a := o.Attrs.(type) {
	case nil:
		return string(o.Kind)
	case Stock:
		return a.Name
	default:
		return string(o.Kind) + attrText.Replace(fmt.Sprint(a))
	}
}

var attrText = strings.NewReplacer("{", "(", "}", ")", " ", ",")

// DiffWRT implements gorgonia.SDOp. Integers have no gradient.
func (o *Op) DiffWRT(n int) []bool {
	diff := make([]bool, n)
	for i := range min(n, o.Diff) {
		diff[i] = !o.ints[i]
	}
	return diff
}

// SymDiff implements gorgonia.SDOp.
func (o *Op) SymDiff(in G.Nodes, out, dy *G.Node) (G.Nodes, error) {
	if o.Grad == nil {
		return nil, fmt.Errorf("%v: not differentiable", o)
	}
	grads, err := o.Grad(o, in, out, dy)
	return append(grads, make(G.Nodes, max(0, len(in)-len(grads)))...), err
}

// Do implements gorgonia.Op, so that Gorgonia's machines can run the op, too. It allocates.
// Programs do not use it.
func (o *Op) Do(in ...G.Value) (G.Value, error) {
	f := &Frame{Op: o, Kernel: new(kernel.Context), Train: true}
	for i, v := range in {
		t, isTensor := v.(tensor.Tensor)
		if !isTensor {
			return nil, fmt.Errorf("%v: argument %d is a scalar, which is not supported outside a program", o, i)
		}
		a, err := FromTensor(t)
		if err != nil {
			return nil, fmt.Errorf("%v: argument %d: %w", o, i, err)
		}
		if a.DType != tensor.Int {
			f.Out.DType = a.DType
		}
		f.In = append(f.In, a)
	}
	if f.Out.DType == (tensor.Dtype{}) {
		return nil, fmt.Errorf("%v: no float argument", o)
	}
	size := int(f.Out.DType.Size())
	f.Out.Shape, f.Out.Bytes = o.Shape, make([]byte, Numel(o.Shape)*size)
	f.Scratch = make([]byte, o.scratch(false)*size)
	if err := o.run(f); err != nil {
		return nil, fmt.Errorf("%v: %w", o, err)
	}
	return f.Out.Tensor(), nil
}

func (o *Op) run(f *Frame) error {
	if f.Out.DType == tensor.Float32 {
		return o.F32(f)
	}
	return o.F64(f)
}

// scratch returns the number of scratch elements for the kernels, or for the bfloat16 kernel.
func (o *Op) scratch(half bool) int {
	need := o.Scratch
	if half {
		need = o.BF16Scratch
	}
	if need == nil {
		return 0
	}
	return need(o)
}
