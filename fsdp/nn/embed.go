package nn

import (
	"fmt"
	"math"

	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// EmbedProgram is the program of an encoder with EmbedSequences that makes the vectors, [B, Dim],
// of a batch without targets:
//
//	out, err := m.EvalProgram(ctx, nn.EmbedProgram, tokens, kinds, mask) // of a BERT with kinds
const EmbedProgram = "embed"

// embedPrograms returns the programs of an encoder with a task.
func embedPrograms(task Task, embed func(t *fsdp.Tape, in []fsdp.Ref) fsdp.Ref) map[string]fsdp.Program {
	if task != EmbedSequences {
		return nil
	}
	return map[string]fsdp.Program{EmbedProgram: func(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
		return []fsdp.Ref{embed(t, in)}, nil
	}}
}

// vectors makes a vector of each sequence of x [B, T, Dim].
func vectors(t *fsdp.Tape, mean, normalize bool, x, mask fsdp.Ref) fsdp.Ref {
	if mean {
		x = t.Call("mean", &meanOfTokens{}, x, mask)
	} else {
		x = t.Call("first", &First{}, x)
	}
	if normalize {
		x = t.Call("normalize", &unitLength{}, x)
	}
	return x
}

// meanOfTokens maps x [B, T, Dim] and a mask, ints [B, T], to the mean over the tokens of each
// sequence, [B, Dim]. The mean of no tokens is zero.
type meanOfTokens struct{}

// Params implements fsdp.Module.
func (*meanOfTokens) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (*meanOfTokens) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 2); err != nil {
		return nil, err
	}
	return one(tokenMean.Apply(in[0], in[1]))
}

var tokenMean = &op.Custom{
	Name:     "mean of tokens",
	Shapes:   "x [b t d], mask int [b t] -> y [b d]",
	Forward:  op.Kernel{F32: meanForward[float32], F64: meanForward[float64]},
	Backward: op.Kernel{F32: meanBackward[float32], F64: meanBackward[float64]},
	Reads:    []string{"mask"},
}

// eachToken calls f for each token of each sequence, with the number of tokens of the sequence.
func eachToken[T op.Float](a op.Args[T], f func(sequence, token int, tokens T)) {
	length, mask := a.Dim("t"), a.Ints(1)
	for b := range a.Dim("b") {
		row, tokens := mask[b*length:][:length], 0
		for _, is := range row {
			if is != 0 {
				tokens++
			}
		}
		for i, is := range row {
			if is != 0 {
				f(b, b*length+i, T(tokens))
			}
		}
	}
}

func meanForward[T op.Float](a op.Args[T]) error {
	d, x, y := a.Dim("d"), a.In(0), a.Out(0)
	clear(y)
	eachToken(a, func(sequence, token int, tokens T) {
		for i, v := range x[token*d:][:d] {
			y[sequence*d+i] += v / tokens
		}
	})
	return nil
}

func meanBackward[T op.Float](a op.Args[T]) error {
	d, dy, dx := a.Dim("d"), a.DOut(), a.Grad(0)
	clear(dx)
	eachToken(a, func(sequence, token int, tokens T) {
		for i, v := range dy[sequence*d:][:d] {
			dx[token*d+i] = v / tokens
		}
	})
	return nil
}

// unitLength divides the rows of x [..., Dim] by their lengths. A row of zeros stays zero.
type unitLength struct{}

// Params implements fsdp.Module.
func (*unitLength) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (*unitLength) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 1); err != nil {
		return nil, err
	}
	return one(unitRows.Apply(in[0]))
}

var unitRows = &op.Custom{
	Name:     "unit length",
	Shapes:   "x [... d] -> y [... d]",
	Forward:  op.Kernel{F32: unitForward[float32], F64: unitForward[float64], Split: true},
	Backward: op.Kernel{F32: unitBackward[float32], F64: unitBackward[float64], Split: true},
}

// lengthOf returns the length of a vector, at least 1e-12, as in PyTorch's normalize.
func lengthOf[T op.Float](x []T) T { return T(max(math.Sqrt(float64(vec.Dot(x, x))), 1e-12)) }

func unitForward[T op.Float](a op.Args[T]) error {
	d := a.Dim("d")
	lo, hi := a.Rows()
	for row := lo; row < hi; row++ {
		x, y := a.In(0)[row*d:][:d], a.Out(0)[row*d:][:d]
		length := lengthOf(x)
		for i, v := range x {
			y[i] = v / length
		}
	}
	return nil
}

func unitBackward[T op.Float](a op.Args[T]) error {
	d := a.Dim("d")
	lo, hi := a.Rows()
	for row := lo; row < hi; row++ {
		unitGrad(a.Grad(0)[row*d:][:d], a.In(0)[row*d:][:d], a.DOut()[row*d:][:d])
	}
	return nil
}

// unitGrad sets dx to the gradient of x in y = x/|x|, whose gradient is dy.
func unitGrad[T op.Float](dx, x, dy []T) {
	length := lengthOf(x)
	along := vec.Dot(x, dy) / length / length
	for i, v := range dy {
		dx[i] = (v - along*x[i]) / length
	}
}

// innerProduct maps x and targets [B, Dim] to the mean over rows of their inner products, [1].
type innerProduct struct{}

// Params implements fsdp.Module.
func (*innerProduct) Params() []fsdp.Param { return nil }

// Build implements fsdp.Module.
func (*innerProduct) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	if err := arguments(in, 2); err != nil {
		return nil, err
	}
	if !in[0].Shape().Eq(in[1].Shape()) {
		return nil, fmt.Errorf("targets are %v, want floats %v: one for each element of the vectors", in[1].Shape(), in[0].Shape())
	}
	return one(meanProduct.Apply(in[0], in[1]))
}

var meanProduct = &op.Custom{
	Name:     "mean of inner products",
	Shapes:   "x [b d], targets f32 [b d] -> loss f32 [1]",
	Forward:  op.Kernel{F32: productForward[float32], F64: productForward[float64]},
	Backward: op.Kernel{F32: productBackward[float32], F64: productBackward[float64]},
}

func productForward[T op.Float](a op.Args[T]) error {
	a.Out(0)[0] = vec.Dot(a.In(0), a.In(1)) / T(a.Dim("b"))
	return nil
}

func productBackward[T op.Float](a op.Args[T]) error {
	scale := a.DOut()[0] / T(a.Dim("b"))
	for i, v := range a.In(1) {
		a.Grad(0)[i] = scale * v
	}
	for i, v := range a.In(0) {
		a.Grad(1)[i] = scale * v
	}
	return nil
}
