package program

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"io"
)

// Kind is the kind of an operation.
type Kind uint8

// These are the operations of a program. Gather, Reduce and Sync are collectives: every rank issues
// them in the same order.
const (
	Gather   Kind = iota // issue the all-gather of the group's parameters
	Wait                 // wait for it: the parameters are now full
	Forward              // run the call's forward
	Turn                 // the loss is known; backward begins
	Free                 // drop the full parameters
	Backward             // run the call's backward
	Reduce               // issue the reduce-scatter of the group's gradients, or their all-reduce
	Sync                 // wait for it and issue the all-reduce of the piece over the replicas
	Drain                // wait for it, add to the gradient shard, drop the full gradients
)

var kindNames = [...]string{"gather", "wait", "forward", "turn", "free", "backward", "reduce", "sync", "drain"}

// String returns the operation's name in lower case.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// An Op is one operation, on group Group or call Call.
type Op struct {
	Kind        Kind
	Group, Call int // the index that the kind does not use is -1
}

// A Program is one pass over a model.
type Program struct {
	Model   *Model
	Options Options
	Ops     []Op
}

// Describe writes the program as text, one operation per line with the names of groups and calls.
func (p *Program) Describe(w io.Writer) {
	for _, op := range p.Ops {
		fmt.Fprintln(w, p.Text(op))
	}
}

// Text returns op with the name of its group or call.
func (p *Program) Text(op Op) string {
	switch {
	case op.Group >= 0:
		return fmt.Sprintf("%v %s", op.Kind, p.Model.Groups[op.Group].Name)
	case op.Call >= 0:
		return fmt.Sprintf("%v %s", op.Kind, p.Model.Calls[op.Call].Name)
	default:
		return op.Kind.String()
	}
}

// Hash returns a fingerprint of the program: the same on every machine for the same model and
// options.
func (p *Program) Hash() uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, p.Model.Inputs, p.Model.Results, p.Options.NoSync, p.Options.Pending)
	for _, c := range p.Model.Calls {
		fmt.Fprintln(h, c.Name, c.In, c.Params)
	}
	for _, q := range p.Model.Params {
		fmt.Fprintln(h, q.Name, q.Group)
	}
	for _, g := range p.Model.Groups {
		fmt.Fprintln(h, g.Name, g.Unit, g.Hold, g.Frozen, g.Bytes, g.Shards, g.Replicas, g.Second)
	}
	p.Describe(h)
	return h.Sum64()
}

// Counts are the collectives of a pass.
type Counts struct {
	Gathers int // all-gathers over more than one rank
	Reduces int // reduce-scatters over more than one rank
	Syncs   int // all-reduces over more than one rank
}

// seconds returns, for every gather and its wait, the number of ranks over which the second copy is
// gathered. It is 0 for the first gather of a group, and for groups without a second copy.
func (p *Program) seconds() []int {
	list, gathers := make([]int, len(p.Ops)), make([]int, len(p.Model.Groups))
	for i, op := range p.Ops {
		if op.Kind == Gather {
			gathers[op.Group]++
		}
		if (op.Kind == Gather || op.Kind == Wait) && gathers[op.Group] > 1 {
			list[i] = p.Model.Groups[op.Group].Second
		}
	}
	return list
}

// Gathers counts the all-gathers of each group with more than one rank.
func (p *Program) Gathers() []int {
	list, second := make([]int, len(p.Model.Groups)), p.seconds()
	for i, op := range p.Ops {
		if op.Kind == Gather {
			list[op.Group] += count(cmp.Or(second[i], p.Model.Groups[op.Group].Shards) > 1)
		}
	}
	return list
}

// Counts counts the collectives over more than one rank.
func (p *Program) Counts() Counts {
	var n Counts
	for _, gathers := range p.Gathers() {
		n.Gathers += gathers
	}
	for _, op := range p.Ops {
		switch op.Kind {
		case Reduce:
			g := p.Model.Groups[op.Group]
			n.Reduces += count(g.Shards > 1)
			n.Syncs += count(g.Shards <= 1 && g.Replicas > 1)
		case Sync:
			n.Syncs++
		}
	}
	return n
}
