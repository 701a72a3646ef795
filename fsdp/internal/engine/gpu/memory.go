package gpu

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	compute "github.com/gofsdp/gofsdp/internal/gpu"
	"github.com/gofsdp/gofsdp/nccl"
)

// slabs are the memory of passes. A pass takes the smallest slab that is large enough. It returns
// the slab when its last operation is in work: the next user's operations run after it.
type slabs struct {
	all   []*slabOf
	phase arena.Phase
	ended [2]int // steps, by phase
}

// A slabOf is the memory of one pass at a time.
type slabOf struct {
	*nccl.Memory
	taken bool
	phase arena.Phase // kind of the last step that needed at least 7/8 of it
	step  int         // of that phase
}

// takeSlab returns a slab of at least n bytes. Unused slabs are freed before a larger one is
// allocated.
func (d *Device) takeSlab(n int) (*slabOf, error) {
	var best *slabOf
	for _, s := range d.slabs.all {
		if !s.taken && s.Len() >= n && (best == nil || s.Len() < best.Len()) {
			best = s
		}
	}
	if best == nil {
		if err := d.dropSlabs(func(*slabOf) bool { return true }); err != nil {
			return nil, err
		}
		m, err := d.newMemory(n)
		if err != nil {
			return nil, withAdvice(fmt.Errorf("allocating the buffers of a pass: %w", err))
		}
		d.held += n
		best = &slabOf{Memory: m}
		d.slabs.all = append(d.slabs.all, best)
	}
	best.taken = true
	if best.Len() <= n+n/8 {
		best.phase, best.step = d.slabs.phase, d.slabs.ended[d.slabs.phase]
	}
	return best, nil
}

// dropSlabs frees the unused slabs for which old returns true.
func (d *Device) dropSlabs(old func(*slabOf) bool) error {
	free := func(s *slabOf) bool { return !s.taken && old(s) }
	if !slices.ContainsFunc(d.slabs.all, free) {
		return nil
	}
	if err := d.idle(); err != nil {
		return err
	}
	var errs []error
	d.slabs.all = slices.DeleteFunc(d.slabs.all, func(s *slabOf) bool {
		if !free(s) {
			return false
		}
		d.held -= s.Len()
		errs = append(errs, s.Free())
		return true
	})
	return errors.Join(errs...)
}

// idle waits until all streams have ended all their operations.
func (d *Device) idle() error {
	for _, s := range []*nccl.Stream{d.wire, d.replicas, d.work} {
		if err := d.wait(s); err != nil {
			return err
		}
	}
	return nil
}

// spares are blocks of gradients that outlived a pass and are free now: each accumulation by NoSync
// uses the memory of the accumulation before. Taking a spare needs no wait. The stream work has the
// order: it runs all operations that used the spare, or waits for them, before later operations,
// and the first operation of a pass on a block is in work.
type spares struct {
	blocks []*block
	step   int // of training, in which a spare was last added or taken
}

// takeBlock returns a block of n bytes: a spare, or a new block.
func (d *Device) takeBlock(n int, class arena.Class) (b *block, err error) {
	s := &d.spares
	i := slices.IndexFunc(s.blocks, func(b *block) bool { return b.Len() == n })
	if i < 0 {
		return d.alloc(n, class)
	}
	b = s.blocks[i]
	s.blocks, s.step = slices.Delete(s.blocks, i, i+1), d.slabs.ended[arena.Training]
	b.counted, err = d.counts.Alloc(n, class)
	return b, err
}

// keep makes a block a spare.
func (d *Device) keep(b *block) {
	d.counts.Free(b.counted)
	b.counted = nil
	d.spares.blocks, d.spares.step = append(d.spares.blocks, b), d.slabs.ended[arena.Training]
}

// dropSpares frees the spares.
func (d *Device) dropSpares() error {
	if err := d.idle(); err != nil {
		return err
	}
	var errs []error
	for _, b := range d.spares.blocks {
		errs = append(errs, d.free(b))
	}
	d.spares.blocks = nil
	return errors.Join(errs...)
}

// newMemory allocates n bytes. If the device is full, it frees the spares first.
func (d *Device) newMemory(n int) (*nccl.Memory, error) {
	m, err := d.gpu.Alloc(n)
	if e := new(nccl.CUDAError); len(d.spares.blocks) > 0 && errors.As(err, &e) && e.OutOfMemory() {
		if err := d.dropSpares(); err != nil {
			return nil, err
		}
		return d.gpu.Alloc(n)
	}
	return m, err
}

// discard makes a block a spare at the end of a step. It does nothing for nil.
func (d *Device) discard(b *block) {
	if b != nil {
		d.counts.Free(b.counted)
		b.counted = nil
		d.garbage = append(d.garbage, b)
	}
}

// sweep makes discarded blocks spares, and frees spares that the last two steps of training have
// not used, and programs that no pass uses any more.
func (d *Device) sweep() error {
	for _, b := range d.garbage {
		d.keep(b)
	}
	d.garbage = d.garbage[:0]
	if len(d.spares.blocks) > 0 && d.slabs.ended[arena.Training]-d.spares.step > 2 {
		if err := d.dropSpares(); err != nil {
			return err
		}
	}
	if len(d.old) == 0 {
		return nil
	}
	if err := d.idle(); err != nil {
		return err
	}
	var errs []error
	for _, p := range d.old {
		errs = append(errs, p.Free())
	}
	d.old = nil
	return errors.Join(errs...)
}

