package engine

import (
	"context"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// hostFrame implements Frame.
type hostFrame struct {
	*Compiled
	h      *Host
	s      *hostShards
	batch  []exec.Value
	blocks []*arena.Block // by buffer of the plan
	again  []bool         // by group: the gather in flight is from the second copy
	*flights
}

// flights are the collectives of a pass. Host.open contains them from the first one to the end of
// the pass.
type flights struct {
	gather []comm.Work // by group: in flight, or nil
	reduce []comm.Work // by group: in flight, or nil
}

// settle waits until all collectives in flight are over, failed ones included.
func (f *flights) settle() {
	for _, works := range [][]comm.Work{f.gather, f.reduce} {
		for i, w := range works {
			if w != nil {
				_ = w.Wait(context.Background())
			}
			works[i] = nil
		}
	}
}

// Open implements Device.
func (h *Host) Open(c *Compiled, number int, s Shards, batch []exec.Value) Frame {
	shards := s.(*hostShards)
	n := len(shards.groups)
	return &hostFrame{
		Compiled: c, h: h, s: shards, batch: batch, blocks: make([]*arena.Block, len(c.Plan.Buffers)), again: make([]bool, n),
		flights: &flights{gather: make([]comm.Work, n), reduce: make([]comm.Work, n)},
	}
}

// Enter implements Frame.
func (f *hostFrame) Enter(at int) (err error) {
	f.readAhead(at)
	for _, id := range f.Plan.Steps[at].Alloc {
		b := f.Plan.Buffers[id]
		if f.blocks[id], err = f.h.arena.Alloc(b.Bytes, b.Class); err != nil {
			return err
		}
		if b.Kind == program.GroupGrads {
			for _, z := range f.Zero[b.Index] {
				clear(f.blocks[id].Data[z.Start:z.End])
			}
		}
	}
	return nil
}

// Leave implements Frame.
func (f *hostFrame) Leave(at int) {
	for _, id := range f.Plan.Steps[at].Free {
		f.free(id)
	}
}

func (f *hostFrame) free(id int) {
	f.h.Free(f.blocks[id])
	f.blocks[id] = nil
}

// readAhead has the system read pages for which step at of a pass does not wait: the shards of the
// next gather or call of that kind while this one is under way, and the gradients to which a
// reduction will be added. internal/experiments/memory.md has the savings.
func (f *hostFrame) readAhead(at int) {
	if f.h.files == nil {
		return
	}
	switch step := &f.Plan.Steps[at]; step.Kind {
	case program.Gather, program.Forward, program.Backward:
		i := slices.IndexFunc(f.Plan.Steps[at+1:], func(next program.Step) bool { return next.Kind == step.Kind })
		switch {
		case i < 0:
		case step.Kind == program.Gather:
			f.h.willNeed(f.s.groups[f.Plan.Steps[at+1+i].Group].value)
		default:
			f.callNeeds(f.Plan.Steps[at+1+i].Call)
		}
	case program.Reduce:
		f.h.willNeed(f.s.groups[step.Group].grad)
	}
}

// callNeeds has the system read the shards that a call uses in place.
func (f *hostFrame) callNeeds(call int) {
	last := -1
	for _, param := range f.Model.Calls[call].Params {
		if at := f.Home[param].Group; at != last && f.s.groups[at].Hold == program.Always {
			f.h.willNeed(f.s.groups[at].value)
			last = at
		}
	}
}

// Forward implements Frame.
func (f *hostFrame) Forward(step *program.Step, seed uint64) error {
	u := f.Calls[step.Call].Unit
	call, work, err := f.bind(step, seed)
	if err != nil {
		return err
	}
	defer f.release(work)
	if err := f.h.runner.Forward(u, call); err != nil || f.Eval {
		return err
	}
	for k, update := range u.Updates {
		swap(call.Param[update.Param], call.Update[k])
	}
	return nil
}

// Backward implements Frame.
func (f *hostFrame) Backward(step *program.Step, seed uint64) error {
	call, work, err := f.bind(step, seed)
	if err != nil {
		return err
	}
	defer f.release(work)
	return f.h.runner.Backward(f.Calls[step.Call].Unit, call)
}

// swap exchanges two buffers of the same length: a module's buffer gets its new value, and the old
// value, which backward may read, goes to the other buffer.
func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// bind sets the memory of the operands of a call. It leaves out operands that the call does not
// use. The caller releases the returned scratch memory.
func (f *hostFrame) bind(step *program.Step, seed uint64) (call *exec.Call, work *arena.Block, err error) {
	b := &f.Calls[step.Call]
	call = &f.h.call
	f.fill(&call.Out, b.Out)
	f.fill(&call.GradOut, b.GradOut)
	f.fill(&call.GradIn, b.GradIn)
	f.fill(&call.Update, b.Update)
	call.In = call.In[:0]
	for _, id := range b.In {
		if id < 0 {
			call.In = append(call.In, f.batch[^id].Bytes)
		} else {
			call.In = append(call.In, f.data(id))
		}
	}
	f.bindParams(step, call)
	call.Saved = f.data(b.Saved)
	call.Seed, call.Train = seed, !f.Eval
	if work, err = f.h.arena.Alloc(step.Work, arena.Work); err != nil {
		return nil, nil, err
	}
	call.Work = work.Data
	return call, work, nil
}

// release ends a call that bind began. No operand may be kept: the arena could not free it.
func (f *hostFrame) release(work *arena.Block) {
	c := &f.h.call
	for _, list := range [...][][]byte{c.Param, c.In, c.Out, c.GradOut, c.GradIn, c.GradParam, c.Update} {
		clear(list)
	}
	c.Saved, c.Work = nil, nil
	f.h.Free(work)
}

// bindParams sets the memory of the parameters of a call and of their gradients.
func (f *hostFrame) bindParams(step *program.Step, call *exec.Call) {
	call.Param, call.GradParam = call.Param[:0], call.GradParam[:0]
	for _, param := range f.Model.Calls[step.Call].Params {
		at := f.Home[param]
		g := f.s.groups[at.Group]
		full := f.data(f.Params[at.Group])
		if g.Hold == program.Always {
			full = g.value.Data
		}
		var value, grad []byte
		if full != nil {
			value = g.Param(full, at.Index)
		}
		if step.Kind == program.Backward && !g.Kind.Frozen {
			grad = g.Param(f.grads(at.Group), at.Index)
		}
		call.Param, call.GradParam = append(call.Param, value), append(call.GradParam, grad)
	}
	if step.Kind != program.Backward {
		return
	}
	for k, u := range f.Calls[step.Call].Unit.Updates {
		if old := call.Update[k]; old != nil {
			call.Param[u.Param] = old
		}
	}
}

// fill sets dst to the memory of the buffers.
func (f *hostFrame) fill(dst *[][]byte, ids []int) {
	*dst = (*dst)[:0]
	for _, id := range ids {
		*dst = append(*dst, f.data(id))
	}
}

// data returns the memory of a buffer, nil if it is not live.
func (f *hostFrame) data(id int) []byte {
	if id < 0 || f.blocks[id] == nil {
		return nil
	}
	return f.blocks[id].Data
}

// grads returns the full gradients of a group, without the room behind them: see Device.SumWork.
func (f *hostFrame) grads(group int) []byte {
	return f.data(f.Grads[group])[:f.s.groups[group].Flat.Len()*f.GradType[group].Size()]
}

// Seed implements Frame.
func (f *hostFrame) Seed(scale float64) error {
	if f.Compiled.Seed < 0 {
		return nil
	}
	if b := f.data(f.Compiled.Seed); len(b) == 8 {
		vec.Fill(exec.Data[float64](b), scale)
	} else {
		vec.Fill(exec.Data[float32](b), float32(scale))
	}
	return nil
}

// Gather implements Frame.
func (f *hostFrame) Gather(group int) error {
	f.h.open[f.flights] = struct{}{}
	g, full, second := f.s.groups[group], f.data(f.Params[group]), f.data(f.Second[group])
	f.again[group] = second != nil
	if second != nil {
		f.gather[group] = g.startAgain(full, second)
	} else {
		f.gather[group] = g.startGather(full)
	}
	return nil
}

// Wait implements Frame.
func (f *hostFrame) Wait(ctx context.Context, group int) error {
	if err := f.gather[group].Wait(ctx); err != nil {
		return err
	}
	f.gather[group] = nil
	g, full, second := f.s.groups[group], f.data(f.Params[group]), f.data(f.Second[group])
	if second != nil && !f.again[group] {
		g.keepSecond(second, full)
	}
	g.finishGather(full)
	return nil
}

// Reduce implements Frame.
func (f *hostFrame) Reduce(group int, before float32) error {
	f.h.open[f.flights] = struct{}{}
	g, grads, t := f.s.groups[group], f.grads(group), f.s.turn
	if g.round(grads, before); t.Whole {
		g.merge(grads, g.wholes, t)
	}
	switch {
	case t.Leafwise && !g.Ranks.Twice():
		f.reduce[group] = g.startExchange(f.data(f.Grads[group]))
	case t.Missing:
		g.nothing(grads)
		fallthrough
	default:
		f.reduce[group] = g.startReduce(grads, before)
	}
	return nil
}

// ScaleGrad implements Frame.
func (f *hostFrame) ScaleGrad(param int, c float64) error {
	at := f.Home[param]
	g := f.s.groups[at.Group]
	if b := g.Param(f.grads(at.Group), at.Index); g.Compute == comm.Float64 {
		vec.Scale(elements[float64](b), c)
	} else {
		vec.Scale(elements[float32](b), float32(c))
	}
	return nil
}

// Sync implements Frame.
func (f *hostFrame) Sync(ctx context.Context, group int) error {
	if err := f.reduce[group].Wait(ctx); err != nil {
		return err
	}
	if g := f.s.groups[group]; f.s.turn.Leafwise {
		f.reduce[group] = g.startExchange(f.data(f.Grads[group]))
	} else {
		f.reduce[group] = g.startSync(f.grads(group))
	}
	return nil
}

// Drain implements Frame.
func (f *hostFrame) Drain(ctx context.Context, group int, after float64) error {
	w := f.reduce[group]
	if w != nil {
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
	f.reduce[group] = nil
	g, grads := f.s.groups[group], f.grads(group)
	if f.s.turn.Leafwise {
		if over, err := f.s.keepLeaves(ctx, g, f.data(f.Grads[group])); err != nil || !over {
			return err
		}
	} else if over, err := f.s.keep(g, g.ownRange(g.traveling(grads))); err != nil || !over {
		return err
	}
	if w != nil || after != 1 || !g.takeSums(f.h.arena, f.blocks[f.Grads[group]]) {
		g.finishReduce(grads, after)
	}
	return nil
}

// Follow implements Frame.
func (f *hostFrame) Follow() error { return nil }

// Number implements Frame.
func (f *hostFrame) Number(buffer int) (float64, error) {
	b := f.data(buffer)
	if len(b) == 8 {
		return exec.Data[float64](b)[0], nil
	}
	return float64(exec.Data[float32](b)[0]), nil
}

// Result implements Frame.
func (f *hostFrame) Result(buffer int, to []byte) error {
	if b := f.data(buffer); len(b) < len(to) {
		widen(elements[float32](to), b, comm.BFloat16)
	} else {
		copy(to, b)
	}
	return nil
}

// Switch implements Frame.
func (f *hostFrame) Switch(c *Compiled) {
	blocks := make([]*arena.Block, len(c.Plan.Buffers))
	for id, b := range f.Plan.Buffers {
		if to := c.Plan.Lookup(b.Kind, b.Index, b.Out); to >= 0 {
			blocks[to] = f.blocks[id]
		} else {
			f.h.Free(f.blocks[id])
		}
	}
	f.Compiled, f.blocks = c, blocks
}

// Inherit implements Frame.
func (f *hostFrame) Inherit() {
	for _, id := range f.Plan.Inherited {
		g := f.s.groups[f.Plan.Buffers[id].Index]
		f.blocks[id], g.whole = g.whole, nil
	}
}

// Bequeath implements Frame.
func (f *hostFrame) Bequeath() {
	for _, id := range f.Plan.Left {
		f.s.leave(f.s.groups[f.Plan.Buffers[id].Index], f.blocks[id])
		f.blocks[id] = nil
	}
	if f.s.turn.Whole {
		f.s.shed()
	}
	delete(f.h.open, f.flights)
}

// Await implements Frame.
func (f *hostFrame) Await(ctx context.Context) (int, error) {
	for g, w := range f.gather {
		if w == nil {
			continue
		}
		if err := w.Wait(ctx); err != nil {
			return g, err
		}
		f.gather[g] = nil
	}
	return 0, nil
}

// Settle implements Frame.
func (f *hostFrame) Settle() {
	f.settle()
	delete(f.h.open, f.flights)
}

// Free implements Frame.
func (f *hostFrame) Free() {
	for id := range f.blocks {
		f.free(id)
	}
	delete(f.h.open, f.flights)
}
