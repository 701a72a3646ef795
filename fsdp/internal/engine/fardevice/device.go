// Package fardevice is an engine.Device for tests that uses all the freedom of the interface: no
// caller can access the memory of a shard, an operation runs some time after the method has
// returned, and its failure is reported later. No library code imports it.
//
// A Device wraps a Host. All accesses to memory go through one queue, which a goroutine executes in
// order. The goroutine lives only while the queue is not empty, so a model that is not closed
// leaves no goroutine.
//
// # After a failure
//
// The first operation that fails, or panics, ends the device. Operations queued behind it are
// skipped, and every later method with an error result returns the failure. Only operations that
// must end still run: the wait for collectives in flight, counts, and Close.
package fardevice

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"sync"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/optim"
)

// Device implements engine.Device.
type Device struct {
	host *engine.Host // for the queue only

	mu     sync.Mutex
	queue  []task
	busy   bool  // a goroutine executes the queue
	failed error // of the first task that failed
}

// A task is executed in order. failed is the failure of an earlier one, or nil. The task returns
// its own.
type task func(failed error) error

// New returns a device that computes on h, and takes ownership of h.
func New(h *engine.Host) *Device { return &Device{host: h} }

// add appends a task to the queue. It returns a failure that is already known.
func (d *Device) add(t task) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, t)
	if !d.busy {
		d.busy = true
		go d.execute()
	}
	return d.failed
}

// execute runs tasks until the queue is empty.
func (d *Device) execute() {
	d.mu.Lock()
	for len(d.queue) > 0 {
		t, failed := d.queue[0], d.failed
		d.queue = d.queue[1:]
		d.mu.Unlock()
		err := t(failed)
		d.mu.Lock()
		if d.failed == nil {
			d.failed = err
		}
	}
	d.busy = false
	d.mu.Unlock()
}

// issue queues an operation.
func (d *Device) issue(f func() error) error {
	return d.add(func(failed error) error {
		if failed != nil {
			return nil
		}
		return f()
	})
}

// issueOp queues an operation of a pass. It runs modules of the user, which may panic.
func (d *Device) issueOp(at engine.Place, f func() error) error {
	return d.issue(func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
			if err != nil {
				err = &engine.OpError{Place: at, Err: err}
			}
		}()
		return f()
	})
}

// do queues an operation that cannot fail.
func (d *Device) do(f func()) { _ = d.issue(func() error { f(); return nil }) }

// call executes f after all earlier tasks, and waits for it. Only the caller gets the error of f.
func (d *Device) call(f func() error) error {
	done := make(chan error, 1)
	_ = d.add(func(failed error) error {
		if failed == nil {
			failed = f()
		}
		done <- failed
		return nil
	})
	return <-done
}

// always is call for functions that also run after a failure.
func (d *Device) always(f func()) {
	done := make(chan struct{})
	_ = d.add(func(error) error { f(); close(done); return nil })
	<-done
}

// NewShards implements engine.Device.
func (d *Device) NewShards(ctx context.Context, l *layout.Layout, meshes []ranks.Mesh) (engine.Shards, error) {
	s := &shards{d: d}
	err := d.call(func() (err error) {
		s.host, err = d.host.NewShards(ctx, l, meshes)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Open implements engine.Device.
func (d *Device) Open(c *engine.Compiled, number int, s engine.Shards, batch []exec.Value) engine.Frame {
	return &frame{d: d, c: c, at: engine.Place{Pass: number, Program: c.Plan.Program}, host: d.host.Open(c, number, s.(*shards).host, batch)}
}

// Watch implements engine.Device.
func (d *Device) Watch(func(transport.Flight)) {}

// Finish implements engine.Device.
func (d *Device) Finish() error { return d.Wait() }

// Wait implements engine.Device.
func (d *Device) Wait() error { return d.call(func() error { return nil }) }

// MaxAbs implements engine.Device.
func (d *Device) MaxAbs(vs []optim.Vec) (list []float64, err error) {
	err = d.call(func() (err error) {
		list, err = d.host.MaxAbs(hostVecs(vs))
		return err
	})
	return list, err
}

// Squares implements engine.Device.
func (d *Device) Squares(vs []optim.Vec, bounds []float64) (list [][4]float64, err error) {
	err = d.call(func() (err error) {
		list, err = d.host.Squares(hostVecs(vs), bounds)
		return err
	})
	return list, err
}

// Scale implements engine.Device.
func (d *Device) Scale(vs []optim.Vec, c float64) error {
	hosts := hostVecs(vs)
	return d.issue(func() error { return d.host.Scale(hosts, c) })
}

// Host implements engine.Device.
func (d *Device) Host(n int, class arena.Class) (b *arena.Block, err error) {
	err = d.call(func() (err error) {
		b, err = d.host.Host(n, class)
		return err
	})
	return b, err
}

// Free implements engine.Device.
func (d *Device) Free(b *arena.Block) { d.do(func() { d.host.Free(b) }) }

// Begin implements engine.Device.
func (d *Device) Begin(p arena.Phase) { d.do(func() { d.host.Begin(p) }) }

// EndStep implements engine.Device.
func (d *Device) EndStep() error { return d.call(d.host.EndStep) }

// Threads implements engine.Device.
func (d *Device) Threads() int { return d.host.Threads() }

// Apart implements engine.Device.
func (d *Device) Apart() bool { return d.host.Apart() }

// Copies implements engine.Device.
func (d *Device) Copies() bool { return d.host.Copies() }

// Runs implements engine.Device.
func (d *Device) Runs(p *exec.Program) iter.Seq[exec.Instr] { return d.host.Runs(p) }

// Rounds implements engine.Device.
func (d *Device) Rounds() bool { return d.host.Rounds() }

// Work implements engine.Device.
func (d *Device) Work(p *exec.Program) (int, error) { return d.host.Work(p) }

// SumWork implements engine.Device.
func (d *Device) SumWork(g *layout.Group, leafwise bool) (room, reduce, sync int) {
	return d.host.SumWork(g, leafwise)
}

// Slow implements engine.Device.
func (d *Device) Slow(in *exec.Instr) string { return d.host.Slow(in) }

// Prepare implements engine.Device.
func (d *Device) Prepare(c *engine.Compiled) (any, error) { return d.host.Prepare(c) }

// Keep implements engine.Device.
func (d *Device) Keep(passes []*engine.Compiled) { d.host.Keep(passes) }

// Stats implements engine.Device.
func (d *Device) Stats() (s arena.Stats) {
	d.always(func() { s = d.host.Stats() })
	return s
}

// ResetPeak implements engine.Device.
func (d *Device) ResetPeak() { d.do(d.host.ResetPeak) }

// Reserve implements engine.Device.
func (d *Device) Reserve(c *engine.Compiled, counts func(arena.Class) bool) int {
	return d.host.Reserve(c, counts)
}

// InFile implements engine.Device.
func (d *Device) InFile(class arena.Class) bool { return d.host.InFile(class) }

// Close implements engine.Device.
func (d *Device) Close() (err error) {
	d.always(func() { err = d.host.Close() })
	return err
}

var errOther = errors.New("fardevice: copy between vectors of different lengths or types")
