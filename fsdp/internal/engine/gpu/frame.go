package gpu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/nccl"
)

// A frame implements engine.Frame: it is a pass under way.
type frame struct {
	*engine.Compiled
	script *script
	number int // of the pass
	d      *Device
	s      *shards
	batch  []exec.Value
	slab   *slabOf        // nil before the first step, and after the pass
	at     []uintptr      // address of each buffer, 0 if it is not live
	counts []*arena.Block // by buffer in the slab
	blocks []*block       // blocks of the buffers that outlive the pass
	step   int            // that was entered last
	issued []int          // steps of one kind whose collectives share a launch
}

// Open implements engine.Device.
func (d *Device) Open(c *engine.Compiled, number int, s engine.Shards, batch []exec.Value) engine.Frame {
	f := &frame{number: number, d: d, s: s.(*shards), batch: batch}
	f.follow(c)
	d.frames[f] = true
	return f
}

// follow makes f a pass of c without live buffers.
func (f *frame) follow(c *engine.Compiled) {
	n := len(c.Plan.Buffers)
	f.Compiled, f.script = c, c.Prepared.(*script)
	f.at, f.counts, f.blocks = make([]uintptr, n), make([]*arena.Block, n), make([]*block, n)
}

// begin takes memory. Later operations in work run after all operations that used this memory
// before: see end.
func (f *frame) begin() (err error) {
	d := f.d
	if f.slab, err = d.takeSlab(f.script.bytes); err != nil {
		return err
	}
	for len(d.events) < f.script.events {
		e, err := d.gpu.NewEvent()
		if err != nil {
			return d.fail(err)
		}
		d.events = append(d.events, e)
	}
	return nil
}

// upload copies the batch to the slab.
func (f *frame) upload() error {
	f.d.vectors.Lock()
	defer f.d.vectors.Unlock()
	for i, off := range f.script.batch {
		if err := f.d.upload(f.slab.Addr()+uintptr(off), f.batch[i].Bytes); err != nil {
			return err
		}
	}
	return nil
}

// end gives the memory of the pass back. Later operations in work run after all operations of the
// pass, which the lanes end.
func (f *frame) end(lanes ...lane) {
	delete(f.d.frames, f)
	_ = f.d.join(lanes...) // an error ends the device, which keeps it
	if f.slab != nil {
		f.slab.taken = false
		f.slab = nil
	}
	for id := range f.at {
		f.drop(id)
	}
}

// drop forgets a buffer.
func (f *frame) drop(id int) {
	f.at[id] = 0
	f.d.counts.Free(f.counts[id])
	f.d.discard(f.blocks[id])
	f.counts[id], f.blocks[id] = nil, nil
}

// issue gives an operation of the script to its stream, with the waits and the event that the
// script decided.
func (f *frame) issue(op int, do func(s *nccl.Stream) error) error {
	if op < 0 {
		return f.d.err()
	}
	if err := f.awaitOp(op); err != nil {
		return err
	}
	if err := do(f.stream(op)); err != nil {
		return f.fail(err)
	}
	return f.recordOp(op)
}

// stream returns the stream of an operation.
func (f *frame) stream(op int) *nccl.Stream { return f.d.stream(f.script.ops[op].lane) }

// awaitOp makes the stream of an operation wait for the operations that it needs. Passes that are
// open at once share events. This is safe: an operation behind the turn that waits for one before
// the turn waits for a call of the forward. All of these have ended, since the host has waited for
// the loss.
func (f *frame) awaitOp(op int) error {
	f.d.give(f.place())
	for _, by := range f.script.ops[op].after {
		if err := f.fail(f.stream(op).Wait(f.d.events[f.script.ops[by].event])); err != nil {
			return err
		}
	}
	return f.d.err()
}

// recordOp records the end of an operation if another operation waits for it.
func (f *frame) recordOp(op int) error {
	if e := f.script.ops[op].event; e >= 0 {
		return f.fail(f.d.events[e].Record(f.stream(op)))
	}
	return f.d.err()
}

// fail ends the device with an error at the present step if err is not nil. It returns the reason
// for which the device ended.
func (f *frame) fail(err error) error {
	if err == nil {
		return f.d.err()
	}
	return f.d.fail(&engine.OpError{Place: f.place(), Err: err})
}

