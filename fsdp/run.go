package fsdp

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// run executes steps from to to of the plan. An error in the middle of a pass leaves the other ranks waiting for this one:
// it fails the group, so that they return it too, and the model with it.
func (s *Sharded) run(ctx context.Context, p *pass, from, to int) error {
	for i := from; i < to; i++ {
		step := &p.plan.Steps[i]
		err := context.Cause(ctx)
		if err == nil {
			s.readAhead(p, i)
			err = s.execute(ctx, p, step)
		}
		if err != nil {
			return s.fail(p, step, err)
		}
		s.release(p, step)
	}
	return nil
}

func (s *Sharded) fail(p *pass, step *program.Step, err error) error {
	s.ended = append(s.ended, p)
	return s.broken(fmt.Errorf("pass %d: %s: %w", p.number, p.plan.Program.Text(step.Op), err))
}

// broken keeps err as the reason why the model cannot be used further, fails the group with it and returns it for the user.
func (s *Sharded) broken(err error) error {
	s.err = err
	_ = s.team.Fail(err)
	return fmt.Errorf("fsdp: rank %d: %w", s.cfg.Group.Rank(), err)
}

// usable is why no pass can run, and nothing be saved.
func (s *Sharded) usable() error {
	if s.err == nil && s.torn != nil {
		return s.torn
	}
	return s.err
}

// execute allocates what a step needs and runs it. A kernel panics on what no forward would have let through, such as a
// batch that was modified before its backward, and Config.Trace is the user's: that fails the group like any other error.
func (s *Sharded) execute(ctx context.Context, p *pass, step *program.Step) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	for _, id := range step.Alloc {
		b := p.plan.Buffers[id]
		if p.blocks[id], err = s.arena.Alloc(b.Bytes, b.Class); err != nil {
			return err
		}
		if b.Kind == program.GroupGrads {
			for _, z := range p.zero[b.Index] {
				clear(p.blocks[id].Data[z.lo:z.hi])
			}
		}
	}
	var begin time.Time
	if s.cfg.Trace != nil {
		begin = time.Now()
	}
	if err := s.operate(ctx, p, step); err != nil {
		return err
	}
	if s.cfg.Trace != nil {
		s.cfg.Trace(s.event(p, step, begin))
	}
	return nil
}

// release frees what a step leaves.
func (s *Sharded) release(p *pass, step *program.Step) {
	for _, id := range step.Free {
		s.arena.Free(p.blocks[id])
		p.blocks[id] = nil
	}
}

// operate runs the operation of a step.
func (s *Sharded) operate(ctx context.Context, p *pass, step *program.Step) error {
	switch step.Kind {
	case program.Forward, program.Backward:
		if p.shadow {
			return nil
		}
		return s.compute(p, step)
	case program.Turn:
		p.seedGradient()
		return nil
	}
	i := step.Group
	g := s.groups[i]
	switch step.Kind {
	case program.Gather:
		p.gather[i] = g.startGather(p.data(p.params[i]))
	case program.Wait:
		if err := p.gather[i].Wait(ctx); err != nil {
			return err
		}
		p.gather[i] = nil
		g.finishGather(p.data(p.params[i]))
	case program.Reduce:
		p.reduce[i] = g.startReduce(p.data(p.grads[i]), s.preDivide(g))
	case program.Sync:
		if err := p.reduce[i].Wait(ctx); err != nil {
			return err
		}
		p.reduce[i] = g.startSync(p.data(p.grads[i]))
	case program.Drain:
		if w := p.reduce[i]; w != nil {
			if err := w.Wait(ctx); err != nil {
				return err
			}
		}
		p.reduce[i] = nil
		g.finishReduce(p.data(p.grads[i]), s.factor()/float64(s.preDivide(g)))
	}
	return nil
}

// compute runs the forward or backward of a call.
func (s *Sharded) compute(p *pass, step *program.Step) error {
	b := &p.calls[step.Call]
	call := &b.bindings
	p.fill(call.Out, b.out)
	p.fill(call.GradOut, b.gradOut)
	p.fill(call.GradIn, b.gradIn)
	p.fill(call.Update, b.update)
	for j, id := range b.in {
		if id < 0 {
			call.In[j] = p.batch[^id].Bytes
		} else {
			call.In[j] = p.data(id)
		}
	}
	s.bindParams(p, step, call)
	call.Saved = p.data(b.saved)
	call.Seed, call.Train = s.callSeed(p.key, step.Call), !p.eval
	work, err := s.arena.Alloc(step.Work, arena.Work)
	if err != nil {
		return err
	}
	defer s.arena.Free(work)
	call.Work = work.Data
	if step.Kind == program.Backward {
		return s.runner.Backward(b.unit, call)
	}
	if err := s.runner.Forward(b.unit, call); err != nil || p.eval {
		return err
	}
	for k, u := range b.unit.Updates {
		swap(call.Param[u.Param], call.Update[k])
	}
	return nil
}

// swap exchanges two buffers of the same length: a module's buffer takes its new value, and the old one, which backward may
// read, stays where that was.
func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}

// bindParams says where the parameters of a call and their gradients are. What is not there is what the call does not use.
func (s *Sharded) bindParams(p *pass, step *program.Step, call *exec.Call) {
	for j, param := range p.model.Calls[step.Call].Params {
		at := s.layout.Home[param]
		g := s.groups[at.Group]
		full := p.data(p.params[at.Group])
		if g.Hold == program.Always {
			full = g.value.Data
		}
		call.Param[j], call.GradParam[j] = nil, nil
		if full != nil {
			call.Param[j] = g.Param(full, at.Index)
		}
		if step.Kind == program.Backward && !g.Kind.Frozen {
			call.GradParam[j] = g.Param(p.data(p.grads[at.Group]), at.Index)
		}
	}
	if step.Kind != program.Backward {
		return
	}
	for k, u := range p.calls[step.Call].unit.Updates {
		if old := call.Update[k]; old != nil {
			call.Param[u.Param] = old
		}
	}
}

// fill sets dst to the memory of the buffers.
func (p *pass) fill(dst [][]byte, ids []int) {
	for i, id := range ids {
		dst[i] = p.data(id)
	}
}

// data returns the memory of a buffer, nil if it is not live.
func (p *pass) data(id int) []byte {
	if id < 0 || p.blocks[id] == nil {
		return nil
	}
	return p.blocks[id].Data
}

// number64 returns the one number in a buffer.
func (p *pass) number64(id int) float64 {
	b := p.blocks[id].Data
	if len(b) == 8 {
		return exec.Data[float64](b)[0]
	}
	return float64(exec.Data[float32](b)[0])
}

// seedGradient sets the gradient of the loss.
func (p *pass) seedGradient() {
	if p.seedAt < 0 {
		return
	}
	if b := p.blocks[p.seedAt].Data; len(b) == 8 {
		vec.Fill(exec.Data[float64](b), p.scale)
	} else {
		vec.Fill(exec.Data[float32](b), float32(p.scale))
	}
}

// callSeed returns the seed of the random numbers of a call: another one for each rank, training pass and call. Passes of
// other kinds do not count, so that an evaluation between two steps leaves the training as it is. The finaliser is that of
// SplitMix64 (Steele, Lea and Flood, 2014).
func (s *Sharded) callSeed(key, call int) uint64 {
	x := s.cfg.Seed
	for _, v := range [...]int{s.cfg.Group.Rank(), key, call} {
		x = (x ^ uint64(v)) + 0x9E3779B97F4A7C15
		x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
		x = (x ^ x>>27) * 0x94D049BB133111EB
		x ^= x >> 31
	}
	return x
}
