package exec

import (
	"fmt"
	"runtime/debug"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// trace is a module's graph with the gradients of its outputs.
type trace struct {
	*Builder
	in, params, outs, gradOut G.Nodes
	gradIn, gradParam         G.Nodes // nil where no gradient was asked for or none exists
	trained                   []bool  // by parameter: whether a gradient is asked for
}

// traceTwice traces the module under two sets of names and compares the graphs.
//
// Gorgonia merges nodes whose 32-bit hashes collide without looking at their arguments (equalities.go), which would
// compute something else without any error. Hashes cover the names of inputs, so a collision in one trace is not one in
// the other, and the graphs differ. The comparison also catches a Build that is not deterministic.
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
				i, at(a, i), at(b, i))
		}
	}
	return tr, nil
}

func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return "no node"
}

func newTrace(spec *Spec, sig *Signature, salt string) (*trace, error) {
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
	if err := tr.build(spec); err != nil {
		return nil, err
	}
	if err := tr.guard(); err != nil {
		return nil, err
	}
	if sig.GradOut != nil {
		if err := tr.differentiate(sig); err != nil {
			return nil, err
		}
	}
	return tr, nil
}

// build calls Build and turns a panic, which is how many of Gorgonia's functions report misuse, into an error.
func (tr *trace) build(spec *Spec) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the module's Build panicked: %v\n%s", r, debug.Stack())
		}
	}()
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
		// An output must be a node of its own for its gradient to be one: not an input, and not another output.
		if o.Op() == nil || isConst(o) || slices.Contains(tr.outs, o) {
			if o, err = outputRow.Apply(Output{i}, o); err != nil {
				return err
			}
		}
		tr.outs = append(tr.outs, o)
	}
	return nil
}

// differentiate adds the gradients of the outputs in sig.GradOut with respect to the parameters and the inputs that want
// one. Gorgonia fails when an output or a target takes no part, so both are narrowed to those that do.
func (tr *trace) differentiate(sig *Signature) error {
	var outs, gouts, targets G.Nodes
	tr.gradOut = make(G.Nodes, len(tr.outs))
	tr.gradIn, tr.gradParam = make(G.Nodes, len(tr.in)), make(G.Nodes, len(tr.params))
	wanted := make(map[*G.Node]*G.Node) // target -> its gradient
	for i, n := range tr.in {
		if sig.Inputs[i].Grad {
			wanted[n] = nil
		}
	}
	for i, p := range tr.specs {
		tr.trained = append(tr.trained, !p.Buffer && !(i < len(sig.FrozenParam) && sig.FrozenParam[i]))
		if tr.trained[i] {
			wanted[tr.params[i]] = nil
		}
	}
	reached := make(map[*G.Node]bool)
	for i, o := range tr.outs {
		if i >= len(sig.GradOut) || !sig.GradOut[i] {
			continue
		}
		tr.gradOut[i] = tr.input(fmt.Sprintf("grad out %d", i), tr.dtype, o.Shape())
		hit, err := reachable(tr.g, o, wanted)
		if err != nil {
			return err
		}
		if len(hit) > 0 {
			outs, gouts = append(outs, o), append(gouts, tr.gradOut[i])
			for n := range hit {
				reached[n] = true
			}
		}
	}
	for _, n := range slices.Concat(tr.in, tr.params) {
		if reached[n] {
			targets = append(targets, n)
		}
	}
	if len(targets) == 0 {
		return nil
	}
	grads, err := backpropagate(outs, gouts, targets)
	if err != nil {
		return err
	}
	for i, n := range targets {
		if got, want := grads[i].Shape(), n.Shape(); !slices.Equal(squeezed(got), squeezed(want)) {
			return fmt.Errorf("differentiation: the gradient of %s, of shape %v, has shape %v: a stock operation's gradient is wrong", n.Name(), want, got)
		}
		wanted[n] = grads[i]
	}
	for i, n := range tr.in {
		tr.gradIn[i] = wanted[n]
	}
	for i, n := range tr.params {
		tr.gradParam[i] = wanted[n]
	}
	return nil
}

func backpropagate(outs, gouts, targets G.Nodes) (grads G.Nodes, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("differentiation panicked: %v\n%s", r, debug.Stack())
		}
	}()
	if grads, err = G.Backpropagate(outs, gouts, targets); err != nil {
		return nil, fmt.Errorf("differentiation: %w", err)
	}
	return grads, nil
}

// squeezed returns s without the dimensions of 1, which Gorgonia's gradients drop and add: (3, 1), (1, 3) and (3) are
// one to it, and all lie in memory alike.
func squeezed(s tensor.Shape) []int {
	return slices.DeleteFunc(slices.Clone([]int(s)), func(d int) bool { return d == 1 })
}

// reachable returns the targets that out depends on through differentiable arguments. A target behind an operation that
// has no gradient is an error, since leaving it out would make its gradient zero.
func reachable(g *G.ExprGraph, out *G.Node, targets map[*G.Node]*G.Node) (hit map[*G.Node]bool, err error) {
	hit = make(map[*G.Node]bool)
	leads := make(map[*G.Node]bool) // to a target, by visited node
	var visit func(n *G.Node) bool
	visit = func(n *G.Node) bool {
		if known, ok := leads[n]; ok {
			return known
		}
		if _, leads[n] = targets[n]; leads[n] {
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

// differentiable tells for each argument of op whether its gradient takes part, or returns nil if op ought to have a
// gradient and has none. An operation may say that an argument does not matter to first order, as comparisons and
// operations on sizes do; gorgonia.At says so too, but it is wrong, and the gradient of gorgonia.ConvType is rounded to the
// type converted from.
func differentiable(op G.Op, arity int) []bool {
	sd, ok := op.(G.SDOp)
	if !ok || typeName(op) == "gorgonia.atOp" || typeName(op) == "gorgonia.dtConvOp" {
		return nil
	}
	return append([]bool{}, sd.DiffWRT(arity)...)
}

// children returns n's arguments in order.
func children(g *G.ExprGraph, n *G.Node) []*G.Node {
	it := g.From(n.ID())
	kids := make([]*G.Node, 0, it.Len())
	for it.Next() {
		kids = append(kids, it.Node().(*G.Node))
	}
	return kids
}

func isConst(n *G.Node) bool { return constValue(n) != nil }

// constValue returns the value of a constant, or nil if n is none.
func constValue(n *G.Node) G.Value {
	if n.Op() == nil {
		return nil
	}
	switch typeName(n.Op()) {
	case "gorgonia.constantScalar", "gorgonia.constantTensor":
		return n.Op().(interface{ Value() G.Value }).Value()
	}
	return nil
}

// structure lists the nodes that the results need, children first, each as text that does not depend on the names.
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
		case isConst(n):
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

// order returns the nodes that roots need, arguments before results. It does not look behind nodes for which stop is
// true.
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
