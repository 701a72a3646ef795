package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// A Pass is a pass under way.
type Pass struct {
	*Compiled
	Batch  []exec.Value
	Number int
	Key    int     // of its random numbers, the same in forward and backward
	Scale  float64 // gradient of the loss
	Loss   float64 // of this rank

	e     *Engine
	frame Frame
}

// A Step is what has just been done.
type Step struct {
	Pass   int
	Op     program.Op
	Model  *program.Model
	Begin  time.Time
	Live   int // bytes of counted memory, with what is about to be freed
	Absent bool
	Eval   bool
}

// Start begins a pass that ranks have agreed on. No buffer may be touched before that, because the
// memory of a group that was closed may be gone.
func (e *Engine) Start(c *Compiled, batch []exec.Value) *Pass {
	phase := arena.Training
	if c.Eval {
		phase = arena.Evaluation
	}
	e.dev.Begin(phase)
	e.passes++
	return &Pass{Compiled: c, Batch: batch, Number: e.passes, e: e, frame: e.dev.Open(c, e.shards, batch)}
}

// Forward runs the forward half of a training pass and sets its loss.
func (p *Pass) Forward(ctx context.Context) (err error) {
	if err := p.run(ctx, 0, p.Plan.Turn); err != nil || p.Absent {
		return err
	}
	if p.Loss, err = p.frame.Number(p.Compiled.Loss); err != nil {
		return p.fail(p.Plan.Steps[p.Plan.Turn-1].Op, err)
	}
	return nil
}

// Backward runs the other half. Switch may have changed its schedule since the forward.
func (p *Pass) Backward(ctx context.Context) error {
	e := p.e
	e.dev.Begin(arena.Training)
	p.frame.Inherit()
	if err := p.run(ctx, p.Plan.Turn, len(p.Plan.Steps)); err != nil {
		return err
	}
	p.frame.Bequeath()
	if e.pending++; !p.NoSync {
		e.pending = 0
	}
	for i, has := range p.Grad {
		e.present[i] = e.present[i] || has
	}
	return e.endStep()
}

// Switch makes p a pass by another schedule of the same calls, whose forwards are the same.
func (p *Pass) Switch(c *Compiled) {
	if c != p.Compiled {
		p.frame.Switch(c)
		p.Compiled = c
	}
}

// Eval runs an evaluation, and copies each of its results to where room says. It ends the pass.
func (p *Pass) Eval(ctx context.Context, room func(shape []int) []byte) error {
	if err := p.run(ctx, 0, len(p.Plan.Steps)); err != nil {
		return err
	}
	for _, r := range p.Path.Results {
		if p.Absent {
			break
		}
		to := room(p.Calls[r.Call].Unit.OutShape[r.Out])
		if err := p.frame.Result(p.Plan.Lookup(program.CallOut, r.Call, r.Out), to); err != nil {
			return p.fail(p.Plan.Steps[len(p.Plan.Steps)-1].Op, err)
		}
	}
	p.frame.Free()
	return p.e.endStep()
}

// Discard ends a forward that gets no backward. Gathers for the backward may be in flight: their
// buffers are the group's until they are waited for. If the model has failed already, Settle does
// that.
func (p *Pass) Discard(ctx context.Context, failed bool) error {
	e := p.e
	if failed {
		e.failed = append(e.failed, p)
		return nil
	}
	if g, err := p.frame.Await(ctx); err != nil {
		e.failed = append(e.failed, p)
		return e.team.Fail(fmt.Errorf("pass %d has no Backward: waiting for group %s: %w", p.Number, e.layout.Groups[g].Name, err))
	}
	p.frame.Free()
	return e.endStep()
}

// endStep gives up memory that steps have stopped using.
func (e *Engine) endStep() error {
	if err := e.dev.EndStep(); err != nil {
		return e.team.Fail(err)
	}
	return nil
}

// run executes steps from to to of the plan, and waits for them. An error in the middle of a pass
// leaves the other ranks waiting for this one: it fails all groups, so that they return it too.
func (p *Pass) run(ctx context.Context, from, to int) error {
	for i := from; i < to; i++ {
		step := &p.Plan.Steps[i]
		err := context.Cause(ctx)
		if err == nil {
			err = p.execute(ctx, i, step)
		}
		if err != nil {
			return p.fail(step.Op, err)
		}
		p.frame.Leave(i)
	}
	if from == to {
		return nil
	}
	if err := p.e.dev.Finish(); err != nil {
		return p.fail(p.Plan.Steps[to-1].Op, err)
	}
	return nil
}

// fail ends the pass, and the model. Operations may fail after the device has accepted them: then
// err says which.
func (p *Pass) fail(op program.Op, err error) error {
	var late *OpError
	if errors.As(err, &late) {
		op = late.Op
	}
	p.e.failed = append(p.e.failed, p)
	return p.e.team.Fail(fmt.Errorf("pass %d: %s: %w", p.Number, p.Plan.Program.Text(op), err))
}

// execute runs a step. A kernel panics on what no forward would have let through, such as a batch
// that was modified before its backward, and Options.Trace is the user's: a panic fails the pass
// like any other error.
func (p *Pass) execute(ctx context.Context, i int, step *program.Step) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	if err := p.frame.Enter(i); err != nil {
		return err
	}
	if p.e.o.Trace == nil {
		return p.operate(ctx, step)
	}
	begin := time.Now()
	if err := p.operate(ctx, step); err != nil {
		return err
	}
	if err := p.e.dev.Finish(); err != nil { // what is traced has been done
		return err
	}
	live := p.e.dev.Stats().Total
	p.e.o.Trace(&Step{Pass: p.Number, Op: step.Op, Model: p.Model, Begin: begin, Live: live, Absent: p.Absent, Eval: p.Compiled.Eval})
	return nil
}

// operate issues the operation of a step.
func (p *Pass) operate(ctx context.Context, step *program.Step) error {
	e, f := p.e, p.frame
	switch step.Kind {
	case program.Forward:
		if p.Absent {
			return nil
		}
		return f.Forward(step, e.callSeed(p.Key, step.Call))
	case program.Backward:
		if p.Absent {
			return nil
		}
		return f.Backward(step, e.callSeed(p.Key, step.Call))
	case program.Turn:
		return f.Seed(p.Scale)
	case program.Gather:
		return f.Gather(step.Group)
	case program.Wait:
		return f.Wait(ctx, step.Group)
	case program.Reduce:
		return f.Reduce(step.Group, e.o.Before(&e.layout.Groups[step.Group]))
	case program.Sync:
		return f.Sync(ctx, step.Group)
	case program.Drain:
		return f.Drain(ctx, step.Group, e.o.Factor/float64(e.o.Before(&e.layout.Groups[step.Group])))
	}
	return nil
}

// callSeed returns the seed of the random numbers of a call: another one for each rank, training
// pass and call. Passes of other kinds do not count, so that an evaluation between two steps leaves
// the training as it is. The finaliser is that of SplitMix64 (Steele, Lea and Flood, 2014).
func (e *Engine) callSeed(key, call int) uint64 {
	x := e.o.Seed
	for _, v := range [...]int{e.team.Rank(), key, call} {
		x = (x ^ uint64(v)) + 0x9E3779B97F4A7C15
		x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
		x = (x ^ x>>27) * 0x94D049BB133111EB
		x ^= x >> 31
	}
	return x
}
