package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/bf16"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Embedding is op.Embedding.
func Embedding(table, index *G.Node) (*G.Node, error) { return embedding.Apply(nil, table, index) }

var embedding = &exec.Row{
	Kind: KindEmbedding, Doc: "the rows of table that index names", Shapes: "table [rows d], index int [...] -> y [... d]",
	Kernels: kernels(runEmbedding(kernel.Embedding[float32]), runEmbedding(kernel.Embedding[float64]),
		runEmbedding(kernel.NaiveEmbedding)),
	BF16:  runEmbedding(kernel.Embedding[half.BFloat16]),
	FLOPs: exec.Each(0),
	Reads: func(o *exec.Op, arg int) int {
		if arg == 0 {
			return exec.Numel(o.Shape)
		}
		return exec.Numel(o.In[arg])
	},
	Check: func(o *exec.Op, _ int, v []int) error { return kernel.CheckIndices(v, o.Dim("rows")) }, Diff: 1,
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		return o.Gradient(embeddingGrad, dy, in[1])
	},
}

func runEmbedding[T kernel.Element](run func(y, table []T, idx []int, rows, d int) error) exec.Kernel {
	return func(f *exec.Frame) error {
		return run(result[T](f), arg[T](f, 0), ints(f, 1), f.Op.Dim("rows"), f.Op.Dim("d"))
	}
}

var embeddingGrad = &exec.Row{
	Kind: KindEmbeddingGrad, Doc: "the sum of the rows of dy at the row of the table that they come from",
	Shapes: "dy, index int -> dtable f32 [rows d]", FLOPs: exec.Each(1), Accumulate: true,
	Kernels: kernels(runEmbeddingGrad(kernel.EmbeddingGrad[float32]), runEmbeddingGrad(kernel.EmbeddingGrad[float64]),
		runEmbeddingGrad(kernel.NaiveEmbeddingGrad)),
	BF16: embeddingGradHalf, BF16Scratch: func(o *exec.Op) int { return o.Dim("d") },
}

func embeddingGradHalf(f *exec.Frame) error {
	bf16.EmbeddingGrad(result[float32](f), low(f, 0), ints(f, 1), f.Op.Dim("rows"), f.Op.Dim("d"), f.Acc, wide(f))
	return nil
}

func runEmbeddingGrad[T kernel.Float](run func(dtable, dy []T, idx []int, rows, d int, acc bool)) exec.Kernel {
	return func(f *exec.Frame) error {
		run(result[T](f), arg[T](f, 0), ints(f, 1), f.Op.Dim("rows"), f.Op.Dim("d"), f.Acc)
		return nil
	}
}

// AddPositions is op.AddPositions.
func AddPositions(x, table *G.Node) (*G.Node, error) { return positions.Apply(nil, x, table) }

var positions = &exec.Row{
	Kind: KindPositions, Doc: "x plus the first T rows of table", Shapes: "x [B T d], table [rows d] -> y [B T d]",
	Fit: func(o *exec.Op) error {
		if o.Dim("rows") < o.Dim("T") {
			return fmt.Errorf("table is %v, want at least %d rows", o.In[1], o.Dim("T"))
		}
		return nil
	},
	Kernels: exec.Kernels{
		F32: runPositions(vec.Add[float32]), F64: runPositions(vec.Add[float64]),
		Naive: runPositions(func(y, a, b []float64) {
			for i := range y {
				y[i] = a[i] + b[i]
			}
		}),
	},
	BF16: positionsHalf, BF16Scratch: exec.ElementScratch,
	FLOPs: exec.Each(1), Reads: func(o *exec.Op, arg int) int { return exec.Numel(o.In[0][arg:]) },
	Cheap: true, InPlace: true, Diff: 2,
	Grad: func(o *exec.Op, in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
		dtable, err := o.Gradient(positionsGrad, dy)
		return append(G.Nodes{dy}, dtable...), err
	},
}

func positionsHalf(f *exec.Frame) error {
	return runPositions(func(y, a, b []half.BFloat16) { bf16.Add(y, a, b, wide(f)) })(f)
}

func runPositions[T kernel.Element](add func(y, a, b []T)) exec.Kernel {
	return func(f *exec.Frame) error {
		n := f.Op.Dim("T") * f.Op.Dim("d")
		for i := range f.Op.Dim("B") {
			add(result[T](f)[i*n:][:n], arg[T](f, 0)[i*n:][:n], arg[T](f, 1)[:n])
		}
		return nil
	}
}

var positionsGrad = &exec.Row{
	Kind: KindPositionsGrad, Doc: "the sum of dy over B, and 0 in the rows from T on", Shapes: "dy -> dtable f32 [rows d]",
	Kernels: kernels(runPositionsGrad(kernel.LinearGradB[float32]), runPositionsGrad(kernel.LinearGradB[float64]),
		runPositionsGrad(kernel.NaiveLinearGradB)),
	BF16: positionsGradHalf, BF16Scratch: func(o *exec.Op) int { return bf16.ColumnScratch(o.Dim("T") * o.Dim("d")) },
	FLOPs: exec.Each(1), Accumulate: true,
}

func positionsGradHalf(f *exec.Frame) error {
	return runPositionsGrad(func(d []float32, dy []half.BFloat16, n, columns int, acc bool) {
		bf16.LinearGradB(d, dy, n, columns, acc, wide(f))
	})(f)
}

func runPositionsGrad[G kernel.Float, T kernel.Element](sum func(d []G, dy []T, n, columns int, acc bool)) exec.Kernel {
	return func(f *exec.Frame) error {
		d, n := result[G](f), f.Op.Dim("T")*f.Op.Dim("d")
		sum(d[:n], arg[T](f, 0), f.Op.Dim("B"), n, f.Acc)
		if !f.Acc {
			clear(d[n:])
		}
		return nil
	}
}
