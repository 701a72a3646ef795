package exec

import (
	"fmt"
	"reflect"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Some of Gorgonia's operations have kernels here. Reductions do, because package tensor computes
// them wrongly along an inner axis of tensors of four or more axes. Operations that modules and
// differentiation use everywhere do, such as element-wise operations and broadcasts, because
// Gorgonia's own allocate. Modules use them through Gorgonia's functions. Gorgonia's rules of
// differentiation apply, except for the operations in replacements.

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

// natives return the operation for a stock operation, by its type, or nil if there is no kernel for
// it.
var natives = map[string]func(n *G.Node, kids []*G.Node) *Op{
	"gorgonia.sumOp":    func(n *G.Node, kids []*G.Node) *Op { return useWith(sumRow, along(n.Op()), n, kids) },
	"gorgonia.maxOp":    func(n *G.Node, kids []*G.Node) *Op { return useWith(maxRow, along(n.Op()), n, kids) },
	"gorgonia.repeatOp": nativeRepeat,

	"gorgonia.transposeOp": nativeTranspose,
	"gorgonia.dtConvOp":    nativeFromInt,

	"gorgonia.elemBinOp":   nativeBinary,
	"gorgonia.elemUnaryOp": nativeUnary,
	"gorgonia.minBetween":  func(n *G.Node, kids []*G.Node) *Op { return useWith(binaryRow, operator("min"), n, kids) },
	"gorgonia.maxBetween":  func(n *G.Node, kids []*G.Node) *Op { return useWith(binaryRow, operator("max"), n, kids) },
}

func useWith(r *Row, attrs any, n *G.Node, args []*G.Node) *Op {
	o := use(r, n.Shape(), args...)
	o.Attrs, o.ints = attrs, make([]bool, len(args))
	return o
}

// replacements return a node that computes the same as a stock operation with these arguments, or
// nil to keep the operation. They replace operations that Gorgonia differentiates wrongly, or that
// copy without need.
var replacements = map[string]func(n *G.Node, kids []*G.Node) (*G.Node, error){
	"gorgonia.maxOp":       replaceMax,
	"gorgonia.elemUnaryOp": replaceFunction,
	"gorgonia.elemBinOp":   replaceBinary,
	"gorgonia.tensordotOp": contraction,
	"gorgonia.linAlgBinOp": replaceProduct,
	"gorgonia.transposeOp": replaceTranspose,
	"gorgonia.sliceOp":     replaceSlice,
	"gorgonia.concatOp":    replaceConcat,
	"gorgonia.byIndicesOp": replaceLookup,
	"gorgonia.atOp":        replaceAt,
	"gorgonia.diagFlatOp":  replaceDiag,

	"gorgonia.globalAveragePoolOp": replaceAverage,
	"gorgonia.upsampleOp":          replaceUpsample,
	softmaxType:                    replaceSoftmax,
	"gorgonia.im2colOp":            replacePatches,
	"gorgonia.maxPoolOp":           replacePool,
	"gorgonia.dropoutOp":           replaceDropout,
	"gorgonia.randomOp":            replaceRandom,
}

// replaceMax handles an axis behind the first four. Gorgonia broadcasts only the first four, so its
// gradient would be wrong.
func replaceMax(n *G.Node, kids []*G.Node) (*G.Node, error) {
	if along(n.Op()) < 1<<4 {
		return nil, nil
	}
	return G.ApplyOp(native(n.Graph(), n), kids...)
}

// replaceAverage returns the mean over the last two axes of an image, which then have length 1.
func replaceAverage(n *G.Node, kids []*G.Node) (*G.Node, error) {
	y, err := G.Mean(kids[0], 2, 3)
	if err != nil {
		return nil, err
	}
	return shaped(y, n.Shape())
}

// replace replaces stock operations by operations with their own gradients.
func (tr *trace) replace() error { return tr.rebuild(tr.replacement, tr.outs, tr.updates) }

// A replacer returns the replacement of a node whose arguments are now kids, or nil to keep the
// node. made has the replacements of earlier nodes, and uses the number of uses of each node.
type replacer = func(n *G.Node, kids []*G.Node, made map[*G.Node]*G.Node, uses map[*G.Node]int) (*G.Node, error)

// rebuild replaces nodes that roots need, and creates the nodes that depend on them again.
func (tr *trace) rebuild(with replacer, roots ...G.Nodes) error {
	made, uses := make(map[*G.Node]*G.Node), make(map[*G.Node]int)
	list := order(tr.g, slices.Concat(roots...), nil)
	for _, n := range slices.Concat(roots...) {
		uses[n]++
	}
	for _, n := range list {
		if n.Op() == nil {
			continue
		}
		for _, c := range arguments(tr.g, n) {
			uses[c]++
		}
	}
	for _, n := range list {
		made[n] = n
		if n.Op() == nil {
			continue
		}
		kids, fresh := arguments(tr.g, n), false
		for i, c := range kids {
			if m, seen := made[c]; seen {
				kids[i], fresh = m, fresh || m != c
			}
		}
		to, err := with(n, kids, made, uses)
		if to == nil && err == nil && fresh {
			to, err = G.ApplyOp(n.Op(), kids...)
		}
		if err != nil {
			return fmt.Errorf("%v: %w", n.Op(), err)
		}
		if to != nil {
			made[n] = to
		}
	}
	for _, list := range roots {
		for i, n := range list {
			if n != nil {
				list[i] = made[n]
			}
		}
	}
	return nil
}

// replacement is the replacer of replace.
func (tr *trace) replacement(n *G.Node, kids []*G.Node, made map[*G.Node]*G.Node, uses map[*G.Node]int) (to *G.Node, err error) {
	name := typeName(n.Op())
	if isHost(n) {
		return nil, nil
	}
	if name == "gorgonia.transposeOp" && uses[arguments(tr.g, n)[0]] == 1 {
		if to, err = tr.convolution(n, made, uses); to != nil || err != nil {
			return to, err
		}
		if to, err = into(n, kids[0]); to != nil || err != nil {
			return to, err
		}
	}
	if with := replacements[name]; with != nil {
		return with(n, kids)
	}
	return nil, nil
}

// contraction returns n, a Tensordot of args, as a product of matrices.
func contraction(n *G.Node, args []*G.Node) (*G.Node, error) {
	// matrix returns x as [rows, columns], with the given axes in front or behind the others
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
		x, err := G.Transpose(x, order...)
		if err != nil {
			return nil, err
		}
		return shaped(x, to)
	}
	a, err := matrix(args[0], "aAxes", false)
	if err != nil {
		return nil, err
	}
	b, err := matrix(args[1], "bAxes", true)
	if err != nil {
		return nil, err
	}
	y, err := product(a, b, false, false)
	if err != nil {
		return nil, err
	}
	return shaped(y, n.Shape())
}

// constSize returns the value of one of Gorgonia's SizeOf nodes, which is known when a module is
// traced. It returns nil for other nodes.
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
