package program

import (
	"cmp"
	"fmt"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/arena"
)

// Sizes are the bytes of all allocations of a pass, for the batch shapes of one rank.
type Sizes struct {
	Group []GroupSizes
	Call  []CallSizes // nil for a rank that joins the collectives without computing
}

// GroupSizes are the bytes of a group's full buffers, including padding, and the bytes that are
// sent. These are fewer if a narrower type is sent.
type GroupSizes struct {
	Params, Grads         int
	ParamsWire, GradsWire int
	SumsWire              int // of gradients over replicas
	ReduceWork, SyncWork  int // scratch bytes of their sums
}

// CallSizes describe one call. They may be zero for a call that does not run.
type CallSizes struct {
	Out             []int  // bytes of each output
	GradIn          []int  // bytes of the gradient of each input; 0 if there is none
	KeepIn, KeepOut []bool // what backward reads
	Saved           int    // bytes kept from forward to backward
	Spill           bool   // the values that its backward reads, saved or kept, have the class arena.Spilled
	Update          []int  // bytes of each new value of a buffer
	KeepUpdate      []bool // whether backward reads the old value, whose place the new value then takes later; nil means never
	Work, BackWork  int    // scratch bytes of forward and backward
}

func (s *CallSizes) keepsUpdate(o int) bool { return s.KeepUpdate != nil && s.KeepUpdate[o] }

// BufferKind says what a buffer holds.
type BufferKind uint8

// These are the kinds of buffers in a pass.
const (
	GroupParams BufferKind = iota // full parameters of group Index
	GroupGrads                    // full gradients of group Index
	CallOut                       // output Out of call Index
	CallGradOut                   // gradient of that output
	CallSaved                     // values that call Index saves for its backward
	CallUpdate                    // new value Out of a buffer that call Index computes
	GroupSecond                   // this rank's piece of the gathered group Index, for gathering it again
)

// A Buffer is memory that a pass allocates and frees, possibly more than once.
type Buffer struct {
	Kind       BufferKind
	Index, Out int
	Bytes      int
	Class      arena.Class
}

// A Step is an operation with the buffers to allocate before it and to free after it, as indices
// into Plan.Buffers, and the bytes of scratch memory during it.
type Step struct {
	Op
	Alloc, Free []int
	Work        int
	Second      int // number of ranks of the second copy that it gathers or waits for; 0 for the first gather
}

// A Plan is a program with its buffers.
type Plan struct {
	Program   *Program
	Buffers   []Buffer
	Steps     []Step
	Inherited []int // buffers that exist before the first step: gradients that an earlier pass has left
	Left      []int // buffers that exist after the last step: gradients that are not reduced
	Turn      int   // index into Steps of the Turn, or the number of steps in an evaluation
	Peak      int   // largest number of bytes of buffers that are live at once

	sizes *Sizes
	index map[key]int
}

// key names a buffer.
type key struct {
	kind       BufferKind
	index, out int
}

// Lookup returns the index of a buffer, or -1 if the pass does not use it.
func (p *Plan) Lookup(kind BufferKind, index, out int) int {
	if i, ok := p.index[key{kind, index, out}]; ok {
		return i
	}
	return -1
}

// Bytes estimates the memory that the plan takes, without its program.
func (p *Plan) Bytes() int {
	n := int(unsafe.Sizeof(*p)) + cap(p.Buffers)*int(unsafe.Sizeof(Buffer{})) + cap(p.Steps)*int(unsafe.Sizeof(Step{}))
	n += 2 * len(p.index) * int(unsafe.Sizeof(key{})+unsafe.Sizeof(0)) // half of a map is free
	n += 2 * len(p.Buffers) * int(unsafe.Sizeof(0))                    // in Alloc and Free
	for _, c := range p.sizes.Call {
		n += int(unsafe.Sizeof(c)) + (cap(c.Out)+cap(c.GradIn)+cap(c.Update))*int(unsafe.Sizeof(0))
	}
	return n
}

// With returns the program for another model with the same calls and groups, for a pass in which
// some calls are absent. Absent calls have no inputs and no sizes.
func (p *Program) With(m *Model) *Program {
	q := *p
	q.Model = m
	return &q
}

