package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// pass is a pass under way: the buffers that are live and how far the plan has run.
type pass struct {
	*compiled
	batch  []exec.Value
	blocks []*arena.Block // by buffer of the plan
	number int
	key    int     // of its random numbers, the same in forward and backward
	scale  float64 // gradient of the loss
	lost   float64 // the loss
}

// Forward runs the forward pass on this rank's batch and returns this rank's loss. The batch must not be modified until
// Backward has returned. A forward whose Backward never comes is discarded by the next pass.
//
// Batches may differ in shape from rank to rank and from step to step.
func (s *Sharded) Forward(ctx context.Context, batch ...Tensor) (loss float64, err error) {
	p, err := s.start(ctx, passForward, batch)
	if err != nil {
		return 0, err
	}
	p.key = s.forwards
	s.forwards++
	if err := s.run(ctx, p, 0, p.plan.Turn); err != nil {
		return 0, err
	}
	p.lost = p.number64(p.loss)
	s.pass = p
	return p.lost, nil
}

// A BackwardOption changes one Backward.
type BackwardOption func(*pass)

// Scale multiplies the loss by c before it is differentiated. With k forwards and backwards per step, Scale(1/k) averages
// their gradients; a rank that holds r of n rows of a batch over w ranks, at least one, gets the gradient of the mean over
// all rows by Scale(w*r/n). Both together are Scale(w*r/n/k); a second Scale replaces the first.
func Scale(c float64) BackwardOption { return func(p *pass) { p.scale = c } }

// Backward runs the backward pass of the last Forward. It leaves the mean over the ranks of the gradients, added to what
// was there, in the shards that each rank owns. It fails on every rank if the loss of any is not finite, and then changes
// no gradient. After an error the Forward is gone: the next call is another Forward.
func (s *Sharded) Backward(ctx context.Context, opts ...BackwardOption) error {
	p := s.pass
	err := s.err
	if p != nil {
		p.scale = 1
		for _, o := range opts {
			if o != nil {
				o(p)
			}
		}
	}
	switch {
	case err != nil:
	case p == nil:
		err = errors.New("Backward without a Forward before it")
	case math.IsNaN(p.scale) || math.IsInf(p.scale, 0):
		err = fmt.Errorf("Scale is %v", p.scale)
	case math.IsNaN(p.lost) || math.IsInf(p.lost, 0):
		err = fmt.Errorf("the loss of pass %d is %v", p.number, p.lost)
	}
	if err := s.agree(ctx, passBackward, 0, err); err != nil {
		return errors.Join(err, s.discard(ctx))
	}
	s.pass = nil
	if err := s.run(ctx, p, p.plan.Turn, len(p.plan.Steps)); err != nil {
		return err
	}
	return s.endStep()
}

// Eval runs the forward pass in evaluation mode, without dropout, and returns the results of the model. They belong to the
// caller; a result that is one number comes as a tensor of shape (1). The batch is that of Forward, targets included: where
// only predictions are wanted, any valid targets will do, such as nn.IgnoreTarget.
func (s *Sharded) Eval(ctx context.Context, batch ...Tensor) ([]Tensor, error) {
	p, err := s.start(ctx, passEval, batch)
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, p, 0, len(p.plan.Steps)); err != nil {
		return nil, err
	}
	results := make([]Tensor, len(s.model.Results))
	for i, r := range s.model.Results {
		v := exec.Value{Shape: p.calls[r.Call].unit.OutShape[r.Out], DType: s.cfg.Precision.Compute.tensor()}
		v.Bytes = p.data(p.plan.Lookup(program.CallOut, r.Call, r.Out))
		results[i] = v.Tensor().Clone().(*tensor.Dense)
	}
	s.drop(p)
	if err := s.endStep(); err != nil {
		return nil, err
	}
	return results, nil
}

// start checks the batch, finds the compiled pass and agrees with the other ranks to run it. Only then does it touch any
// buffer: the memory of a group that was closed may be gone.
func (s *Sharded) start(ctx context.Context, kind passKind, batch []Tensor) (*pass, error) {
	var c *compiled
	values, err := s.batchValues(batch)
	if err == nil {
		c, err = s.compiledFor(kind == passEval, values)
	}
	if err == nil {
		err = s.checkIntegers(c, values)
	}
	if s.err != nil {
		err = s.err
	}
	if err := s.agree(ctx, kind, 0, err); err != nil {
		return nil, errors.Join(err, s.discard(ctx))
	}
	if err := s.discard(ctx); err != nil {
		return nil, err
	}
	phase := arena.Training
	if kind == passEval {
		phase = arena.Evaluation
	}
	s.arena.Begin(phase)
	s.passes++
	return &pass{compiled: c, batch: values, blocks: make([]*arena.Block, len(c.plan.Buffers)), number: s.passes}, nil
}

// agree agrees with the other ranks to run a collective method.
func (s *Sharded) agree(ctx context.Context, kind passKind, argument float64, err error) error {
	if s.err == errClosed { // the others need not know, and may have left
		return fmt.Errorf("fsdp: rank %d: %v: %w", s.cfg.Group.Rank(), kind, s.err)
	}
	s.requests++
	if err == nil {
		err = context.Cause(ctx)
	}
	err = s.agreement.on(ctx, request{kind, s.requests, argument}, err)
	var lost *exchangeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &lost) && s.err == nil:
		return s.broken(fmt.Errorf("%v: %w", kind, err))
	default:
		return fmt.Errorf("fsdp: rank %d: %v: %w", s.cfg.Group.Rank(), kind, err)
	}
}

