package exec

import (
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Policy decides which forward values are kept for backward and which are computed again.
type Policy uint8

// Balanced keeps values that are expensive to compute (products, attention, stock operations) and
// recomputes cheap ones (activations, norms, sums). SaveAll keeps every value that backward uses.
// RecomputeAll keeps only the inputs of the call and runs its forward again: activation
// checkpointing (Chen et al., 2016, arXiv:1604.06174).
const (
	Balanced Policy = iota
	SaveAll
	RecomputeAll
)

// partition is a trace cut into a forward and a backward.
type partition struct {
	*trace
	forward, backward G.Nodes // in execution order
	saved             G.Nodes // computed in forward, used in backward
	// updating are the forward values that only updates of buffers need. They are computed only in
	// training, and never saved.
	updating map[*G.Node]bool
}

func (tr *trace) partition(policy Policy, grads bool) *partition {
	p := &partition{trace: tr, updating: make(map[*G.Node]bool)}
	forward := order(tr.g, tr.outs, nil)
	inForward := make(map[*G.Node]bool)
	for _, n := range forward {
		inForward[n] = true
	}
	p.forward = slipIn(tr.g, forward, tr.updates, nil)
	for _, n := range p.forward {
		p.updating[n] = !inForward[n]
	}
	if !grads {
		return p
	}
	onInput := tr.dependsOnInput(p.forward)
	savable := func(n *G.Node) bool {
		if !inForward[n] || !onInput[n] || n.Op() == nil || isConst(n) || isView(n) || isHost(n) {
			return false
		}
		switch policy {
		case SaveAll:
			return true
		case RecomputeAll:
			return false
		default:
			op := native(tr.g, n)
			return op == nil || !op.Cheap
		}
	}
	p.backward = slipIn(tr.g, order(tr.g, tr.gradIn, savable), tr.gradParam, savable)
	for _, n := range p.backward {
		if savable(n) {
			p.saved = append(p.saved, n)
		}
	}
	return p
}

// dependsOnInput returns the values that depend on the inputs of the call. The others depend only
// on parameters and constants. Saving them would keep unsharded weights alive.
func (tr *trace) dependsOnInput(nodes G.Nodes) map[*G.Node]bool {
	depends := make(map[*G.Node]bool)
	for _, n := range nodes {
		if n.Op() == nil {
			depends[n] = slices.Contains(tr.in, n)
			continue
		}
		for _, c := range children(tr.g, n) {
			depends[n] = depends[n] || depends[c]
		}
	}
	return depends
}

// slipIn adds roots, and the nodes they need, to nodes in execution order. The roots are gradients
// of parameters in backward, or updates of buffers in forward: no node in the list needs them. Each
// is inserted as soon as its arguments exist, so that these can be dropped early. stop is as in
// order.
func slipIn(g *G.ExprGraph, list, roots G.Nodes, stop func(*G.Node) bool) G.Nodes {
	index := make(map[*G.Node]int)
	for _, root := range roots {
		if root == nil {
			continue
		}
		clear(index)
		for i, n := range list {
			index[n] = i
		}
		needed := order(g, G.Nodes{root}, func(n *G.Node) bool {
			_, placed := index[n]
			return placed || stop != nil && stop(n)
		})
		var extra G.Nodes
		after := -1
		for _, n := range needed {
			if i, placed := index[n]; placed {
				after = max(after, i)
			} else {
				extra = append(extra, n)
			}
		}
		list = slices.Insert(list, after+1, extra...)
	}
	return list
}

// isView reports whether n's value is memory of its argument.
func isView(n *G.Node) bool {
	if op, ok := n.Op().(*Op); ok {
		return op.View
	}
	return n.Op() != nil && isReshape(n.Op())
}

// isHost reports whether n's value is not a float tensor, like the sizes that Gorgonia computes in
// a graph. Such values stay on the Go heap and are cheap.
func isHost(n *G.Node) bool {
	dt := n.Dtype()
	return n.Op() != nil && !isConst(n) && dt != tensor.Float32 && dt != tensor.Float64
}
