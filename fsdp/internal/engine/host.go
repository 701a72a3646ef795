package engine

import (
	"errors"
	"fmt"
	"iter"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/mapped"
	"github.com/gofsdp/gofsdp/optim"
	optimvec "github.com/gofsdp/gofsdp/optim/vec"
)

// Host is the Device that computes with the processor, in the memory of the process. All its
// operations are complete when the method returns.
//
// Data in files is ordinary memory for all code that reads and writes it: the schedule, the
// collectives and the optimizer are the same, and so are the bits. The system decides which part of
// it is in RAM. The schedule informs the system of the next accesses (see readAhead), but not of
// memory that is no longer needed, as package mapped could: that made passes longer, see
// internal/experiments/memory.md.
//
// The threads refer to the Host. The Host refers to no Engine, so the collector finds a dropped
// model all the same.
type Host struct {
	arena  *arena.Arena
	files  *mapped.Files // or nil
	runner exec.Runner
	call   exec.Call // of the operation that runs; empty between them
	open   map[*flights]struct{}
}

// HostOptions are the sources of a Host's memory, and its threads.
type HostOptions struct {
	Collective arena.Source // of data that ranks send to each other; nil is the Go heap
	Dir        string       // for files, which replace RAM; "" is none
	Poison     bool         // fill freed buffers with NaN
	Threads    int          // that compute
}

// NewHost returns a Host.
func NewHost(o HostOptions) (*Host, error) {
	h, from := &Host{open: make(map[*flights]struct{})}, arena.Sources{Collective: o.Collective}
	if o.Dir != "" {
		var err error
		if h.files, err = mapped.Open(o.Dir); err != nil {
			return nil, err
		}
		from.Shard, from.Spill = h.files, h.files
	}
	h.arena = arena.New(from)
	h.arena.Poison = o.Poison
	h.runner.Team.Start(o.Threads)
	return h, nil
}

