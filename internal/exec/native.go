package exec

import (
	"fmt"
	"reflect"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Some of Gorgonia's operations have kernels here: reductions, because those of package tensor are
// wrong along an inner axis of four or more, and what differentiation adds everywhere, such as sums
// and broadcasts, because Gorgonia's own allocate. A module uses them by Gorgonia's functions, and
// Gorgonia's rules of differentiation hold.

// native returns the operation of n, or nil if n runs as a stock operation.
func native(g *G.ExprGraph, n *G.Node) *Op {
	if op, ok := n.Op().(*Op); ok {
		return op
	}
	if n.Op() == nil || isHost(n) {
		return nil
	}
	if find := natives[typeName(n.Op())]; find != nil {
		return find(n, children(g, n))
	}
	return nil
}

// natives find the operation for a stock operation of that type, or nil if there is none for it.
var natives = map[string]func(n *G.Node, kids []*G.Node) *Op{
	"gorgonia.sumOp":    func(n *G.Node, kids []*G.Node) *Op { return useWith(sumRow, along(n.Op()), n, kids) },
	"gorgonia.maxOp":    func(n *G.Node, kids []*G.Node) *Op { return useWith(maxRow, along(n.Op()), n, kids) },
	"gorgonia.repeatOp": nativeRepeat,

	"gorgonia.elemBinOp":   nativeBinary,
	"gorgonia.elemUnaryOp": nativeUnary,
	"gorgonia.minBetween":  func(n *G.Node, kids []*G.Node) *Op { return useWith(binaryRow, Binary{"min"}, n, kids) },
	"gorgonia.maxBetween":  func(n *G.Node, kids []*G.Node) *Op { return useWith(binaryRow, Binary{"max"}, n, kids) },
}

func useWith(r *Row, attrs any, n *G.Node, args []*G.Node) *Op {
	o := use(r, n.Shape(), args...)
	o.Attrs, o.ints = attrs, make([]bool, len(args))
	return o
}

// replace puts operations with gradients of their own in the place of stock operations whose rules
// of differentiation are wrong, and makes what depends on them anew. Gorgonia broadcasts the first
// four axes only, by which the gradient of a Max along another would be wrong. A Tensordot becomes
// a product of matrices: its own rules hold for a few pairs of axes.
func (tr *trace) replace() error {
	made := make(map[*G.Node]*G.Node)
	for _, n := range order(tr.g, slices.Concat(tr.outs, tr.updates), nil) {
		made[n] = n
		if n.Op() == nil {
			continue
		}
		op, kids := n.Op(), arguments(tr.g, n)
		fresh := typeName(op) == "gorgonia.maxOp" && along(op) >= 1<<4 && !isHost(n)
		if fresh {
			op = native(tr.g, n)
		}
		for i, c := range kids {
			if to, seen := made[c]; seen {
				kids[i], fresh = to, fresh || to != c
			}
		}
		var err error
		if typeName(op) == "gorgonia.tensordotOp" {
			made[n], err = contraction(n, kids)
		} else if fresh {
			made[n], err = G.ApplyOp(op, kids...)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", n.Op(), err)
		}
	}
	for _, list := range []G.Nodes{tr.outs, tr.updates} {
		for i, n := range list {
			if n != nil {
				list[i] = made[n]
			}
		}
	}
	return nil
}

// contraction returns what n, a Tensordot of args, computes, as a product of matrices.
func contraction(n *G.Node, args []*G.Node) (*G.Node, error) {
	// matrix returns x with the axes in front, or behind the others, as [rows, columns]. It is a
	// vector if there are no others in either argument.
	matrix := func(x *G.Node, field string, front bool) (*G.Node, error) {
		var axes, others []int
		list := reflect.ValueOf(n.Op()).FieldByName(field)
		for i := range list.Len() {
			axes = append(axes, int(list.Index(i).Int()))
		}
		summed, shape := 1, x.Shape().Clone()
		for axis, size := range shape {
			if slices.Contains(axes, axis) {
				summed *= size
			} else {
				others = append(others, axis)
			}
		}
		to := tensor.Shape{Numel(shape) / summed, summed}
		order := slices.Concat(others, axes)
		if front {
			to, order = tensor.Shape{summed, Numel(shape) / summed}, slices.Concat(axes, others)
		}
		if n.IsScalar() {
			to = tensor.Shape{summed}
		}
		x, err := G.Transpose(x, order...)
		if err != nil {
			return nil, err
		}
		return G.Reshape(x, to)
	}
	a, err := matrix(args[0], "aAxes", false)
	if err != nil {
		return nil, err
	}
	b, err := matrix(args[1], "bAxes", true)
	if err != nil {
		return nil, err
	}
	y, err := G.Mul(a, b)
	if err != nil || n.IsScalar() {
		return y, err
	}
	return G.Reshape(y, n.Shape().Clone())
}

// constSize returns the number that a SizeOf of Gorgonia's stands for, which is known when a module
// is traced, or nil if n is something else.
func constSize(n *G.Node) G.Value {
	if n.Op() == nil || typeName(n.Op()) != "gorgonia.sizeOp" {
		return nil
	}
	size := reflect.ValueOf(n.Op()).FieldByName("val").Int()
	switch n.Dtype() {
	case tensor.Float32:
		return G.NewF32(float32(size))
	case tensor.Float64:
		return G.NewF64(float64(size))
	case tensor.Int:
		return G.NewI(int(size))
	}
	return nil
}
