package exec

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/caught"
)

// trace is a module's graph with the gradients of its outputs.
type trace struct {
	*Builder
	in, params, outs, gradOut G.Nodes
	gradIn, gradParam         G.Nodes // nil if no gradient is wanted or none exists
	trained                   []bool  // by parameter: whether a gradient is wanted
}

// traceTwice traces the module under two sets of names and compares the graphs.
//
// Gorgonia merges nodes whose 32-bit hashes collide without comparing their arguments
// (equalities.go). The graph would then compute something else without any error. Hashes cover the
// names of inputs, so nodes that collide in one trace do not collide in the other, and the graphs
// differ. The comparison also finds a Build that is not deterministic.
func traceTwice(spec *Spec, sig *Signature) (*trace, error) {
	tr, err := newTrace(spec, sig, "")
	if err != nil {
		return nil, err
	}
	again, err := newTrace(spec, sig, "again: ")
	if err != nil {
		return nil, err
	}
	a, b := tr.structure(), again.structure()
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return nil, fmt.Errorf("two traces of the module differ at node %d (%s, %s): Build is not deterministic, or two nodes collided in Gorgonia's 32-bit hash; reordering Build avoids a collision",
				i, element(a, i), element(b, i))
		}
	}
	return tr, nil
}

func element(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return "no node"
}

// blankTrace returns an empty graph, to which Build adds the module.
func blankTrace(spec *Spec, sig *Signature, salt string) *trace {
	tr := &trace{Builder: newBuilder(sig.DType, spec.Params, salt)}
	for _, p := range spec.Params {
		tr.params = append(tr.params, tr.Builder.params[p.Name])
	}
	for i, in := range sig.Inputs {
		if in.Same > 0 {
			tr.in = append(tr.in, tr.in[in.Same-1])
			continue
		}
		tr.in = append(tr.in, tr.input(fmt.Sprintf("in %d", i), in.DType, in.Shape))
	}
	return tr
}

func newTrace(spec *Spec, sig *Signature, salt string) (*trace, error) {
	tr := blankTrace(spec, sig, salt)
	if err := tr.build(spec); err != nil {
		return nil, err
	}
	forgetPlaces(tr.g)
	if err := tr.guard(); err != nil {
		return nil, err
	}
	if err := tr.distinctNodes(spec, sig); err != nil {
		return nil, err
	}
	if err := tr.replace(); err != nil {
		return nil, err
	}
	if err := tr.separate(); err != nil {
		return nil, err
	}
	if sig.GradOut != nil {
		if err := tr.differentiate(sig); err != nil {
			return nil, err
		}
	}
	if sig.Apart {
		if err := tr.mergeResults(); err != nil {
			return nil, fmt.Errorf("operations that follow others: %w", err)
		}
	}
	return tr, nil
}

// build calls Build. Many of Gorgonia's functions report misuse by a panic, which becomes an error.
func (tr *trace) build(spec *Spec) (err error) {
	defer caught.Panic(&err, "the module's Build")
	outs, err := spec.Build(tr.Builder, slices.Clone(tr.in))
	if err != nil {
		return fmt.Errorf("in Build: %w", err)
	}
	if len(outs) == 0 {
		return fmt.Errorf("the module's Build returned no outputs")
	}
	for i, o := range outs {
		if o == nil {
			return fmt.Errorf("in Build: output %d is nil", i)
		}
		if o.Graph() != tr.g {
			return fmt.Errorf("in Build: output %d is a node of another graph", i)
		}
		if dt := o.Dtype(); dt != tr.dtype {
			return fmt.Errorf("in Build: output %d is %v, want %v", i, dt, tr.dtype)
		}
		tr.outs = append(tr.outs, o)
	}
	return nil
}