// Begin implements engine.Device.
func (d *Device) Begin(p arena.Phase) {
	d.slabs.phase = p
	d.counts.Begin(p)
}

// EndStep implements engine.Device. It frees a slab if the last two steps of its kind did not need
// one of its size.
func (d *Device) EndStep() error {
	p := d.slabs.phase
	d.slabs.ended[p]++
	old := func(s *slabOf) bool { return s.phase == p && d.slabs.ended[p]-s.step > 2 }
	if err := d.dropSlabs(old); err != nil {
		return err
	}
	if err := d.sweep(); err != nil {
		return err
	}
	return errors.Join(d.err(), d.host.EndStep(), d.counts.EndStep())
}

// Stats implements engine.Device.
func (d *Device) Stats() arena.Stats {
	s := d.counts.Stats()
	s.Reserved = d.held - d.fixed + d.pinned + d.host.Stats().Reserved
	return s
}

// ResetPeak implements engine.Device.
func (d *Device) ResetPeak() { d.counts.ResetPeak() }

// Host implements engine.Device.
func (d *Device) Host(n int, class arena.Class) (*arena.Block, error) {
	b, err := d.host.Alloc(n, class)
	if err != nil {
		return nil, err
	}
	if d.lent[b], err = d.counts.Alloc(n, class); err != nil {
		d.host.Free(b)
		return nil, err
	}
	return b, nil
}

// Free implements engine.Device.
func (d *Device) Free(b *arena.Block) {
	if b != nil {
		d.counts.Free(d.lent[b])
		delete(d.lent, b)
		d.host.Free(b)
	}
}

// InFile implements engine.Device.
func (d *Device) InFile(arena.Class) bool { return false }

// Threads implements engine.Device.
func (d *Device) Threads() int { return 1 }

// Apart implements engine.Device.
func (d *Device) Apart() bool { return true }

// Copies implements engine.Device.
func (d *Device) Copies() bool { return true }

// Rounds implements engine.Device.
func (d *Device) Rounds() bool { return true }

// Work implements engine.Device. It returns the memory that the program plans, plus scratch memory
// of the kernels.
func (d *Device) Work(p *exec.Program) (int, error) {
	if d.programs[p] == nil {
		made, err := d.engine.Compile(p)
		if err != nil {
			return 0, err
		}
		d.programs[p] = made
	}
	return withScratch(p, d.programs[p].Scratch), nil
}

// Runs implements engine.Device.
func (d *Device) Runs(p *exec.Program) iter.Seq[exec.Instr] { return compute.Runs(p) }

// Slow implements engine.Device.
func (d *Device) Slow(in *exec.Instr) string { return d.engine.Slow(in) }

// withScratch returns the bytes that a run of a program takes, including scratch memory of its
// kernels.
func withScratch(p *exec.Program, scratch int) int {
	if scratch > 0 {
		return aligned(p.Work) + scratch
	}
	return p.Work
}

// aligned returns the offset of the kernels' scratch memory behind n bytes of the call.
func aligned(n int) int { return (n + alignment - 1) / alignment * alignment }

// Prepare implements engine.Device.
func (d *Device) Prepare(c *engine.Compiled) (any, error) {
	return newScript(c, d.o.Poison, d.o.Deterministic)
}

// Keep implements engine.Device.
func (d *Device) Keep(passes []*engine.Compiled) {
	used := make(map[*exec.Program]bool)
	mark := func(c *engine.Compiled) {
		for i := range c.Calls {
			if u := c.Calls[i].Unit; u != nil {
				used[u.Forward], used[u.Backward] = true, true
			}
		}
	}
	for _, c := range passes {
		mark(c)
	}
	for f := range d.frames {
		mark(f.Compiled)
	}
	for p, made := range d.programs {
		if !used[p] {
			delete(d.programs, p)
			d.old = append(d.old, made) // EndStep frees them
		}
	}
}

// Reserve implements engine.Device.
func (d *Device) Reserve(c *engine.Compiled, _ func(arena.Class) bool) int { return reserve(c) }

// reserve returns the bytes that a pass takes. All of them are in memory.
func reserve(c *engine.Compiled) int {
	n := c.Prepared.(*script).bytes
	for id, b := range c.Plan.Buffers {
		if outlives(c.Plan, id) {
			n += b.Bytes
		}
	}
	return n
}

// Finish implements engine.Device. This rank has nothing under way on the groups.
func (d *Device) Finish() error { return d.err() }

// Wait implements engine.Device.
func (d *Device) Wait() error {
	if err := d.launchUpdates(); err != nil {
		return err
	}
	return d.idle()
}

// Close implements engine.Device. It returns a failure that no earlier call has returned.
func (d *Device) Close() error {
	known := d.err() != nil
	if err := d.settle(); err != nil {
		return err
	}
	var errs []error
	if !known {
		errs = append(errs, d.err())
	}
	for b := range d.blocks {
		errs = append(errs, b.Free())
	}
	for _, s := range d.slabs.all {
		errs = append(errs, s.Free())
	}
	for _, p := range d.programs {
		errs = append(errs, p.Free())
	}
	for _, p := range d.old {
		errs = append(errs, p.Free())
	}
	return errors.Join(append(errs, d.host.Close(), d.counts.Close(), d.release())...)
}

var _ engine.Device = (*Device)(nil)
