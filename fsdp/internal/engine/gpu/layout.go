package gpu

import (
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/program"
)

// alignment of buffers in a slab is the alignment of memory that the driver allocates.
const alignment = 256

// A script is a pass as the device runs it: the offsets of the buffers in one slab, and the
// operations and waits of each stream.
type script struct {
	bytes  int   // of the slab
	batch  []int // offsets of the batch tensors
	steps  []scriptStep
	ops    []operation
	events int
	ends   []lane // of collectives: when these have ended, all have
}

// A scriptStep belongs to a step of the plan.
type scriptStep struct {
	alloc              []int // for each buffer in Step.Alloc: its offset in the slab
	work               int   // offset of scratch memory
	clear, run, poison int   // operations, or -1: clearing of gradients that no call writes, the step itself, NaN in freed buffers
}

// newScript computes the script of a pass, and proves the order of its operations.
func newScript(c *engine.Compiled, poison, deterministic bool) (*script, error) {
	w := newWriter(c, poison, deterministic)
	for i := range c.Plan.Steps {
		w.step(i)
	}
	w.events, w.ends = order(w.ops)
	if err := check(w.ops, w.events); err != nil {
		return nil, fmt.Errorf("checking the order of the streams: %w", err)
	}
	for i := range w.ops { // what for is decided
		w.ops[i].touches = nil
	}
	return w.script, nil
}

// outlives reports whether a buffer exists before or after the pass. Such a buffer is not in the
// slab.
func outlives(p *program.Plan, id int) bool {
	return slices.Contains(p.Inherited, id) || slices.Contains(p.Left, id)
}

// A scriptWriter lays out a pass.
type scriptWriter struct {
	*script
	c      *engine.Compiled
	poison bool
	apart  bool             // sums do not share launches
	alloc  [][]*arena.Place // by step: places of the buffers that it allocates, nil if they outlive the pass
	work   []*arena.Place   // by step
	live   []*arena.Place   // by buffer, now
	summed map[int]lane     // by group: the lane of the last sum of its gradients
}

// newWriter returns a writer that has decided the offset of every buffer.
func newWriter(c *engine.Compiled, poison, deterministic bool) *scriptWriter {
	w := &scriptWriter{script: new(script), c: c, poison: poison, apart: deterministic, live: make([]*arena.Place, len(c.Plan.Buffers)), summed: make(map[int]lane)}
	w.place()
	return w
}

// place decides the offset of every buffer.
func (w *scriptWriter) place() {
	p := w.c.Plan
	var all []*arena.Place
	add := func(bytes, first, last int) *arena.Place {
		at := &arena.Place{Bytes: bytes, First: first, Last: last}
		all = append(all, at)
		return at
	}
	end := len(p.Steps)
	var batch []*arena.Place
	for _, v := range w.c.Inputs {
		batch = append(batch, add(v.Len()*int(v.DType.Size()), 0, end))
	}
	var sums *arena.Place // scratch memory of all sums in wire: work never waits for it
	last := make([]*arena.Place, len(p.Buffers))
	for i, step := range p.Steps {
		places := make([]*arena.Place, len(step.Alloc))
		for k, id := range step.Alloc {
			if !outlives(p, id) {
				places[k] = add(p.Buffers[id].Bytes, i, end)
				last[id] = places[k]
			}
		}
		work := sums
		switch sum := step.Kind == program.Reduce || step.Kind == program.Sync; {
		case !sum || step.Work == 0:
			work = add(step.Work, i, i)
		case sums == nil:
			sums = add(step.Work, i, end)
			work = sums
		default:
			sums.Bytes = max(sums.Bytes, step.Work)
		}
		w.alloc, w.work = append(w.alloc, places), append(w.work, work)
		for _, id := range step.Free {
			if last[id] != nil {
				last[id].Last = i
			}
		}
	}
	w.bytes = arena.Pack(all, alignment)
	for _, at := range batch {
		w.batch = append(w.batch, at.Offset)
	}
}

// step writes the operations of a step.
func (w *scriptWriter) step(i int) {
	step := &w.c.Plan.Steps[i]
	s := scriptStep{work: w.work[i].Offset, clear: -1, run: -1, poison: -1}
	var cleared []touch
	for k, id := range step.Alloc {
		w.live[id] = w.alloc[i][k]
		s.alloc = append(s.alloc, 0)
		if at := w.live[id]; at != nil {
			s.alloc[k] = at.Offset
		}
		if b := w.c.Plan.Buffers[id]; b.Kind == program.GroupGrads && len(w.c.Zero[b.Index]) > 0 {
			cleared = w.buffer(cleared, id, true)
		}
	}
	name := w.c.Plan.Program.Text(step.Op)
	if cleared != nil {
		s.clear = w.add(onWork, "clearing before "+name, cleared)
	}
	if l, touches := w.touches(i, step); touches != nil {
		s.run = w.add(l, name, touches)
		w.ops[s.run].joins = w.joins(i)
	}
	var freed []touch
	for _, id := range step.Free {
		freed = w.buffer(freed, id, true)
	}
	freed = w.scratch(freed, i)
	if w.poison && freed != nil {
		s.poison = w.add(onWork, "poisoning after "+name, freed)
	}
	for _, id := range step.Free {
		w.live[id] = nil
	}
	w.steps = append(w.steps, s)
}