// Default returns the device that a rank computes on if its configuration names none. For a plan it
// returns a device without memory. Tests replace it with other devices.
var Default = func(_ int, o HostOptions, dry bool) (Device, error) {
	if dry {
		return NewDry(o), nil
	}
	h, err := NewHost(o)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Threads implements Device.
func (h *Host) Threads() int { return h.runner.Team.Size() }

// Apart implements Device.
func (h *Host) Apart() bool { return false }

// Copies implements Device.
func (h *Host) Copies() bool { return false }

// Runs implements Device.
func (h *Host) Runs(p *exec.Program) iter.Seq[exec.Instr] { return p.All() }

// Rounds implements Device.
func (h *Host) Rounds() bool { return false }

// Work implements Device.
func (h *Host) Work(p *exec.Program) (int, error) { return p.Work, nil }

// SumWork implements Device. The groups have separate memory for sums, but not for leaves.
func (h *Host) SumWork(g *layout.Group, leafwise bool) (room, reduce, sync int) {
	if leafwise {
		x := NewExchange(g)
		room = (2*x.Places*x.Part - x.Elements) * g.Compute.Size()
	}
	return room, 0, 0
}

// Slow implements Device.
func (h *Host) Slow(in *exec.Instr) string {
	if in.Op.Kind == exec.KindStock && in.Out.Space != exec.SpaceHost {
		return "stock operations of Gorgonia's"
	}
	return ""
}

// Prepare implements Device.
func (h *Host) Prepare(*Compiled) (any, error) { return nil, nil }

// Keep implements Device.
func (h *Host) Keep([]*Compiled) {}

// Watch does nothing: on the host every collective goes through a comm.Group, which reports it.
func (h *Host) Watch(func(transport.Flight)) {}

// Finish implements Device.
func (h *Host) Finish() error { return nil }

// Wait implements Device.
func (h *Host) Wait() error { return nil }

// MaxAbs implements Device.
func (h *Host) MaxAbs(vs []optim.Vec) ([]float64, error) {
	list := make([]float64, len(vs))
	for i, v := range vs {
		if g, ok := v.(hostGrad); ok {
			list[i] = g.Largest()
		} else {
			eachHost(v, false, func(h optim.Host) { list[i] = max(list[i], largest(h)) })
		}
	}
	return list, nil
}

// Squares implements Device.
func (h *Host) Squares(vs []optim.Vec, bounds []float64) ([][4]float64, error) {
	list := make([][4]float64, len(vs))
	for i, v := range vs {
		sum := vec.NewSquares(bounds[i])
		eachHost(v, false, func(h optim.Host) {
			vec.AddSquares(&sum, h.F64)
			vec.AddSquares(&sum, h.F32)
		})
		list[i] = sum.Words()
	}
	return list, nil
}

// Scale implements Device.
func (h *Host) Scale(vs []optim.Vec, c float64) error {
	for _, v := range vs {
		if g, ok := v.(hostGrad); ok {
			g.times(c)
		} else {
			eachHost(v, true, func(h optim.Host) { scale(h, c) })
		}
	}
	return nil
}

// eachHost calls f with the elements of v: in place, or some at a time as float32 if they are
// bfloat16. These are rounded to the nearest after f has changed them.
func eachHost(v optim.Vec, changes bool, f func(h optim.Host)) {
	if a, ok := v.(optimvec.Addressable); ok {
		f(a.Elements())
		return
	}
	room := rooms.Get().(*[16 * vec.Block8]float32)
	defer rooms.Put(room)
	stored := v.(optimvec.Host16).Stored()
	for at := 0; at < len(stored); at += len(room) {
		part := stored[at:min(at+len(room), len(stored))]
		h := optim.Host{F32: room[:len(part)]}
		half.Widen(h.F32, part)
		if f(h); changes {
			half.Narrow(part, h.F32)
		}
	}
}

// Host implements Device.
func (h *Host) Host(n int, class arena.Class) (*arena.Block, error) { return h.arena.Alloc(n, class) }

// Free implements Device.
func (h *Host) Free(b *arena.Block) { h.arena.Free(b) }

// Begin implements Device.
func (h *Host) Begin(p arena.Phase) { h.arena.Begin(p) }

// EndStep implements Device.
func (h *Host) EndStep() error { return h.arena.EndStep() }

// Stats implements Device.
func (h *Host) Stats() arena.Stats { return h.arena.Stats() }

// ResetPeak implements Device.
func (h *Host) ResetPeak() { h.arena.ResetPeak() }

// Reserve implements Device. Buffers are allocated and freed as in a pass, in an arena without
// memory, until the freed buffers that no pass uses would have been dropped.
func (h *Host) Reserve(c *Compiled, counts func(arena.Class) bool) int {
	p, dry, most := c.Plan, h.arena.Dry(), 0
	blocks := make([]*arena.Block, len(p.Buffers))
	alloc := func(n int, class arena.Class) (b *arena.Block) {
		if counts(class) {
			b, _ = dry.Alloc(n, class) // an arena without memory cannot fail
		}
		return b
	}
	enter := func(ids []int) {
		for _, id := range ids {
			blocks[id] = alloc(p.Buffers[id].Bytes, p.Buffers[id].Class)
		}
	}
	leave := func(ids []int) {
		for _, id := range ids {
			dry.Free(blocks[id])
			blocks[id] = nil
		}
	}
	for range 4 {
		enter(p.Inherited)
		for i := range p.Steps {
			step := &p.Steps[i]
			enter(step.Alloc)
			dry.Free(alloc(step.Work, arena.Work))
			leave(step.Free)
		}
		leave(p.Left)
		most = max(most, dry.Stats().Reserved)
		_ = dry.EndStep() // nor can this
	}
	return most
}

// InFile implements Device.
func (h *Host) InFile(c arena.Class) bool { return h.files != nil && inFile(c) }

// inFile reports whether memory of a class is in files, if any is.
func inFile(c arena.Class) bool {
	return c == arena.Shard || c == arena.State || c == arena.Spilled || c == arena.Snapshot
}

// Close implements Device. A model that was dropped may have collectives in flight.
func (h *Host) Close() error {
	for f := range h.open {
		f.settle()
	}
	h.runner.Team.Close()
	err := h.arena.Close()
	if h.files != nil {
		err = errors.Join(err, h.files.Close())
	}
	return err
}

// willNeed has the system read a shard. If that fails, the shard is read when it is touched.
func (h *Host) willNeed(b *arena.Block) { _ = h.files.WillNeed(b.Data) }

// alloc returns a block set to zero.
func (h *Host) alloc(n int, class arena.Class, group string) (*arena.Block, error) {
	b, err := h.arena.Alloc(n, class)
	if err != nil {
		return nil, fmt.Errorf("group %s: %w", group, err)
	}
	clear(b.Data)
	return b, nil
}