// NewPlan decides when every buffer of a pass is allocated and freed.
//
//	full parameters   from Gather to Free
//	a second piece    from the first Wait of the group to the last, where it is gathered again
//	full gradients    from the group's first Backward, or an earlier pass, to Drain or a later pass
//	an output         from its Forward to its last reader; results of an evaluation beyond the end
//	its gradient      from the first Backward that writes it to the Backward of its call
//	saved values      from a call's Forward to its Backward
//	new buffer values during their Forward, or to the Backward of the call
//	scratch           for one operation
func NewPlan(p *Program, s *Sizes) (*Plan, error) {
	if len(s.Group) != len(p.Model.Groups) || s.Call != nil && len(s.Call) != len(p.Model.Calls) {
		return nil, fmt.Errorf("program: got sizes of %d groups and %d calls, but the model has %d groups and %d calls",
			len(s.Group), len(s.Call), len(p.Model.Groups), len(p.Model.Calls))
	}
	plan := &Plan{Program: p, Turn: len(p.Ops), sizes: s, index: make(map[key]int)}
	b := &planner{plan: plan, sizes: s, last: make(map[int]int), loss: p.Model.Results[0], gathers: make([]int, len(s.Group))}
	b.pending()
	for _, op := range p.Ops {
		if op.Kind == Gather {
			b.gathers[op.Group]++
		}
	}
	second := p.seconds()
	for i, op := range p.Ops {
		b.plan.Steps = append(b.plan.Steps, Step{Op: op, Second: second[i]})
		b.visit(i, op)
	}
	b.freeAfterLast()
	b.plan.Peak = b.plan.MostLive(func(arena.Class) bool { return true })
	return b.plan, nil
}

type planner struct {
	plan    *Plan
	sizes   *Sizes
	last    map[int]int // buffer -> step after which it is freed; only for values and their gradients
	loss    Ref
	ran     []bool // whether a call's backward is part of the pass
	gathers []int  // by group: the gathers still to come
}

// pending adds the gradients that an earlier pass has left and that this pass also writes.
func (b *planner) pending() {
	p := b.plan.Program
	if !p.Options.Pending {
		return
	}
	for c := range p.Model.Calls {
		if !b.backward(c) {
			continue
		}
		for _, g := range p.Model.trains(c) {
			if b.plan.Lookup(GroupGrads, g, 0) < 0 {
				id := b.add(b.grads(g))
				b.plan.Inherited = append(b.plan.Inherited, id)
				b.left(id)
			}
		}
	}
}

// left records that gradients are kept, if the pass does not reduce.
func (b *planner) left(id int) {
	if b.plan.Program.Options.NoSync {
		b.plan.Left = append(b.plan.Left, id)
	}
}

func (b *planner) grads(g int) Buffer {
	return Buffer{GroupGrads, g, 0, b.sizes.Group[g].Grads, arena.Gradient}
}

// visit adds the buffers that step i touches.
func (b *planner) visit(i int, op Op) {
	g, c := op.Group, op.Call
	switch op.Kind {
	case Gather:
		b.alloc(i, Buffer{GroupParams, g, 0, b.sizes.Group[g].Params, arena.Gathered})
		b.gathers[g]--
	case Wait:
		b.second(i, g)
	case Free:
		b.free(i, b.plan.Lookup(GroupParams, g, 0))
	case Reduce:
		b.plan.Steps[i].Work = b.sizes.Group[g].ReduceWork
	case Sync:
		b.plan.Steps[i].Work = b.sizes.Group[g].SyncWork
	case Drain:
		b.free(i, b.plan.Lookup(GroupGrads, g, 0))
	case Turn:
		b.plan.Turn = i
		if b.backward(b.loss.Call) && b.sizes.Call != nil {
			b.alloc(i, Buffer{CallGradOut, b.loss.Call, b.loss.Out, b.sizes.Call[b.loss.Call].Out[b.loss.Out], arena.Activation})
		}
	case Forward:
		if b.sizes.Call != nil {
			b.forward(i, c)
		}
	case Backward:
		b.backwardOf(i, c)
	}
}

// second adds the piece that the first Wait of a group keeps for later gathers. The last Wait frees
// it.
func (b *planner) second(i, g int) {
	ranks := b.plan.Program.Model.Groups[g].Second
	id := b.plan.Lookup(GroupSecond, g, 0)
	switch {
	case b.gathers[g] == 0:
		b.free(i, id)
	case ranks > 0 && id < 0:
		b.alloc(i, Buffer{GroupSecond, g, 0, b.sizes.Group[g].ParamsWire / ranks, arena.Gathered})
	}
}

func (b *planner) forward(i, c int) {
	s := &b.sizes.Call[c]
	for o, bytes := range s.Out {
		id := b.alloc(i, Buffer{CallOut, c, o, bytes, b.classOf(Ref{c, o})})
		b.last[id] = i
	}
	if b.backward(c) {
		class := arena.Saved
		if s.Spill {
			class = arena.Spilled
		}
		b.alloc(i, Buffer{CallSaved, c, 0, s.Saved, class})
	}
	for o, bytes := range s.Update {
		if id := b.alloc(i, Buffer{CallUpdate, c, o, bytes, arena.Activation}); !s.keepsUpdate(o) || !b.backward(c) {
			b.free(i, id)
		}
	}
	b.plan.Steps[i].Work = s.Work
	for _, r := range b.plan.Program.Model.Calls[c].In {
		b.read(i, CallOut, r)
	}
}

