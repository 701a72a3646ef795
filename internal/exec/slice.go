package exec

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Gorgonia hashes only the lowest eight bits of the bounds of a Slice. So it merges two Slices of
// equal length whose beginnings differ by a multiple of 256, such as the thirds of [T, 768], and
// the graph does not show it. It also merges SoftMax and LogSoftMax of one value. If such a pair is
// possible, the module is built once more with traps in the graph, which count how often Build
// creates the node.

// distinctNodes refuses a module that creates two nodes which Gorgonia may have merged.
func (tr *trace) distinctNodes(spec *Spec, sig *Signature) error {
	traps := make(map[*G.Node]*trap)
	for _, n := range order(tr.g, slices.Concat(tr.outs, tr.updates), nil) {
		if confusable(tr.g, n) {
			traps[n] = new(trap)
		}
	}
	if len(traps) == 0 {
		return nil
	}
	again := blankTrace(spec, sig, tr.salt)
	for n, t := range traps {
		t.set(again.g, n.Hashcode())
	}
	if err := again.build(spec); err != nil {
		return err
	}
	for n, t := range traps {
		if t.made > 1 && typeName(n.Op()) == softmaxType {
			return fmt.Errorf("stock operation %v is refused: Gorgonia confuses SoftMax and LogSoftMax of one value, and Build makes %d of %v: "+
				"make only one of them, and take its Log or Exp for the other", n.Op(), t.made, children(tr.g, n)[0].Shape())
		}
		if t.made > 1 {
			return fmt.Errorf("stock operation %v is refused: Gorgonia confuses Slices of equal length whose bounds differ by a multiple of 256, "+
				"and Build makes %d such Slices of %v: first Reshape so that the parts have a separate axis, or make the Slice once and use it twice",
				n.Op(), t.made, children(tr.g, n)[0].Shape())
		}
	}
	return nil
}

const softmaxType = "gorgonia.softmaxOp"

// confusable reports whether another Slice or softmax of n's argument could have the hash of n.
func confusable(g *G.ExprGraph, n *G.Node) bool {
	if n.Op() != nil && typeName(n.Op()) == softmaxType {
		return true
	}
	if n.Op() == nil || typeName(n.Op()) != "gorgonia.sliceOp" {
		return false
	}
	op := reflect.ValueOf(n.Op()).Elem()
	if op.FieldByName("Slice").IsNil() {
		return false
	}
	by, size := n.Op().(tensor.Slice), children(g, n)[0].Shape()[op.FieldByName("along").Int()]
	return by.Start() >= 256 || by.End()+256 <= size
}

// trap is the operation of a node that replaces all nodes of one hash in a graph. Whenever a node
// of that hash is added, Gorgonia compares it with the trap first.
type trap struct {
	G.Op
	made int
}

// set puts t into g. It also makes Gorgonia keep the nodes of that hash in a list, of which t is
// the first.
func (t *trap) set(g *G.ExprGraph, hash uint32) {
	n := new(G.Node)
	G.WithOp(t)(n)
	v := reflect.ValueOf(g).Elem()
	(*(*map[uint32]*G.Node)(unsafe.Pointer(v.FieldByName("byHash").UnsafeAddr())))[hash] = nil
	(*(*map[uint32]G.Nodes)(unsafe.Pointer(v.FieldByName("evac").UnsafeAddr())))[hash] = G.Nodes{n}
}

// Hashcode implements gorgonia.Op. It counts nodes that are created, and does not count nodes that
// are looked up as arguments of others.
func (t *trap) Hashcode() uint32 {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.HasSuffix(f.Function, ".fixChildren") || strings.HasSuffix(f.Function, ".SetEdge") {
			return 0
		}
	}
	t.made++
	return 0
}
