package plan

import (
	"cmp"
	"fmt"
)

// A Pass is a training pass of one rank: forward, backward and the collectives, in the order in
// which they are issued. It is immutable.
type Pass struct {
	Ops     []Op
	Groups  []Group
	Calls   []Call
	Units   []Unit   // one per distinct module; calls of equal modules share one
	Buffers []Buffer // that operations hold

	Ranks    int // that train together
	Threads  int // of each rank, fsdp.Config.Threads; 0 means 1, and at most the cores of a host count
	Owned    int // elements of trained parameters that this rank updates
	PerOwned int // bytes that the optimizer reads and writes for each of them
	Copied   int // bytes of copies of parameters that the optimizer writes, too
}

// An Op is an operation of a pass, on a group or a call. The index of the one it is not on is -1.
type Op struct {
	Kind        Kind
	Group, Call int
	Second      int    // of Gather and Wait: ranks from which a second copy of the parameters is gathered, or 0
	Live        Memory // held while it runs
}

// Kind is the kind of an Op.
type Kind uint8

// The operations, as package fsdp has them.
const (
	Gather   Kind = iota // begins to gather the parameters of a group
	Wait                 // waits for the gather
	Forward              // computes a call
	Turn                 // the loss is known
	Free                 // drops whole parameters
	Backward             // computes the gradients of a call
	Reduce               // begins to sum the gradients of a group over its ranks
	Sync                 // waits for the reduce, and begins to sum over the replicas
	Drain                // waits for the sums, and adds them to the gradients of the rank
	Kinds
)

// String returns the kind in lower case.
func (k Kind) String() string {
	names := [Kinds]string{"gather", "wait", "forward", "turn", "free", "backward", "reduce", "sync", "drain"}
	if k < Kinds {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// A Group is a set of parameters that travel together.
type Group struct {
	Name             string
	Shards, Replicas int // ranks that the group is cut over; ranks that have the same piece
	Params, Grads    int // bytes of the whole group in a collective
	Sums             int // bytes of the gradients between replicas, 0 if the same as Grads
	Stored           int // bytes of this rank's piece of the parameters; its gradients take as many if any is Owned
	Held             int // bytes of piece and gradients that count as live: see Memory
	Owned            int // elements of the piece that the optimizer updates, padding included
}

// Wide reports whether the parameters travel in the type in which the ranks keep them.
func (g *Group) Wide() bool { return g.Params >= g.Stored*g.Shards }

// Work returns the work of one rank for an operation on the group where cores move the bytes. Bytes
// are taken from other ranks. FLOPs is the number of bytes that the rank has in the end, and which
// it widens or adds to its gradients. If Shards or Replicas is 0, it counts as 1.
func (g *Group) Work(k Kind) Work {
	shards, replicas := max(g.Shards, 1), max(g.Replicas, 1)
	switch k {
	case Gather, Wait:
		return Work{Bytes: g.Params - g.Params/shards, FLOPs: g.Params, Wide: g.Wide()}
	case Reduce, Sync, Drain:
		own, sum := g.Grads/shards, g.sums()/shards
		return Work{Bytes: g.Grads - own + 2*(sum-sum/replicas), FLOPs: own, Wide: g.Wide()}
	default:
		return Work{Wide: true}
	}
}

// sums returns the bytes of the whole group's gradients between replicas.
func (g *Group) sums() int { return cmp.Or(g.Sums, g.Grads) }

// A Call is a module's place in the model.
type Call struct {
	Name string
	Unit int // index in Pass.Units
}

// A Unit is the work of one module.
type Unit struct{ Forward, Backward []Work }

// Work is the sum of operations that cost the same.
type Work struct {
	Op    string // name in the table of operations, which a [Rate] refers to
	Class Class
	Count int // number of operations
	// Of each operation: arithmetic, and the bytes that it reads and writes at least.
	FLOPs, Bytes int
	// For a product: rows and columns of the result, and the length of the sums. For attention,
	// Depth is the size of a head.
	Rows, Cols, Depth int
	Scores, Products  int  // for attention: scores of all heads, hidden ones included, and products of a head
	Wide              bool // computed in float32 or float64, not in 16 bits
	Again             bool // in backward: forward has computed it too, but did not keep it
}

// Class is the limit on the speed of an operation.
type Class uint8

// The classes.
const (
	Product   Class = iota // a product of matrices
	Attention              // scores and their sums in one kernel
	Other                  // bound by the bytes that it moves
)

// Cost is the total work of a pass.
type Cost struct {
	FLOPs   int // all, products and attention included
	Product int // FLOPs of products
	Bytes   int // between operations and memory
	// Trained is the number of FLOPs for training all parameters: three times the FLOPs of forward, as
	// utilisations count them (Chowdhery et al., 2022, arXiv:2204.02311, appendix B). Needed leaves
	// out gradients of frozen parameters, and gradients of activations before which nothing is
	// trained.
	Trained, Needed int
}

// Cost sums the work of the pass. Work that backward repeats counts twice.
func (p *Pass) Cost() (sum Cost) {
	for _, op := range p.Ops {
		again := 0
		for _, w := range p.work(op) {
			sum.FLOPs += w.Count * w.FLOPs
			sum.Bytes += w.Count * w.Bytes
			if w.Class == Product {
				sum.Product += w.Count * w.FLOPs
			}
			if w.Again {
				again += w.Count * w.FLOPs
			}
		}
		switch op.Kind {
		case Forward:
			n := flops(p.work(op))
			sum.Trained, sum.Needed = sum.Trained+3*n, sum.Needed+n
		case Backward:
			unit := &p.Units[p.Calls[op.Call].Unit]
			sum.Needed += min(2*flops(unit.Forward), flops(unit.Backward)-again)
		}
	}
	return sum
}

// flops returns the arithmetic of works.
func flops(list []Work) (n int) {
	for _, w := range list {
		n += w.Count * w.FLOPs
	}
	return n
}

// work returns the computation of an operation.
func (p *Pass) work(op Op) []Work {
	switch op.Kind {
	case Forward:
		return p.Units[p.Calls[op.Call].Unit].Forward
	case Backward:
		return p.Units[p.Calls[op.Call].Unit].Backward
	default:
		return nil
	}
}

// Text returns an operation with the name of its group or call.
func (p *Pass) Text(op Op) string {
	switch {
	case op.Group >= 0:
		return op.Kind.String() + " " + p.Groups[op.Group].Name
	case op.Call >= 0:
		return op.Kind.String() + " " + p.Calls[op.Call].Name
	default:
		return op.Kind.String()
	}
}