// classOf returns the class of an output. It is the class of activations, unless the backward of a
// spilling call keeps the output.
func (b *planner) classOf(out Ref) arena.Class {
	for c, call := range b.plan.Program.Model.Calls {
		for j, r := range call.In {
			if r == out && b.sizes.Call[c].Spill && b.sizes.Call[c].KeepIn[j] && b.backward(c) {
				return arena.Spilled
			}
		}
	}
	return arena.Activation
}

func (b *planner) backwardOf(i, c int) {
	m := b.plan.Program.Model
	for _, g := range m.trains(c) {
		if b.plan.Lookup(GroupGrads, g, 0) < 0 {
			b.left(b.alloc(i, b.grads(g)))
		}
	}
	if b.sizes.Call == nil {
		return
	}
	s := &b.sizes.Call[c]
	for j, r := range m.Calls[c].In {
		if s.GradIn[j] > 0 && b.plan.Lookup(CallGradOut, r.Call, r.Out) < 0 {
			b.alloc(i, Buffer{CallGradOut, r.Call, r.Out, s.GradIn[j], arena.Activation})
		}
		if s.KeepIn[j] {
			b.read(i, CallOut, r)
		}
	}
	for o := range s.Out {
		if s.KeepOut[o] {
			b.read(i, CallOut, Ref{c, o})
		}
		if id := b.plan.Lookup(CallGradOut, c, o); id >= 0 {
			b.last[id] = i
		}
	}
	for o := range s.Update {
		if s.keepsUpdate(o) {
			b.free(i, b.plan.Lookup(CallUpdate, c, o))
		}
	}
	b.plan.Steps[i].Work = s.BackWork
	b.free(i, b.plan.Lookup(CallSaved, c, 0))
}

// backward reports whether the pass runs the backward of call c.
func (b *planner) backward(c int) bool {
	if b.ran == nil {
		b.ran = make([]bool, len(b.plan.Program.Model.Calls))
		for _, op := range b.plan.Program.Ops {
			if op.Kind == Backward {
				b.ran[op.Call] = true
			}
		}
	}
	return b.ran[c]
}

// read extends the lifetime of a value to step i.
func (b *planner) read(i int, kind BufferKind, r Ref) {
	if id := b.plan.Lookup(kind, r.Call, r.Out); r.Call != Batch && id >= 0 {
		b.last[id] = i
	}
}

// alloc allocates a buffer before step i. A buffer may be allocated several times.
func (b *planner) alloc(i int, buf Buffer) int {
	id := b.add(buf)
	b.plan.Steps[i].Alloc = append(b.plan.Steps[i].Alloc, id)
	return id
}

// add returns the index of buf. It adds buf if it is new.
func (b *planner) add(buf Buffer) int {
	k := key{buf.Kind, buf.Index, buf.Out}
	id, ok := b.plan.index[k]
	if !ok {
		id = len(b.plan.Buffers)
		b.plan.index[k] = id
		b.plan.Buffers = append(b.plan.Buffers, buf)
	}
	return id
}

func (b *planner) free(i, id int) {
	if id >= 0 {
		b.plan.Steps[i].Free = append(b.plan.Steps[i].Free, id)
	}
}

// freeAfterLast frees values and their gradients after their last use. The loss is kept until the
// turn; the caller frees the results of an evaluation.
func (b *planner) freeAfterLast() {
	p := b.plan.Program
	if p.Options.Eval {
		for _, r := range p.Model.Results {
			delete(b.last, b.plan.Lookup(CallOut, r.Call, r.Out))
		}
	} else {
		id := b.plan.Lookup(CallOut, b.loss.Call, b.loss.Out)
		b.last[id] = max(b.last[id], b.plan.Turn)
	}
	for id := range b.plan.Buffers {
		if i, ok := b.last[id]; ok {
			b.free(i, id)
		}
	}
}

// Traffic returns the bytes that a rank sends in the pass. For a group of B bytes on the wire,
// sharded over S ranks with R replicas, a gather and a reduce-scatter send B·(S-1)/S each. A gather
// from the second pieces over T ranks sends B·(T-1)/T. The all-reduce of the piece over the
// replicas sends 2·B/S·(R-1)/R, possibly with another B. These are the optimal algorithms (Chan et
// al., 2007).
func (p *Plan) Traffic() int {
	sent := 0
	for i, op := range p.Program.Ops {
		if op.Group < 0 {
			continue
		}
		g, size := &p.Program.Model.Groups[op.Group], &p.sizes.Group[op.Group]
		shards, replicas := max(g.Shards, 1), max(g.Replicas, 1)
		switch {
		case op.Kind == Gather:
			over := cmp.Or(p.Steps[i].Second, shards)
			sent += size.ParamsWire / over * (over - 1)
		case op.Kind == Reduce && shards > 1:
			sent += size.GradsWire / shards * (shards - 1)
		case op.Kind == Sync || op.Kind == Reduce:
			sent += 2 * size.SumsWire / shards * (replicas - 1) / replicas
		}
	}
	return sent
}
