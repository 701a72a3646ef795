package ops

import (
	"cmp"
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
)

// Angles is the attribute of KindAngles.
type Angles struct {
	Rows, Dims int     // of the table; 0 rows means the number of positions of x
	Base       float64 // pair i rotates by Base^(-2i/Dims) per position,
	Factor     float64 // slower by this,
	// but not if a full rotation takes fewer than Original/High positions, and only partly if it
	// takes fewer than Original/Low. With Original 0 this applies to all pairs.
	Low, High float64
	Original  int
}

// Rope is op.Rope. by has the angles, and of has the columns; 0 heads means all.
func Rope(x, positions *G.Node, by Angles, of kernel.Rotary) (*G.Node, error) {
	by.Dims = of.Dims
	table, err := angles.Apply(by, x)
	if err != nil {
		return nil, err
	}
	if positions == nil {
		return rope.Apply(of, x, table)
	}
	return rope.Apply(of, x, table, positions)
}

var angles = &exec.Row{
	Kind: KindAngles, Attr: Angles{},
	Doc:    "in row p the cosines of the angles of position p, and then the sines",
	Shapes: "x [... T d] -> table f32 [rows dims]",
	Fit: func(o *exec.Op) error {
		a := o.Attrs.(Angles)
		switch {
		case a.Dims < 2 || a.Dims%2 != 0:
			return fmt.Errorf("rotates %d columns, want a positive even number", a.Dims)
		case !(a.Base > 0 && a.Factor > 0):
			return fmt.Errorf("base %v and factor %v, want positive ones", a.Base, a.Factor)
		case a.Rows < 0 || a.Original < 0:
			return fmt.Errorf("context lengths are %d and %d, neither may be negative", a.Rows, a.Original)
		case a.Original > 0 && !(a.High > a.Low && a.Low > 0):
			return fmt.Errorf("frequency factors %v and %v, want positive ones, the lower one first", a.Low, a.High)
		}
		o.SetDim("rows", cmp.Or(a.Rows, o.Dim("T")))
		o.SetDim("dims", a.Dims)
		return nil
	},
	Kernels: kernels(runAngles[float32], runAngles[float64], runAngles[float64]), FLOPs: func(*exec.Op) int { return 0 }, Constant: true,
}

func runAngles[T kernel.Float](f *exec.Frame) error {
	dims, table := f.Op.Dim("dims"), result[T](f)
	for i := range dims / 2 {
		speed := f.Op.Attrs.(Angles).speed(i)
		for p := range f.Op.Dim("rows") {
			sin, cos := math.Sincos(float64(p) * speed)
			row := table[p*dims:][:dims]
			row[i], row[dims/2+i] = T(cos), T(sin)
		}
	}
	return nil
}

// speed returns the angle between neighbouring positions for pair i.
func (a Angles) speed(i int) float64 {
	speed := math.Pow(a.Base, -2*float64(i)/float64(a.Dims))
	if a.Original == 0 {
		return speed / a.Factor
	}
	turns := float64(a.Original) * speed / (2 * math.Pi)
	kept := min(1, max(0, (turns-a.Low)/(a.High-a.Low)))
	return kept*speed + (1-kept)*speed/a.Factor
}

var rope = &exec.Row{
	Kind: KindRope, Attr: kernel.Rotary{},
	Doc:    "pairs (u, v) of columns become (u·cos - v·sin, u·sin + v·cos), by the row of table for their position",
	Shapes: "x [... T d], table f32 [rows dims], positions? int [... T] -> y [... T d]",
	Fit:    fitRope,
	Kernels: kernels(runRope(kernel.Rope[float32], false), runRope(kernel.Rope[float64], false),
		runRope(kernel.NaiveRope, false)),
	BF16: ropeHalf(false), BF16Scratch: ropeScratch,
	FLOPs: ropeFLOPs, InPlace: true, Split: exec.ByKernel, Diff: 1,
	Check: func(o *exec.Op, _ int, v []int) error { return kernel.CheckIndices(v, o.Dim("rows")) },
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(ropeGrad, append(G.Nodes{dy}, in[1:]...)...)
	},
}

var ropeGrad = &exec.Row{
	Kind: KindRopeGrad, Attr: kernel.Rotary{}, Doc: "the pairs of dy, turned back",
	Shapes: "dy, table f32, positions? int -> dx [... T d]",
	Kernels: kernels(runRope(kernel.Rope[float32], true), runRope(kernel.Rope[float64], true),
		runRope(kernel.NaiveRope, true)),
	BF16: ropeHalf(true), BF16Scratch: ropeScratch,
	FLOPs: ropeFLOPs, InPlace: true, Split: exec.ByKernel,
}

func fitRope(o *exec.Op) error {
	r := o.Attrs.(kernel.Rotary)
	switch {
	case r.Dims > r.HeadDim:
		return fmt.Errorf("rotates %d columns, but heads have only %d", r.Dims, r.HeadDim)
	case r.Heads < 0 || r.Heads*r.HeadDim > o.Dim("d"):
		return fmt.Errorf("x is %v, want at least %d heads of %d columns", o.In[0], r.Heads, r.HeadDim)
	case r.Heads == 0 && o.Dim("d")%r.HeadDim != 0:
		return fmt.Errorf("x is %v, want heads of %d columns", o.In[0], r.HeadDim)
	case len(o.In) < 3 && o.Dim("rows") < o.Dim("T"):
		return fmt.Errorf("x is %v, want at most %d positions", o.In[0], o.Dim("rows"))
	}
	return nil
}

// heads returns the columns that are rotated.
func heads(o *exec.Op) kernel.Rotary {
	r := o.Attrs.(kernel.Rotary)
	r.Heads = cmp.Or(r.Heads, o.Dim("d")/r.HeadDim)
	return r
}

func ropeFLOPs(o *exec.Op) int {
	r := heads(o)
	return 3 * o.Dim("...") * o.Dim("T") * r.Heads * r.Dims
}

func ropeScratch(o *exec.Op) int { return bf16.RopeScratch(o.Dim("d")) }

func runRope[T kernel.Element, A kernel.Float](run func(y, x []T, table []A, positions []int, n, d, first, t int, r kernel.Rotary,
	inverse bool), inverse bool) exec.Kernel {
	return func(f *exec.Frame) error {
		t, d, positions := f.Op.Dim("T"), f.Op.Dim("d"), ints(f, 2)
		if err := kernel.CheckIndices(positions, f.Op.Dim("rows")); err != nil {
			return err
		}
		lo, hi := f.Kernel.Share(f.Op.Dim("...")*t, 1)
		if positions != nil {
			positions = positions[lo:hi]
		}
		run(result[T](f)[lo*d:hi*d], arg[T](f, 0)[lo*d:hi*d], arg[A](f, 1), positions, hi-lo, d, lo, t, heads(f.Op), inverse)
		return nil
	}
}

func ropeHalf(inverse bool) exec.Kernel {
	return func(f *exec.Frame) error {
		return runRope(func(y, x []half.BFloat16, table []float32, positions []int, n, d, first, t int, r kernel.Rotary, inverse bool) {
			bf16.Rope(y, x, table, positions, n, d, first, t, r, inverse, wide(f))
		}, inverse)(f)
	}
}