// separate gives every output its own node, so that its gradient is separate.
func (tr *trace) separate() (err error) {
	for i, o := range tr.outs {
		if o.Op() == nil || isConst(o) || slices.Contains(tr.outs[:i], o) {
			if tr.outs[i], err = outputRow.Apply(Output{i}, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// differentiate adds the gradients of the outputs in sig.GradOut with respect to the parameters and
// inputs that need one.
func (tr *trace) differentiate(sig *Signature) error {
	tr.gradIn, tr.gradParam = make(G.Nodes, len(tr.in)), make(G.Nodes, len(tr.params))
	for _, n := range order(tr.g, tr.outs, nil) {
		if n.Deriv() != nil {
			return errors.New("differentiation: Build calls Grad or Backpropagate, and Gorgonia does not differentiate twice: " +
				"write the derivative as operations, or return the value to differentiate as an output")
		}
	}
	wanted := tr.wanted(sig)
	if sig.Apart {
		if err := tr.rebuild(early(wanted), tr.outs, tr.updates); err != nil {
			return fmt.Errorf("differentiation: %w", err)
		}
	}
	outs, gouts, reached, err := tr.seeds(sig, wanted)
	if err != nil || len(outs) == 0 {
		return err
	}
	var targets G.Nodes
	for _, n := range slices.Concat(tr.in, tr.params) {
		if reached[n] {
			targets = append(targets, n)
		}
	}
	grads, err := backpropagate(outs, gouts, targets)
	forgetPlaces(tr.g)
	if err != nil {
		return err
	}
	of := make(map[*G.Node]*G.Node)
	for i, n := range targets {
		if got, want := grads[i].Shape(), n.Shape(); !slices.Equal(squeezed(got), squeezed(want)) {
			return fmt.Errorf("differentiation: the gradient of %s, of shape %v, has shape %v: "+
				"a stock operation's gradient is wrong", n.Name(), want, got)
		}
		of[n] = grads[i]
	}
	for i, n := range tr.in {
		tr.gradIn[i] = of[n]
	}
	for i, n := range tr.params {
		tr.gradParam[i] = of[n]
	}
	if err := tr.rebuild(addSlices, tr.gradIn, tr.gradParam); err != nil {
		return fmt.Errorf("differentiation: %w", err)
	}
	return nil
}

// wanted returns the inputs and parameters that need a gradient.
func (tr *trace) wanted(sig *Signature) map[*G.Node]bool {
	wanted := make(map[*G.Node]bool)
	for i, n := range tr.in {
		if sig.Inputs[i].Grad {
			wanted[n] = true
		}
	}
	for i, p := range tr.specs {
		frozen := i < len(sig.FrozenParam) && sig.FrozenParam[i]
		tr.trained = append(tr.trained, !p.Buffer && !frozen)
		if tr.trained[i] {
			wanted[tr.params[i]] = true
		}
	}
	return wanted
}

// early returns a replacer for operations that can compute gradients with their result (Row.Early).
func early(wanted map[*G.Node]bool) replacer {
	return func(n *G.Node, kids []*G.Node, _ map[*G.Node]*G.Node, _ map[*G.Node]int) (*G.Node, error) {
		op, ours := n.Op().(*Op)
		if !ours || op.Early == nil {
			return nil, nil
		}
		var failed error
		row := op.Early(op, func(arg int) bool {
			hit, err := reachable(n.Graph(), kids[arg], wanted)
			failed = errors.Join(failed, err)
			return len(hit) > 0
		})
		if row == nil || failed != nil {
			return nil, failed
		}
		return row.Apply(op.Attrs, kids...)
	}
}

// seeds creates an input for the gradient of each output that has one. It returns the outputs that
// depend on wanted nodes, with their gradients, and these wanted nodes. Gorgonia fails for an
// output that depends on no target, and for a target that no output depends on.
func (tr *trace) seeds(sig *Signature, wanted map[*G.Node]bool) (outs, gouts G.Nodes, reached map[*G.Node]bool, err error) {
	tr.gradOut, reached = make(G.Nodes, len(tr.outs)), make(map[*G.Node]bool)
	for i, o := range tr.outs {
		if i >= len(sig.GradOut) || !sig.GradOut[i] {
			continue
		}
		tr.gradOut[i] = tr.input(fmt.Sprintf("grad out %d", i), tr.dtype, o.Shape())
		hit, err := reachable(tr.g, o, wanted)
		if err != nil {
			return nil, nil, nil, err
		}
		if len(hit) > 0 {
			outs, gouts = append(outs, o), append(gouts, tr.gradOut[i])
			maps.Copy(reached, hit)
		}
	}
	return outs, gouts, reached, nil
}

func backpropagate(outs, gouts, targets G.Nodes) (grads G.Nodes, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("differentiation panicked: %v", r)
		}
	}()
	if grads, err = G.Backpropagate(outs, gouts, targets); err != nil {
		return nil, fmt.Errorf("differentiation: %s", strings.TrimPrefix(err.Error(), ".SymDiff() failed: "))
	}
	return grads, nil
}

// forgetPlaces makes g look its nodes up again. Gorgonia replaces log(1+x) by log1p(x), for example
// in BinaryXent, and removes 1+x from the graph. But it keeps the old indices of the nodes behind
// it, and so confuses nodes.
func forgetPlaces(g *G.ExprGraph) {
	clear(*(*map[int64]int)(unsafe.Pointer(reflect.ValueOf(g).Elem().FieldByName("byID").UnsafeAddr())))
}

// squeezed returns s without the dimensions of 1, which Gorgonia's gradients drop and add. (3, 1),
// (1, 3) and (3) have the same memory layout.
func squeezed(s tensor.Shape) []int {
	return slices.DeleteFunc(slices.Clone([]int(s)), func(d int) bool { return d == 1 })
}

// reachable returns the targets that out depends on through differentiable arguments. A target
// behind an operation without a gradient is an error: its gradient would be zero.
func reachable(g *G.ExprGraph, out *G.Node, targets map[*G.Node]bool) (hit map[*G.Node]bool, err error) {
	hit = make(map[*G.Node]bool)
	leads := make(map[*G.Node]bool) // by visited node: whether it leads to a target
	var visit func(n *G.Node) bool
	visit = func(n *G.Node) bool {
		if known, ok := leads[n]; ok {
			return known
		}
		if leads[n] = targets[n]; leads[n] {
			hit[n] = true
		}
		if n.Op() == nil {
			return leads[n]
		}
		kids := children(g, n)
		diff := differentiable(n.Op(), len(kids))
		for i, k := range kids {
			if (diff == nil || i < len(diff) && diff[i]) && visit(k) {
				leads[n] = true
			}
		}
		if diff == nil && leads[n] && err == nil {
			err = fmt.Errorf("differentiation: %v is not differentiable", n.Op())
		}
		return leads[n]
	}
	visit(out)
	return hit, err
}

// differentiable reports for each argument of op whether it has a gradient. It returns nil if op
// should have a gradient and has none. An operation may declare that an argument has no effect to
// first order, as comparisons and operations on sizes do. The gradient of gorgonia.ConvType is
// rounded to the type converted from.
func differentiable(op G.Op, arity int) []bool {
	sd, ok := op.(G.SDOp)
	if !ok || typeName(op) == "gorgonia.dtConvOp" {
		return nil
	}
	return append([]bool{}, sd.DiffWRT(arity)...)
}

// children returns n's arguments in order. Sizes are left out, since they are known.
func children(g *G.ExprGraph, n *G.Node) []*G.Node {
	if constSize(n) != nil || isTable(n) {
		return nil
	}
	kids := arguments(g, n)
	if typeName(n.Op()) == "gorgonia.repeatOp" && !isHost(n) {
		return kids[:1]
	}
	return kids
}

// arguments returns all arguments of n in order.
func arguments(g *G.ExprGraph, n *G.Node) []*G.Node {
	it := g.From(n.ID())
	kids := make([]*G.Node, 0, it.Len())
	for it.Next() {
		kids = append(kids, it.Node().(*G.Node))
	}
	return kids
}

func isConst(n *G.Node) bool { return constValue(n) != nil || isTable(n) }

// isTable reports whether n is an operation whose result is constant.
func isTable(n *G.Node) bool {
	op, ours := n.Op().(*Op)
	return ours && op.Constant
}

// constValue returns the value of a constant, or nil if n is not one.
func constValue(n *G.Node) G.Value {
	if n.Op() == nil {
		return nil
	}
	switch typeName(n.Op()) {
	case "gorgonia.constantScalar", "gorgonia.constantTensor":
		return n.Op().(interface{ Value() G.Value }).Value()
	}
	return constSize(n)
}

// structure lists the nodes that the results need, arguments first, as texts without names.
func (tr *trace) structure() []string {
	role := make(map[*G.Node]string)
	for kind, nodes := range map[string]G.Nodes{"in": tr.in, "param": tr.params, "grad out": tr.gradOut} {
		for i, n := range nodes {
			if n != nil {
				role[n] = fmt.Sprintf("%s %d", kind, i)
			}
		}
	}
	var text []string
	for _, n := range order(tr.g, tr.roots(), nil) {
		switch {
		case role[n] != "":
			text = append(text, role[n])
		case tr.consts[n] != "":
			text = append(text, tr.consts[n])
		case constValue(n) != nil:
			text = append(text, fmt.Sprintf("const %v %v", n.Dtype(), constValue(n)))
		default:
			text = append(text, fmt.Sprintf("%v%v", n.Op(), n.Shape()))
		}
	}
	index := make(map[*G.Node]int)
	for i, n := range order(tr.g, tr.roots(), nil) {
		index[n] = i
		if n.Op() != nil {
			for _, c := range children(tr.g, n) {
				text[i] += fmt.Sprintf(" %d", index[c])
			}
		}
	}
	for _, r := range tr.roots() {
		text = append(text, fmt.Sprintf("root %d", index[r]))
	}
	for i, n := range tr.updates {
		if n != nil {
			text = append(text, fmt.Sprintf("update of parameter %d by %d", i, index[n]))
		}
	}
	return text
}

// roots returns the nodes that must be computed.
func (tr *trace) roots() G.Nodes {
	var roots G.Nodes
	for _, n := range slices.Concat(tr.outs, tr.updates, tr.gradIn, tr.gradParam) {
		if n != nil {
			roots = append(roots, n)
		}
	}
	return roots
}

// order returns the nodes that roots need, arguments before results. It does not visit the
// arguments of nodes for which stop is true.
func order(g *G.ExprGraph, roots G.Nodes, stop func(*G.Node) bool) G.Nodes {
	var list G.Nodes
	seen := make(map[*G.Node]bool)
	var visit func(n *G.Node)
	visit = func(n *G.Node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		if n.Op() != nil && (stop == nil || !stop(n)) {
			for _, c := range children(g, n) {
				visit(c)
			}
		}
		list = append(list, n)
	}
	for _, r := range roots {
		visit(r)
	}
	return list
}