// batchValues checks the number and kind of the batch's tensors.
func (s *Sharded) batchValues(batch []Tensor) ([]exec.Value, error) {
	if len(batch) != s.model.Inputs {
		return nil, fmt.Errorf("the batch has %d tensors, the model takes %d", len(batch), s.model.Inputs)
	}
	values := make([]exec.Value, len(batch))
	for i, t := range batch {
		v, err := exec.FromTensor(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.trace.input(i), err)
		}
		if want := s.cfg.Precision.Compute.tensor(); v.DType != tensor.Int && v.DType != want {
			return nil, fmt.Errorf("%s is %v: the model computes in %v", s.trace.input(i), v.DType, want)
		}
		values[i] = v
	}
	return values, nil
}

// checkIntegers finds the tokens and targets that are out of range while the batch can still be refused: in the middle of a
// pass they would cost the model.
func (s *Sharded) checkIntegers(c *compiled, batch []exec.Value) error {
	for i, call := range s.model.Calls {
		for j, r := range call.In {
			if c.calls[i].unit == nil || r.Call != program.Batch || batch[r.Out].DType != tensor.Int {
				continue
			}
			if err := c.calls[i].unit.Check(j, exec.Data[int](batch[r.Out].Bytes)); err != nil {
				return fmt.Errorf("%s: call %s: %w", s.trace.input(r.Out), call.Name, err)
			}
		}
	}
	return nil
}

// discard ends a forward that gets no backward. Gathers for the backward may be in flight: their buffers are the group's
// until they are waited for.
func (s *Sharded) discard(ctx context.Context) error {
	p := s.pass
	if p == nil || s.err != nil {
		return nil // after a failure the buffers stay where they are
	}
	s.pass = nil
	for _, g := range s.groups {
		if g.gather == nil {
			continue
		}
		if err := g.gather.Wait(ctx); err != nil {
			return s.broken(fmt.Errorf("pass %d has no Backward: waiting for group %s: %w", p.number, g.name, err))
		}
		g.gather = nil
	}
	s.drop(p)
	return s.endStep()
}

// endStep lets go of memory that steps have stopped using.
func (s *Sharded) endStep() error {
	if err := s.arena.EndStep(); err != nil {
		return s.broken(err)
	}
	return nil
}

// drop frees all buffers of p that are live.
func (s *Sharded) drop(p *pass) {
	for i, b := range p.blocks {
		s.arena.Free(b)
		p.blocks[i] = nil
	}
}

// run executes steps from to to of the plan. An error in the middle of a pass leaves the other ranks waiting for this one:
// it fails the group, so that they return it too, and the model with it.
func (s *Sharded) run(ctx context.Context, p *pass, from, to int) error {
	for i := from; i < to; i++ {
		step := &p.plan.Steps[i]
		err := context.Cause(ctx)
		if err == nil {
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
	return s.broken(fmt.Errorf("pass %d: %s: %w", p.number, p.plan.Program.Text(step.Op), err))
}

// broken keeps err as the reason why the model cannot be used further, fails the group with it and returns it for the user.
func (s *Sharded) broken(err error) error {
	s.err = err
	s.cfg.Group.Abort(err)
	return fmt.Errorf("fsdp: rank %d: %w", s.cfg.Group.Rank(), err)
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
		if p.blocks[id], err = s.arena.Alloc(b.Bytes, b.Kind.Class()); err != nil {
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
	case program.Gather:
		g := s.groups[step.Group]
		full := p.blocks[p.params[step.Group]].Data
		g.gather = s.cfg.Group.AllGather(g.buffer(full), g.buffer(g.value.Data))
	case program.Wait:
		g := s.groups[step.Group]
		if err := g.gather.Wait(ctx); err != nil {
			return err
		}
		g.gather = nil
	case program.Reduce:
		g := s.groups[step.Group]
		full := p.blocks[p.grads[step.Group]].Data
		g.reduce = s.cfg.Group.ReduceScatter(g.buffer(g.own(full)), g.buffer(full), comm.Avg)
	case program.Drain:
		g := s.groups[step.Group]
		if err := g.reduce.Wait(ctx); err != nil {
			return err
		}
		g.reduce = nil
		g.addGrad(p.blocks[p.grads[step.Group]].Data)
	case program.Forward, program.Backward:
		return s.compute(p, step)
	case program.Turn:
		p.seedGradient()
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
	for j, id := range b.in {
		if id < 0 {
			call.In[j] = p.batch[^id].Bytes
		} else {
			call.In[j] = p.data(id)
		}
	}
	for j, param := range s.model.Calls[step.Call].Params {
		at := s.home[param]
		g := s.groups[at.group]
		call.Param[j] = g.param(p.data(p.params[at.group]), at.index)
		if step.Kind == program.Backward {
			call.GradParam[j] = g.param(p.data(p.grads[at.group]), at.index)
		}
	}
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
	return s.runner.Forward(b.unit, call)
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
	if p.seed < 0 {
		return
	}
	if b := p.blocks[p.seed].Data; len(b) == 8 {
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
