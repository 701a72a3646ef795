package fardevice

import (
	"context"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/program"
)

// frame implements engine.Frame.
type frame struct {
	d    *Device
	c    *engine.Compiled
	host engine.Frame
	at   engine.Place // place of the last step that was entered
}

// issue queues an operation of the present step.
func (f *frame) issue(do func() error) error { return f.d.issueOp(f.at, do) }

// Enter implements engine.Frame.
func (f *frame) Enter(step int) error {
	f.at.Op = f.c.Plan.Steps[step].Op
	return f.issue(func() error { return f.host.Enter(step) })
}

// Leave implements engine.Frame.
func (f *frame) Leave(step int) { f.d.do(func() { f.host.Leave(step) }) }

// Forward implements engine.Frame.
func (f *frame) Forward(step *program.Step, seed uint64) error {
	return f.issue(func() error { return f.host.Forward(step, seed) })
}

// Backward implements engine.Frame.
func (f *frame) Backward(step *program.Step, seed uint64) error {
	return f.issue(func() error { return f.host.Backward(step, seed) })
}

// Seed implements engine.Frame.
func (f *frame) Seed(scale float64) error {
	return f.issue(func() error { return f.host.Seed(scale) })
}

// Gather implements engine.Frame.
func (f *frame) Gather(group int) error {
	return f.issue(func() error { return f.host.Gather(group) })
}

// Wait implements engine.Frame.
func (f *frame) Wait(ctx context.Context, group int) error {
	return f.issue(func() error { return f.host.Wait(ctx, group) })
}

// Reduce implements engine.Frame.
func (f *frame) Reduce(group int, before float32) error {
	return f.issue(func() error { return f.host.Reduce(group, before) })
}

// ScaleGrad implements engine.Frame.
func (f *frame) ScaleGrad(param int, c float64) error {
	return f.issue(func() error { return f.host.ScaleGrad(param, c) })
}

// Sync implements engine.Frame.
func (f *frame) Sync(ctx context.Context, group int) error {
	return f.issue(func() error { return f.host.Sync(ctx, group) })
}

// Drain implements engine.Frame.
func (f *frame) Drain(ctx context.Context, group int, after float64) error {
	return f.issue(func() error { return f.host.Drain(ctx, group, after) })
}

// Follow implements engine.Frame.
func (f *frame) Follow() error { return f.d.Wait() }

// Number implements engine.Frame.
func (f *frame) Number(buffer int) (x float64, err error) {
	err = f.d.call(func() (err error) {
		x, err = f.host.Number(buffer)
		return err
	})
	return x, err
}

// Result implements engine.Frame.
func (f *frame) Result(buffer int, to []byte) error {
	return f.d.call(func() error { return f.host.Result(buffer, to) })
}

// Switch implements engine.Frame.
func (f *frame) Switch(c *engine.Compiled) {
	f.c = c
	f.d.do(func() { f.host.Switch(c) })
}

// Inherit implements engine.Frame.
func (f *frame) Inherit() { f.d.do(f.host.Inherit) }

// Bequeath implements engine.Frame.
func (f *frame) Bequeath() { f.d.do(f.host.Bequeath) }

// Await implements engine.Frame.
func (f *frame) Await(ctx context.Context) (group int, err error) {
	err = f.d.call(func() (err error) {
		group, err = f.host.Await(ctx)
		return err
	})
	return group, err
}

// Settle implements engine.Frame.
func (f *frame) Settle() { f.d.always(f.host.Settle) }

// Free implements engine.Frame.
func (f *frame) Free() { f.d.do(f.host.Free) }
