package ops

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Embedding returns the rows of table [rows, d] that index, ints of any shape [...], names: [..., d].
func Embedding(table, index *G.Node) (*G.Node, error) {
	if err := wantInts("embedding", "index", index); err != nil {
		return nil, err
	}
	if table.Shape().Dims() != 2 {
		return nil, fmt.Errorf("embedding: table is %v, want [rows d]", table.Shape())
	}
	e := table.Shape().Clone()
	return body{embedding[float32](e), embedding[float64](e)}.apply(exec.Op{
		Name: "embedding", Shape: append(index.Shape().Clone(), e[1]), Diff: []bool{true, false}, Ints: []bool{false, true},
		Check: func(v []int) error { return kernel.CheckIndices(v, e[0]) },
		Grad: func(in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
			d, err := body{embeddingGrad[float32](e), embeddingGrad[float64](e)}.apply(exec.Op{
				Name: "embedding grad", Shape: e.Clone(), Ints: []bool{false, true}, Accumulate: true,
			}, dy, in[1])
			return G.Nodes{d, nil}, err
		},
	}, table, index)
}

func embedding[T kernel.Float](e tensor.Shape) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		return kernel.Embedding(result[T](f), arg[T](f, 0), ints(f, 1), e[0], e[1])
	}
}

func embeddingGrad[T kernel.Float](e tensor.Shape) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		kernel.EmbeddingGrad(result[T](f), arg[T](f, 0), ints(f, 1), e[0], e[1], f.Acc)
		return nil
	}
}

// AddPositions returns x [B, T, d] plus the first T rows of table [rows, d].
func AddPositions(x, table *G.Node) (*G.Node, error) {
	s := x.Shape()
	if len(s) != 3 || table.Shape().Dims() != 2 || table.Shape()[1] != s[2] || table.Shape()[0] < s[1] {
		return nil, fmt.Errorf("positions: x is %v and table %v, want [B T d] and [at least T, d]", s, table.Shape())
	}
	rows, n := s[0], s[1]*s[2]
	return body{addPositions[float32](rows, n), addPositions[float64](rows, n)}.apply(exec.Op{
		Name: "add positions", Shape: s.Clone(), Cheap: true, InPlace: true, Diff: []bool{true, true},
		Grad: func(in G.Nodes, _, dy *G.Node) (G.Nodes, error) {
			d, err := body{positionsGrad[float32](rows, n), positionsGrad[float64](rows, n)}.apply(exec.Op{
				Name: "add positions grad", Shape: in[1].Shape().Clone(), Accumulate: true,
			}, dy)
			return G.Nodes{dy, d}, err
		},
	}, x, table)
}

func addPositions[T kernel.Float](rows, n int) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		y, x, table := result[T](f), arg[T](f, 0), arg[T](f, 1)
		for i := range rows {
			vec.Add(y[i*n:][:n], x[i*n:][:n], table[:n])
		}
		return nil
	}
}

func positionsGrad[T kernel.Float](rows, n int) func(*exec.Frame) error {
	return func(f *exec.Frame) error {
		d, dy := result[T](f), arg[T](f, 0)
		if !f.Acc {
			clear(d)
		}
		vec.ColSum(d[:n], dy, rows, n)
		return nil
	}
}
