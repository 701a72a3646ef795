package exec

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/kernel"
)

// A Frame is what a kernel sees of the run it is part of. It is valid during the call only.
type Frame struct {
	Out     Value   // every element must be written, or added to if Acc
	In      []Value // read only
	Acc     bool    // add to Out; only ever set for an Op that Accumulates
	Scratch []byte  // Op.Scratch elements of the unit's dtype, contents undefined
	Kernel  *kernel.Context
	Seed    uint64 // of this call in this step: the same in forward and backward
	Train   bool   // false in evaluation: dropout is the identity
}

// An Op is a fused kernel as a Gorgonia operation. The zero values of the optional fields are safe.
type Op struct {
	// Name identifies the operation together with the shapes of its arguments: two Ops with one name must compute the
	// same function. Every attribute must be in it.
	Name string
	// Shape of the result, known when the op is made because the graph is traced with concrete shapes.
	Shape tensor.Shape
	// Run32 and Run64 compute the result for float32 and float64 graphs.
	Run32, Run64 func(*Frame) error
	// Grad builds the gradients with respect to each input, nil where Diff is false. out is the op's own node.
	Grad func(in G.Nodes, out, dy *G.Node) (G.Nodes, error)
	// Diff tells for each input whether the op is differentiable with respect to it. Nil means none.
	Diff []bool
	// Ints tells for each input whether it holds integers. The others hold floats of the graph's type. Nil means none.
	Ints []bool
	// Check says what is wrong with the integers of an op that has one input of integers, if anything. It lets a batch be
	// refused before anything runs on it. The kernel checks too.
	Check func(v []int) error

	View       bool // the result is input 0's memory from element Offset on; Run32 and Run64 are not called
	Offset     int
	Cheap      bool // cheaper to compute again than to keep
	InPlace    bool // the result may be written over input 0
	Accumulate bool // honours Frame.Acc
	Scratch    int  // elements of scratch memory

	args []arg // set by Apply
}

// arg is what the type of an operation needs to know of an argument.
type arg struct {
	dims  int
	isInt bool
}

// Apply adds the op to the graph of its arguments.
func (o *Op) Apply(in ...*G.Node) (*G.Node, error) {
	if o.Diff == nil {
		o.Diff = make([]bool, len(in))
	}
	o.args = make([]arg, len(in))
	for i, n := range in {
		if n == nil {
			return nil, fmt.Errorf("%s: argument %d is nil", o.Name, i)
		}
		isInt := i < len(o.Ints) && o.Ints[i]
		if (n.Dtype() == tensor.Int) != isInt {
			return nil, fmt.Errorf("%s: argument %d is of type %v", o.Name, i, n.Dtype())
		}
		o.args[i] = arg{n.Shape().Dims(), isInt}
	}
	n, err := G.ApplyOp(o, in...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Name, err)
	}
	return n, nil
}

var (
	_ G.SDOp            = (*Op)(nil)
	_ G.UsePreallocDoer = (*Op)(nil)
)

// Arity implements gorgonia.Op.
func (o *Op) Arity() int { return len(o.args) }

// Type implements gorgonia.Op: integer arguments are Int, all others and the result share one float type.
func (o *Op) Type() hm.Type {
	float := hm.TypeVariable('a')
	of := func(dims int, elem hm.Type) hm.Type {
		if dims == 0 {
			return elem
		}
		return G.TensorType{Dims: dims, Of: elem}
	}
	types := make([]hm.Type, 0, len(o.args)+1)
	for _, a := range o.args {
		if a.isInt {
			types = append(types, of(a.dims, tensor.Int))
		} else {
			types = append(types, of(a.dims, float))
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

// OverwritesInput implements gorgonia.Op. It tells Gorgonia's machines never to run the op in place.
func (o *Op) OverwritesInput() int { return -1 }

// WriteHash implements gorgonia.Op.
func (o *Op) WriteHash(h hash.Hash) { fmt.Fprintf(h, "fsdp/%s%v", o.Name, o.Shape) }

// Hashcode implements gorgonia.Op.
func (o *Op) Hashcode() uint32 { h := fnv.New32a(); o.WriteHash(h); return h.Sum32() }

// String implements gorgonia.Op.
func (o *Op) String() string { return o.Name }

// DiffWRT implements gorgonia.SDOp.
func (o *Op) DiffWRT(int) []bool { return o.Diff }

// SymDiff implements gorgonia.SDOp.
func (o *Op) SymDiff(in G.Nodes, out, dy *G.Node) (G.Nodes, error) {
	if o.Grad == nil {
		return nil, fmt.Errorf("%s: not differentiable", o.Name)
	}
	return o.Grad(in, out, dy)
}

// Do implements gorgonia.Op, so that the op also runs in Gorgonia's machines. It allocates; programs do not use it.
func (o *Op) Do(in ...G.Value) (G.Value, error) {
	for _, v := range in {
		if dt := v.Dtype(); dt == tensor.Float32 || dt == tensor.Float64 {
			return o.UsePreallocDo(tensor.New(tensor.Of(dt), tensor.WithShape(o.Shape...)), in...)
		}
	}
	return nil, fmt.Errorf("%s: no float argument", o.Name)
}

// UsePreallocDo implements gorgonia.UsePreallocDoer.
func (o *Op) UsePreallocDo(out G.Value, in ...G.Value) (G.Value, error) {
	f := &Frame{Kernel: new(kernel.Context), Train: true}
	var err error
	if f.Out, err = valueOf(out); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Name, err)
	}
	for i, v := range in {
		a, err := valueOf(v)
		if err != nil {
			return nil, fmt.Errorf("%s: argument %d: %w", o.Name, i, err)
		}
		f.In = append(f.In, a)
	}
	if o.View {
		size := int(f.Out.DType.Size())
		copy(f.Out.Bytes, f.In[0].Bytes[o.Offset*size:])
		return out, nil
	}
	f.Scratch = make([]byte, o.Scratch*int(f.Out.DType.Size()))
	if err := o.run(f); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Name, err)
	}
	return out, nil
}

func (o *Op) run(f *Frame) error {
	if f.Out.DType == tensor.Float32 {
		return o.Run32(f)
	}
	return o.Run64(f)
}

func valueOf(v G.Value) (Value, error) {
	t, ok := v.(tensor.Tensor)
	if !ok {
		return Value{}, errors.New("scalars are not supported outside a program")
	}
	return FromTensor(t)
}
