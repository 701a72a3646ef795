package op

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/caught"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// A Custom is a user's own operation, with kernels in Go that write into planned memory: see the
// example. It should be a variable of a package, and must not be changed or copied after its first
// Apply. Apply is safe for concurrent use.
//
// A kernel must be a function of the arguments, the same on every rank: backward may run Forward
// again instead of keeping its result. It writes every element of its results, whose memory has
// arbitrary contents before. It changes nothing else, and keeps no slice. Kernels of several ranks
// in one process run at the same time. An error or a panic in a kernel is an error of the pass,
// which names the rank, the call and the operation.
//
// A Custom runs on processors only: a program cannot add kernels for GPUs, which are compiled with
// this library (internal/gpu). With Config.Device, Plan of fsdp.Planner and the first pass return
// an error that names the operation. Other operations of this package have kernels for GPUs:
// compose it of them, or of operations of Gorgonia that the same plan accepts.
//
// A graph distinguishes two Customs with the same name. A module is recognised by its type and
// fields, not by its Build, so its Customs must depend on nothing else. A Custom that is made anew
// in every Build, such as by a function that captures a number, works, too.
type Custom struct {
	// Name appears in errors and plans.
	Name string
	// Shapes names the arguments and results with their shapes, such as
	//
	//	x [... d], gain [d], index int [...] -> y [... d] | rstd f32 [...]
	//
	// A word in brackets is a dimension that is equal wherever it appears, "..." any number of
	// leading dimensions. Arguments of integers are marked int and come after arguments of floats.
	// Apply returns the first result. Other results, after |, are passed from Forward to Backward.
	// In a graph that computes in bfloat16, tensors marked f32 are stored in float32.
	Shapes string
	// Fit, if not nil, checks what Shapes cannot express, and sets the dimensions that only results
	// have.
	Fit func(Sizes) error
	// Forward computes the results; Backward computes the gradients of all arguments of floats. An
	// operation without Backward is refused if it is differentiated.
	Forward, Backward Kernel
	// Reads names the arguments and results that Backward reads, by their names in Shapes. They are
	// kept for Backward, or computed again. Nil means all arguments and no result.
	Reads []string
	// Cheap says that computing Forward again is cheaper than keeping its results for backward.
	Cheap bool

	once      sync.Once
	err       error // error in the fields
	rule      rule
	row, grad *exec.Row
}

// Float is the type of the elements of a graph.
type Float interface{ float32 | float64 }

// A Kernel is one direction of a [Custom].
type Kernel struct {
	// F32 and F64 compute it for graphs of float32 and float64. A graph whose type is missing is
	// refused. In bfloat16, F32 computes; its arguments are widened and its results rounded for it.
	F32 func(Args[float32]) error
	F64 func(Args[float64]) error
	// FLOPs counts the arithmetic, for plans. Nil means one operation for each element of argument 0.
	FLOPs func(Sizes) int
	// Scratch returns the number of elements of scratch memory to plan for the kernel. Nil means
	// none.
	Scratch func(Sizes) int
	// Split says that the kernel computes only the rows of Args.Rows, which only it writes. Then
	// the threads of a rank share the rows, each with its own scratch memory. Shapes must have
	// "...".
	Split bool
}

// Sizes are the dimensions of one use of a [Custom].
type Sizes struct{ op *exec.Op }

// Dim returns the size of a dimension of Custom.Shapes. The size of "..." is the product of the
// leading dimensions. Dim panics if no dimension has the name.
func (s Sizes) Dim(name string) int { return s.op.Dim(name) }

// Set sets a dimension that only results have. It is for Custom.Fit.
func (s Sizes) Set(name string, size int) { s.op.SetDim(name, size) }

// Args are the operands of a kernel: dense, row-major elements, numbered as in Custom.Shapes. They
// are valid during the call.
type Args[T Float] struct {
	Sizes
	custom   *Custom
	frame    *exec.Frame
	backward bool
}

// In returns argument i, of floats, to read.
func (a Args[T]) In(i int) []T { return exec.Data[T](a.argument(i).Bytes) }

// Ints returns argument i, of integers, to read.
func (a Args[T]) Ints(i int) []int { return exec.Data[int](a.argument(i).Bytes) }

// argument returns argument i.
func (a Args[T]) argument(i int) exec.Value {
	if a.backward {
		return a.read(a.custom.rule.at[i])
	}
	return a.frame.In[i]
}

// read returns the value that Backward has at a place.
func (a Args[T]) read(at int) exec.Value {
	if at < 0 {
		panic("Backward reads an argument that Custom.Reads does not list")
	}
	return a.frame.In[at]
}

// Out returns result i: Forward writes it, Backward may read it if Custom.Reads names a result.
func (a Args[T]) Out(i int) []T {
	v := a.frame.Out
	if a.backward {
		v = a.read(a.custom.rule.packed)
	}
	return part[T](a.Sizes, v, a.custom.rule.results, i)
}

// DOut returns the gradient of result 0, which Backward reads.
func (a Args[T]) DOut() []T { return exec.Data[T](a.frame.In[len(a.frame.In)-1].Bytes) }

// Grad returns the gradient of argument i, of floats, which Backward writes.
func (a Args[T]) Grad(i int) []T {
	return part[T](a.Sizes, a.frame.Out, a.custom.rule.args[:a.custom.rule.floats], i)
}

// Scratch returns scratch memory of the length that Kernel.Scratch returns, with arbitrary
// contents.
func (a Args[T]) Scratch() []T { return exec.Data[T](a.frame.Scratch) }