// add appends an operation.
func (w *scriptWriter) add(l lane, name string, touches []touch) int {
	w.ops = append(w.ops, operation{lane: l, name: name, touches: touches})
	return len(w.ops) - 1
}

// joins reports whether step i is a collective that shares a launch with the next step. Successive
// collectives of one kind do, such as the gathers of a unit. How NCCL divides a sum, and so its
// bits, depends on the others of the launch, which depend on the schedule. Sums with scratch memory
// are not NCCL's.
func (w *scriptWriter) joins(i int) bool {
	steps := w.c.Plan.Steps
	switch kind := steps[i].Kind; kind {
	case program.Reduce, program.Sync:
		return !w.apart && steps[i].Work == 0 && i+1 < len(steps) && steps[i+1].Kind == kind
	case program.Gather:
		return i+1 < len(steps) && steps[i+1].Kind == kind
	}
	return false
}

// touches returns the memory that the operation of a step touches, and its stream. The list is nil
// if the step issues no operation.
func (w *scriptWriter) touches(i int, step *program.Step) (l lane, list []touch) {
	g := step.Group
	switch step.Kind {
	case program.Gather:
		return onWire, w.buffer(w.group(nil, values(g), g, false), w.c.Params[g], true)
	case program.Reduce, program.Sync:
		if w.summed[g] = onWire; step.Kind == program.Sync && step.Work == 0 {
			w.summed[g] = onReplicas // sums of virtual ranks have one order
		}
		return w.summed[g], w.buffer(w.scratch(nil, i), w.c.Grads[g], true)
	case program.Drain:
		if l, reduced := w.summed[g]; reduced {
			return l, w.buffer(w.group(nil, grads(g), g, true), w.c.Grads[g], true)
		}
		return onWire, w.buffer(w.group(nil, grads(g), g, true), w.c.Grads[g], true)
	case program.Turn: // after the updates of gradients since the forward
		for g := range w.c.Model.Groups {
			list = w.group(list, grads(g), g, true)
		}
		if w.skips() {
			list = append(list, touch{slab, 0, w.bytes, false, "what the forward has gathered"})
		}
		return onWork, w.buffer(list, w.c.Seed, true)
	case program.Forward, program.Backward:
		if !w.c.Computes(step.Op) {
			return onWork, nil
		}
		return onWork, w.call(w.scratch(list, i), step)
	}
	return onWork, nil
}

// skips reports whether the pass has calls that it does not compute. Then nothing may have waited
// for a gather of their parameters, and the turn does: an operation behind the turn must not wait
// for the wire's work before it, see awaitOp.
func (w *scriptWriter) skips() bool {
	return slices.ContainsFunc(w.c.Plan.Steps, func(s program.Step) bool {
		return (s.Kind == program.Forward || s.Kind == program.Backward) && !w.c.Computes(s.Op)
	})
}

// scratch appends the scratch memory of step i.
func (w *scriptWriter) scratch(list []touch, i int) []touch {
	if at := w.work[i]; at.Bytes > 0 {
		list = append(list, touch{slab, at.Offset, at.Offset + at.Bytes, true, "scratch memory"})
	}
	return list
}

// call appends the memory that a call touches.
func (w *scriptWriter) call(list []touch, step *program.Step) []touch {
	b, back := &w.c.Calls[step.Call], step.Kind == program.Backward
	for k, ids := range [][]int{b.In, b.Out, {b.Saved}, b.GradOut, b.Update, b.GradIn} {
		for _, id := range ids {
			write := !back && k != 0 || back && k == 5
			list = w.buffer(list, id, write)
		}
	}
	m := w.c.Model
	for _, param := range m.Calls[step.Call].Params {
		g := w.c.Home[param].Group
		list = w.params(list, g, false)
		if back && !m.Groups[g].Frozen {
			list = w.buffer(list, w.c.Grads[g], true)
		}
	}
	if b.Unit != nil && !back {
		for _, u := range b.Unit.Updates {
			list = w.params(list, w.c.Home[m.Calls[step.Call].Params[u.Param]].Group, true)
		}
	}
	return list
}

// params appends the parameters of a group at the place where calls read them.
func (w *scriptWriter) params(list []touch, g int, write bool) []touch {
	if w.c.Model.Groups[g].Hold == program.Always {
		return w.group(list, values(g), g, write)
	}
	return w.buffer(list, w.c.Params[g], write)
}

// group appends a block of a group.
func (w *scriptWriter) group(list []touch, s space, g int, write bool) []touch {
	return append(list, touch{s, 0, math.MaxInt, write, "the shard of group " + w.c.Model.Groups[g].Name})
}

// buffer appends a buffer of the pass. It appends nothing for a negative id.
func (w *scriptWriter) buffer(list []touch, id int, write bool) []touch {
	if id < 0 {
		return list
	}
	b := w.c.Plan.Buffers[id]
	t := touch{slab, 0, b.Bytes, write, "a value of call "}
	switch b.Kind {
	case program.GroupParams, program.GroupGrads:
		t.what = "whole parameters or gradients of group " + w.c.Model.Groups[b.Index].Name
	default:
		t.what += w.c.Model.Calls[b.Index].Name
	}
	if outlives(w.c.Plan, id) {
		t.space = wholes(b.Index)
		return append(list, t)
	}
	at := w.live[id]
	if at == nil {
		return list
	}
	t.from, t.to = at.Offset, at.Offset+at.Bytes
	return append(list, t)
}
