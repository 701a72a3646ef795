package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// Relative is the attribute of KindRelative and KindRelativeGrad.
type Relative struct {
	Queries, Keys int
	MaxDistance   int
	Causal        bool
}

// RelativeBias is op.RelativeBias.
func RelativeBias(table *G.Node, a Relative) (*G.Node, error) { return relative.Apply(a, table) }

var relative = &exec.Row{
	Kind: KindRelative, Attr: Relative{}, Doc: "the row of table for the distance of each query and key, one column a head",
	Shapes: "table f32 [buckets heads] -> bias f32 [heads Tq Tk]",
	Fit: func(o *exec.Op) error {
		a, buckets := o.Attrs.(Relative), o.Dim("buckets")
		exact := buckets / 2
		if !a.Causal {
			exact /= 2
		}
		switch {
		case a.Causal && buckets < 2:
			return fmt.Errorf("table is %v, want [buckets heads] with at least 2 buckets", o.In[0])
		case !a.Causal && (buckets < 4 || buckets%2 != 0):
			return fmt.Errorf("table is %v, want [buckets heads] with an even number of at least 4 buckets", o.In[0])
		case a.MaxDistance <= exact:
			return fmt.Errorf("the largest distance is %d, want more than %d for %d buckets", a.MaxDistance, exact, buckets)
		case a.Queries < 1 || a.Keys < a.Queries:
			return fmt.Errorf("%d queries and %d keys, want at least one query and as many keys as queries", a.Queries, a.Keys)
		}
		o.SetDim("Tq", a.Queries)
		o.SetDim("Tk", a.Keys)
		return nil
	},
	Kernels: kernels(runRelative(kernel.RelativeBias[float32]), runRelative(kernel.RelativeBias[float64]),
		runRelative(kernel.NaiveRelativeBias)),
	FLOPs: exec.Each(0), Scratch: relativeScratch, Diff: 1,
	Grad: func(o *exec.Op, _ G.Nodes, _, dy *G.Node) (G.Nodes, error) { return o.Gradient(relativeGrad, dy) },
}

// relativeOf returns the geometry for the kernels.
func relativeOf(o *exec.Op) kernel.Relative {
	a := o.Attrs.(Relative)
	return kernel.Relative{
		Queries: a.Queries, Keys: a.Keys, Heads: o.Dim("heads"), Buckets: o.Dim("buckets"), MaxDistance: a.MaxDistance, Causal: a.Causal,
	}
}

func relativeScratch(o *exec.Op) int { return kernel.RelativeScratch(relativeOf(o)) }

func runRelative[T kernel.Float](run func(bias, table []T, r kernel.Relative, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		run(result[T](f), arg[T](f, 0), relativeOf(f.Op), exec.Data[T](f.Scratch))
		return nil
	}
}

var relativeGrad = &exec.Row{
	Kind: KindRelativeGrad, Attr: Relative{}, Doc: "the sum of dbias where each element of table stands",
	Shapes: "dbias f32 -> dtable f32 [buckets heads]",
	Kernels: kernels(runRelativeGrad(kernel.RelativeBiasGrad[float32]), runRelativeGrad(kernel.RelativeBiasGrad[float64]),
		runRelativeGrad(kernel.NaiveRelativeBiasGrad)),
	FLOPs: exec.Each(1), Scratch: relativeScratch, Accumulate: true,
}

func runRelativeGrad[T kernel.Float](run func(dtable, dbias []T, r kernel.Relative, acc bool, scratch []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		run(result[T](f), arg[T](f, 0), relativeOf(f.Op), f.Acc, exec.Data[T](f.Scratch))
		return nil
	}
}