// Rows returns which of the Dim("...") rows the call computes: [lo, hi). Unless Kernel.Split is
// set, these are all rows.
func (a Args[T]) Rows() (lo, hi int) {
	rows := a.Dim("...")
	if !a.custom.direction(a.backward).Split {
		return 0, rows
	}
	return a.frame.Kernel.Share(rows, 1)
}

// part returns tensor i of the tensors that are one after another in v.
func part[T Float](s Sizes, v exec.Value, list []operand, i int) []T {
	from := 0
	for _, o := range list[:i] {
		from += o.len(s.op)
	}
	return exec.Data[T](v.Bytes)[from:][:list[i].len(s.op)]
}

// Apply adds the operation to the graph of its arguments and returns result 0.
func (c *Custom) Apply(in ...*gorgonia.Node) (y *gorgonia.Node, err error) {
	c.once.Do(c.prepare)
	if c.err != nil {
		return nil, fmt.Errorf("custom %s: %w", c.Name, c.err)
	}
	if len(in) != len(c.rule.args) {
		return nil, fmt.Errorf("custom %s: %d arguments, want %d: %s", c.Name, len(in), len(c.rule.args), c.Shapes)
	}
	if y, err = c.row.Apply(nil, in...); err != nil {
		return nil, err
	}
	if err := c.check(y); err != nil {
		return nil, fmt.Errorf("custom %s: %w", c.Name, err)
	}
	if len(c.rule.results) > 1 {
		return exec.Part(y, 0)
	}
	return y, nil
}

// check looks at what is asked about y, a use of c, when it is too late for errors.
func (c *Custom) check(y *gorgonia.Node) (err error) {
	if !c.Forward.has(y.Dtype()) {
		return fmt.Errorf("field Forward has no kernel for %v", y.Dtype())
	}
	if c.Backward.exists() && !c.Backward.has(y.Dtype()) {
		return fmt.Errorf("field Backward has no kernel for %v", y.Dtype())
	}
	defer caught.Panic(&err, "FLOPs or Scratch")
	for _, k := range []*Kernel{&c.Forward, &c.Backward} {
		s := Sizes{y.Op().(*exec.Op)}
		if k.FLOPs != nil && k.FLOPs(s) < 0 || k.Scratch != nil && k.Scratch(s) < 0 {
			return errors.New("FLOPs or Scratch is negative")
		}
	}
	return nil
}

func (k *Kernel) exists() bool { return k.F32 != nil || k.F64 != nil }

// has reports whether there is a kernel for a type.
func (k *Kernel) has(dt tensor.Dtype) bool {
	return dt == tensor.Float32 && k.F32 != nil || dt == tensor.Float64 && k.F64 != nil
}

func (c *Custom) direction(backward bool) *Kernel {
	if backward {
		return &c.Backward
	}
	return &c.Forward
}

var serial atomic.Uint64

// prepare makes the rows of c. No table has them: their kernels are the only ones.
func (c *Custom) prepare() {
	if c.rule, c.err = parse(c); c.err != nil {
		return
	}
	c.row = c.newRow(c.Name, c.rule.shapes(), false)
	c.row.Cheap, c.row.Diff = c.Cheap, c.rule.floats
	if c.Fit != nil {
		c.row.Fit = func(o *exec.Op) (err error) {
			defer caught.Panic(&err, "Fit")
			return c.Fit(Sizes{o})
		}
	}
	if !c.Backward.exists() {
		c.row.Grad = func(*exec.Op, gorgonia.Nodes, *gorgonia.Node, *gorgonia.Node) (gorgonia.Nodes, error) {
			return nil, fmt.Errorf("custom %s has no Backward, which training needs: give the op.Custom one, or freeze the parameters that it is computed from", c.Name)
		}
		return
	}
	c.grad = c.newRow(c.Name+" grad", c.rule.gradShapes(), true)
	c.row.Grad = func(o *exec.Op, in gorgonia.Nodes, out, dy *gorgonia.Node) (gorgonia.Nodes, error) {
		var read gorgonia.Nodes
		for i, n := range in {
			if c.rule.at[i] >= 0 {
				read = append(read, n)
			}
		}
		if c.rule.packed >= 0 {
			read = append(read, out)
		}
		return o.Gradient(c.grad, append(read, dy)...)
	}
}

// newRow returns the row of one direction.
func (c *Custom) newRow(name, shapes string, backward bool) *exec.Row {
	k := c.direction(backward)
	r := &exec.Row{
		Kind: exec.Kind("custom " + name), Serial: serial.Add(1), Doc: "a user's own operation", Shapes: shapes,
		Kernels: exec.Kernels{F32: run(c, backward, k.F32), F64: run(c, backward, k.F64), Naive: run(c, backward, k.F64)},
		FLOPs:   exec.Each(1),
	}
	if k.FLOPs != nil {
		r.FLOPs = func(o *exec.Op) int { return k.FLOPs(Sizes{o}) }
	}
	if k.Scratch != nil {
		r.Scratch = func(o *exec.Op) int { return k.Scratch(Sizes{o}) }
	}
	if k.Split {
		r.Split = exec.ByKernel
	}
	return r
}

// run returns a user's kernel as a kernel of a row.
func run[T Float](c *Custom, backward bool, kernel func(Args[T]) error) exec.Kernel {
	return func(f *exec.Frame) (err error) {
		defer caught.Panic(&err, "the kernel")
		return kernel(Args[T]{Sizes{f.Op}, c, f, backward})
	}
}