// place returns the present step.
func (f *frame) place() engine.Place {
	return engine.Place{Pass: f.number, Program: f.Plan.Program, Op: f.Plan.Steps[f.step].Op}
}

// Enter implements engine.Frame.
func (f *frame) Enter(at int) error {
	if f.step = at; f.slab == nil {
		if err := f.begin(); err != nil {
			return err
		}
		if err := f.upload(); err != nil {
			return err
		}
		if err := f.s.refresh(); err != nil {
			return err
		}
		if err := f.d.fork(); err != nil {
			return err
		}
	}
	s := &f.script.steps[at]
	for k, id := range f.Plan.Steps[at].Alloc {
		if err := f.alloc(id, s.alloc[k]); err != nil {
			return err
		}
	}
	return f.issue(s.clear, func(w *nccl.Stream) error {
		for _, id := range f.Plan.Steps[at].Alloc {
			b := &f.Plan.Buffers[id]
			if b.Kind != program.GroupGrads {
				continue
			}
			for _, z := range f.Zero[b.Index] {
				if err := w.Set(f.at[id]+uintptr(z.Start), 0, z.End-z.Start); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// alloc makes a buffer live: at an offset of the slab, or in a block if it outlives the pass.
func (f *frame) alloc(id, offset int) (err error) {
	b := &f.Plan.Buffers[id]
	if outlives(f.Plan, id) {
		if f.blocks[id], err = f.d.takeBlock(b.Bytes, b.Class); err == nil {
			f.at[id] = f.blocks[id].Addr()
		}
		return err
	}
	f.at[id] = f.slab.Addr() + uintptr(offset)
	if b.Kind == program.GroupGrads && f.writesShard(b.Index) {
		f.at[id] = f.s.groups[b.Index].grad.Addr()
	}
	f.counts[id], err = f.d.counts.Alloc(b.Bytes, b.Class)
	return err
}

// writesShard reports whether calls write the gradients of a group into its shard, so that they
// need no drain: no other rank has any, they are as the shard stores them, and the shard is to be
// cleared. The memory of the buffer is then unused.
func (f *frame) writesShard(group int) bool {
	g := f.s.groups[group]
	return g.shard == nil && g.replica == nil && f.s.turn.Of == 0 && g.Reduce == g.Store && f.GradType[group] == g.Store &&
		g.grad.pinned == nil && f.d.forget(g.grad)
}

// inShard reports whether a buffer is the gradient shard of its group.
func (f *frame) inShard(id int) bool {
	b := &f.Plan.Buffers[id]
	return b.Kind == program.GroupGrads && f.at[id] != 0 && f.at[id] == f.s.groups[b.Index].grad.Addr()
}

// Leave implements engine.Frame.
func (f *frame) Leave(at int) {
	step := &f.Plan.Steps[at]
	_ = f.issue(f.script.steps[at].poison, func(w *nccl.Stream) error { return f.poison(w, step, f.script.steps[at].work) })
	for _, id := range step.Free {
		f.drop(id)
	}
}

// poison fills the buffers that a step frees with NaN.
func (f *frame) poison(w *nccl.Stream, step *program.Step, work int) error {
	for _, id := range step.Free {
		if b := &f.Plan.Buffers[id]; f.at[id] != 0 && b.Bytes > 0 && !f.inShard(id) {
			if err := w.Set(f.at[id], 0xFF, b.Bytes); err != nil {
				return err
			}
		}
	}
	if step.Work == 0 {
		return nil
	}
	return w.Set(f.slab.Addr()+uintptr(work), 0xFF, step.Work)
}

// Seed implements engine.Frame.
func (f *frame) Seed(scale float64) error {
	return f.issue(f.script.steps[f.step].run, func(w *nccl.Stream) error {
		if f.Compiled.Seed < 0 {
			return nil
		}
		kernel, bits := "pass_set_f32", uint64(math.Float32bits(float32(scale)))
		if f.Plan.Buffers[f.Compiled.Seed].Bytes == 8 {
			kernel, bits = "pass_set_f64", math.Float64bits(scale)
		}
		return f.d.launch(w, kernel, 1, uint64(f.at[f.Compiled.Seed]), bits)
	})
}

// Gather implements engine.Frame.
func (f *frame) Gather(group int) error {
	g, full := f.s.groups[group], f.at[f.Params[group]]
	return f.collective(func() (*link, nccl.Op, error) { return g.startGather(full) })
}

// Wait implements engine.Frame. It does not wait: operations that read the parameters wait for
// their gather.
func (f *frame) Wait(context.Context, int) error { return f.d.err() }

// Reduce implements engine.Frame.
func (f *frame) Reduce(group int, before float32) error {
	g, full := f.s.groups[group], f.at[f.Grads[group]]
	if t := f.s.turn; t.Of > 0 {
		return f.inTree(func(scratch uintptr, at engine.Place) error {
			err := g.round(f.d.wire, full, g.Flat.Len(), before)
			if err == nil && t.Whole {
				err = g.merge(f.d.wire, full, g.Flat.Len(), g.wholes, t)
			}
			if err == nil {
				err = g.lower(full, f.GradType[group], before)
			}
			if err != nil {
				return err
			}
			return g.reduceInTree(f.s, full, scratch, at)
		})
	}
	return f.collective(func() (*link, nccl.Op, error) { return g.startReduce(full, f.GradType[group], before) })
}

// Sync implements engine.Frame.
func (f *frame) Sync(_ context.Context, group int) error {
	g, full := f.s.groups[group], f.at[f.Grads[group]]
	if f.s.turn.Of > 0 {
		return f.inTree(func(scratch uintptr, at engine.Place) error { return g.syncInTree(f.s, full, scratch, at) })
	}
	return f.collective(func() (*link, nccl.Op, error) {
		k, op := g.startSync(full)
		return k, op, nil
	})
}

// ScaleGrad implements engine.Frame. Wrap refuses the configurations that need it.
func (f *frame) ScaleGrad(int, float64) error {
	return f.fail(errors.New("this device cannot scale the gradients of absent calls"))
}

// collective gives the collective of the present step to its stream. If the step joins the next
// one, the collective is only enqueued.
func (f *frame) collective(start func() (*link, nccl.Op, error)) error {
	if err := f.awaitOp(f.script.steps[f.step].run); err != nil {
		return err
	}
	op := f.Plan.Steps[f.step].Op
	k, c, err := start()
	if err == nil && k != nil {
		err = f.d.links.enqueueOn(f.script.ops[f.script.steps[f.step].run].lane, k, c, f.place(), f.s.groups[op.Group].Name)
	}
	if err != nil {
		return f.fail(err)
	}
	f.issued = append(f.issued, f.step)
	if f.script.ops[f.script.steps[f.step].run].joins {
		return nil
	}
	return f.launch()
}

// launch launches the enqueued collectives, and marks their end.
func (f *frame) launch() error {
	if err := f.d.links.launch(); err != nil {
		return f.fail(err)
	}
	for _, at := range f.issued {
		if op := f.Plan.Steps[at].Op; op.Kind == program.Gather {
			if err := f.s.groups[op.Group].finishGather(f.at[f.Params[op.Group]]); err != nil {
				return f.fail(err)
			}
		}
	}
	f.issued = f.issued[:0]
	return f.recordOp(f.script.steps[f.step].run)
}

// Drain implements engine.Frame.
func (f *frame) Drain(_ context.Context, group int, after float64) error {
	return f.issue(f.script.steps[f.step].run, func(w *nccl.Stream) error {
		g, full := f.s.groups[group], f.at[f.Grads[group]]
		if over, err := f.s.keep(g, g.ownAddress(full, g.Reduce)); err != nil || !over {
			return err
		}
		return g.finishReduce(w, full, after)
	})
}

// Follow implements engine.Frame.
func (f *frame) Follow() error {
	switch f.Plan.Steps[f.step].Kind {
	case program.Gather, program.Reduce, program.Sync:
		return f.d.err()
	case program.Drain:
		return f.d.wait(f.stream(f.script.steps[f.step].run))
	}
	return f.d.wait(f.d.work)
}

// Number implements engine.Frame.
func (f *frame) Number(buffer int) (float64, error) {
	var x [8]byte
	b := x[:f.Plan.Buffers[buffer].Bytes]
	if err := f.read(b, buffer); err != nil {
		return 0, err
	}
	if len(b) == len(x) {
		return math.Float64frombits(binary.NativeEndian.Uint64(b)), nil
	}
	return float64(math.Float32frombits(binary.NativeEndian.Uint32(b))), nil
}

// Result implements engine.Frame.
func (f *frame) Result(buffer int, to []byte) error {
	n := f.Plan.Buffers[buffer].Bytes
	if n >= len(to) {
		return f.read(to, buffer)
	}
	low := make([]byte, n)
	if err := f.read(low, buffer); err != nil {
		return err
	}
	if f.d.o.Float16 {
		half.Widen(exec.Data[float32](to), exec.Data[half.Float16](low))
	} else {
		half.Widen(exec.Data[float32](to), exec.Data[half.BFloat16](low))
	}
	return nil
}

// read waits for a buffer and copies it.
func (f *frame) read(to []byte, buffer int) error {
	f.d.vectors.Lock()
	defer f.d.vectors.Unlock()
	return f.d.download(to, f.at[buffer])
}

// Switch implements engine.Frame. The new plan has other offsets, so live buffers are moved.
func (f *frame) Switch(c *engine.Compiled) {
	if f.slab == nil { // nothing has begun
		f.follow(c)
		return
	}
	old := *f
	f.follow(c)
	f.slab = nil
	if err := f.move(&old); err != nil {
		_ = f.d.fail(fmt.Errorf("changing the schedule of a pass: %w", err))
	}
}

// move begins the pass again behind the steps up to the turn, and moves the live buffers of old
// there.
func (f *frame) move(old *frame) (err error) {
	d := f.d
	if err := d.join(onWire); err != nil { // wire gathers into live buffers
		return err
	}
	if err := f.begin(); err != nil {
		return err
	}
	for i, off := range f.script.batch {
		from := old.slab.Addr() + uintptr(old.script.batch[i])
		if err := d.work.CopyDevice(f.slab.Addr()+uintptr(off), from, len(f.batch[i].Bytes)); err != nil {
			return err
		}
	}
	for i := range f.Plan.Turn {
		for k, id := range f.Plan.Steps[i].Alloc {
			f.at[id] = f.slab.Addr() + uintptr(f.script.steps[i].alloc[k])
		}
	}
	for id, b := range old.Plan.Buffers {
		to := f.Plan.Lookup(b.Kind, b.Index, b.Out)
		if to < 0 || old.at[id] == 0 {
			old.drop(id)
			continue
		}
		if err == nil && b.Bytes > 0 {
			err = d.work.CopyDevice(f.at[to], old.at[id], b.Bytes)
		}
		f.counts[to], old.at[id], old.counts[id] = old.counts[id], 0, nil
	}
	for id := range f.at { // buffers that the forward has freed
		if f.counts[id] == nil {
			f.at[id] = 0
		}
	}
	old.slab.taken = false
	if err != nil {
		return err
	}
	return d.fork()
}

// Inherit implements engine.Frame. Updates of gradients since the forward, such as zeroing them,
// run before the turn.
func (f *frame) Inherit() {
	_ = f.d.launchUpdates() // an error ends the device, which keeps it
	for _, id := range f.Plan.Inherited {
		g := f.s.groups[f.Plan.Buffers[id].Index]
		f.blocks[id], g.whole = g.whole, nil
		f.at[id] = f.blocks[id].Addr()
	}
}

// Bequeath implements engine.Frame. It ends the pass.
func (f *frame) Bequeath() {
	for _, id := range f.Plan.Left {
		_ = f.s.leave(f.s.groups[f.Plan.Buffers[id].Index], f.blocks[id]) // an error ends the device, which keeps it
		f.blocks[id] = nil
	}
	f.end(f.script.ends...)
	if f.s.turn.Whole {
		f.s.shed()
	}
}

// Await implements engine.Frame. It has nothing to wait for: end makes work wait for the gathers.
func (f *frame) Await(context.Context) (int, error) { return 0, f.d.err() }

// Settle implements engine.Frame.
func (f *frame) Settle() { f.d.settle() }

// Free implements engine.Frame.
func (f *frame) Free() { f.end(collective[:]...) }
