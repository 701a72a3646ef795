package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// pass is a pass under way: the buffers that are live and how far the plan has run.
type pass struct {
	*compiled
	batch  []exec.Value
	blocks []*arena.Block // by buffer of the plan
	gather []comm.Work    // by group: in flight, or nil
	reduce []comm.Work    // by group: in flight, or nil
	number int
	key    int     // of its random numbers, the same in forward and backward
	scale  float64 // gradient of the loss
	weight float64 // of this rank among the others
	loss   float64 // of this rank
	dummy  bool    // the batch is none of this rank's own: backward adds nothing
}

// Forward runs the forward pass on this rank's batch and returns this rank's loss. The batch must not be modified until
// Backward has returned. A forward whose Backward never comes is discarded by the next pass, unless Hold has put it aside.
//
// Batches may differ in shape from rank to rank and from step to step.
func (s *Sharded) Forward(ctx context.Context, batch ...Tensor) (loss float64, err error) {
	p, err := s.start(ctx, ranks.Ask{Call: "Forward"}, s.training(), batch)
	if err != nil {
		return 0, err
	}
	p.key, p.dummy = s.forwards, s.dummy
	s.forwards++
	if err := s.run(ctx, p, 0, p.plan.Turn); err != nil {
		return 0, err
	}
	if !p.shadow {
		p.loss = p.number64(p.lossAt)
	}
	s.pass = p
	return p.loss, nil
}

// A BackwardOption changes one Backward.
type BackwardOption func(*pass)

// Scale multiplies the loss by c before it is differentiated. With k forwards and backwards per step, Scale(1/k) averages
// their gradients. A loss scale against underflow goes here too, see [Sharded.Unscale]. A second Scale multiplies the first.
func Scale(c float64) BackwardOption { return func(p *pass) { p.scale *= c } }

// Weight gives this rank's batch a weight under Config.Divide = ByWeights, such as its number of tokens. It may be zero, but
// not on all ranks. For the mean over all tokens of several Backwards use ByOne, and Scale(n/N) with the tokens n of this
// rank's batch and N of the step on all ranks. A pass without a batch, see [Sharded.Join], has no weight, whatever is given.
func Weight(w float64) BackwardOption { return func(p *pass) { p.weight = w } }

// Backward runs the backward pass of the last Forward. It leaves the mean over the ranks of the gradients (see
// Config.Divide), added to what was there, in the shards that each rank owns. It fails on every rank if the loss of any is
// not finite, and then changes no gradient. After an error the Forward is gone: the next call is another Forward. Where
// all parameters are frozen there is nothing to do, which is no error.
func (s *Sharded) Backward(ctx context.Context, opts ...BackwardOption) error {
	p := s.pass
	s.pass = nil
	return s.backward(ctx, p, opts)
}

// backward runs the backward pass of p, which is nil if there was no forward.
func (s *Sharded) backward(ctx context.Context, p *pass, opts []BackwardOption) error {
	q := ranks.Ask{Call: "Backward", NoSync: s.noSync}
	err := s.usable()
	if err == nil {
		err = s.prepareBackward(p, opts)
	}
	if p != nil {
		q.Argument, q.Schedule, q.Value = float64(p.number), p.hash, p.weight
	}
	if err == nil && s.cfg.Divide != ByWeights && p.weight != 1 && !p.shadow {
		err = fmt.Errorf("Weight is for Config.Divide = ByWeights, which is %v", s.cfg.Divide)
	}
	if err = s.agree(ctx, q, err); err == nil {
		err = s.weigh(ctx, p)
	}
	if err != nil {
		return errors.Join(err, s.discard(ctx, p))
	}
	s.arena.Begin(arena.Training)
	s.pending.take(p)
	if err := s.run(ctx, p, p.plan.Turn, len(p.plan.Steps)); err != nil {
		return err
	}
	s.pending.put(p)
	for i, has := range p.grad {
		s.present[i] = s.present[i] || has
	}
	return s.endStep()
}

// prepareBackward applies the options to p, says why its backward cannot run, and finds the schedule for it: what becomes
// of the gradients may have been decided after the forward.
func (s *Sharded) prepareBackward(p *pass, opts []BackwardOption) error {
	if p == nil {
		return errors.New("Backward without a Forward before it, or its Backward has run, or another pass has discarded it, see Hold")
	}
	if p.scale, p.weight = 1, 1; p.shadow || p.dummy {
		p.weight = 0
		c, err := s.shadow(s.training(), p.facts) // those of its forward, which ranks have agreed on
		if err == nil {
			s.switchTo(p, c)
		}
		return err
	}
	if s.cfg.Divide == ByWeights {
		p.weight = math.NaN()
	}
	for _, o := range opts {
		if o != nil {
			o(p)
		}
	}
	switch {
	case !s.cfg.Precision.finite(p.scale):
		return fmt.Errorf("Scale is %v", p.scale)
	case s.cfg.Divide == ByWeights && math.IsNaN(p.weight):
		return errors.New("Config.Divide is ByWeights: give Backward a Weight")
	case !(p.weight >= 0) || math.IsInf(p.weight, 0):
		return fmt.Errorf("Weight is %v", p.weight)
	case math.IsNaN(p.loss) || math.IsInf(p.loss, 0):
		return fmt.Errorf("the loss of pass %d is %v", p.number, p.loss)
	}
	c, err := s.compiledFor(s.training(), p.batch)
	if err != nil {
		return err
	}
	s.switchTo(p, c)
	return nil
}

// training returns the variant of a training pass that begins now.
func (s *Sharded) training() variant { return variant{noSync: s.noSync, pending: s.pending.any()} }

// switchTo makes p a pass by another schedule of the same calls, whose forwards are the same. What that has no use for, because
// it does not compute, is freed.
func (s *Sharded) switchTo(p *pass, c *compiled) {
	if c == p.compiled {
		return
	}
	blocks := make([]*arena.Block, len(c.plan.Buffers))
	for id, b := range p.plan.Buffers {
		if to := c.plan.Lookup(b.Kind, b.Index, b.Out); to >= 0 {
			blocks[to] = p.blocks[id]
		} else {
			s.arena.Free(p.blocks[id])
		}
	}
	p.compiled, p.blocks = c, blocks
}

// Eval runs the forward pass in evaluation mode, without dropout, and returns the results of the model. They belong to the
// caller; a result that is one number comes as a tensor of shape (1). The batch is that of Forward, targets included: where
// only predictions are wanted, any valid targets will do, such as nn.IgnoreTarget.
func (s *Sharded) Eval(ctx context.Context, batch ...Tensor) ([]Tensor, error) {
	return s.eval(ctx, "", batch)
}

// EvalProgram is Eval of another program of the model, of that name: a model that also has the method
// Programs() map[string]Program has other ways through it than Forward, such as the encoder alone, or one step of a decoder.
// The batch is what the program takes.
func (s *Sharded) EvalProgram(ctx context.Context, name string, batch ...Tensor) ([]Tensor, error) {
	return s.eval(ctx, name, batch)
}

func (s *Sharded) eval(ctx context.Context, entry string, batch []Tensor) ([]Tensor, error) {
	q := ranks.Ask{Call: "Eval"}
	if entry != "" {
		q.Detail = " of program " + entry
	}
	p, err := s.start(ctx, q, variant{entry: entry, eval: true}, batch)
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, p, 0, len(p.plan.Steps)); err != nil {
		return nil, err
	}
	results := make([]Tensor, 0, len(p.path.Results))
	for _, r := range p.path.Results {
		if p.shadow {
			break
		}
		v := exec.Value{Shape: p.calls[r.Call].unit.OutShape[r.Out], DType: s.cfg.Precision.Compute.tensor()}
		v.Bytes = p.data(p.plan.Lookup(program.CallOut, r.Call, r.Out))
		results = append(results, v.Tensor().Clone().(*tensor.Dense))
	}
	s.drop(p)
	if err := s.endStep(); err != nil {
		return nil, err
	}
	return results, nil
}

// start checks the batch, finds the compiled pass and agrees with the other ranks to run it. Only then does it touch any
// buffer: the memory of a group that was closed may be gone.
func (s *Sharded) start(ctx context.Context, q ranks.Ask, v variant, batch []Tensor) (*pass, error) {
	q.NoSync = v.noSync
	c, values, err := s.prepareForward(v, batch)
	if err == nil {
		q.Schedule, q.Absent = c.hash, c.shadow
	}
	ans, err := s.ask(ctx, &q, err)
	if err == nil {
		c, err = s.teach(ctx, c, &ans)
	}
	if err != nil {
		return nil, errors.Join(err, s.discardLast(ctx))
	}
	if err := s.discardLast(ctx); err != nil {
		return nil, err
	}
	phase := arena.Training
	if v.eval {
		phase = arena.Evaluation
	}
	s.arena.Begin(phase)
	s.passes++
	return &pass{
		compiled: c, batch: values, blocks: make([]*arena.Block, len(c.plan.Buffers)), number: s.passes,
		gather: make([]comm.Work, len(s.groups)), reduce: make([]comm.Work, len(s.groups)),
	}, nil
}

// prepareForward does what a pass needs before the ranks agree on it.
func (s *Sharded) prepareForward(v variant, batch []Tensor) (*compiled, []exec.Value, error) {
	if err := s.usable(); err != nil {
		return nil, nil, err
	}
	if s.model.Paths[v.entry] == nil {
		return nil, nil, fmt.Errorf("the model has no program %q", v.entry)
	}
	if s.joined && len(batch) == 0 {
		c, err := s.shadow(v, s.facts)
		return c, nil, err
	}
	values, err := s.batchValues(s.model.Paths[v.entry], batch)
	if err != nil {
		return nil, nil, err
	}
	c, err := s.compiledFor(v, values)
	if err != nil {
		return nil, nil, err
	}
	return c, values, s.checkIntegers(c, values)
}

// batchValues checks the number and kind of the batch's tensors.
func (s *Sharded) batchValues(p *layout.Path, batch []Tensor) ([]exec.Value, error) {
	if len(batch) != p.Inputs {
		return nil, fmt.Errorf("the batch has %d tensors, the model takes %d", len(batch), p.Inputs)
	}
	values := make([]exec.Value, len(batch))
	for i, t := range batch {
		v, err := exec.FromTensor(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Input(i), err)
		}
		if want := s.cfg.Precision.Compute.tensor(); v.DType != tensor.Int && v.DType != want {
			return nil, fmt.Errorf("%s is %v: the model computes in %v", p.Input(i), v.DType, want)
		}
		values[i] = v
	}
	return values, nil
}

// checkIntegers finds the tokens and targets that are out of range while the batch can still be refused: in the middle of a
// pass they would cost the model.
func (s *Sharded) checkIntegers(c *compiled, batch []exec.Value) error {
	for i, call := range c.model.Calls {
		for j, r := range call.In {
			if c.calls[i].unit == nil || r.Call != program.Batch || batch[r.Out].DType != tensor.Int {
				continue
			}
			if err := c.calls[i].unit.Check(j, exec.Data[int](batch[r.Out].Bytes)); err != nil {
				return fmt.Errorf("%s: call %s: %w", c.path.Input(r.Out), call.Name, err)
			}
		}
	}
	return nil
}

// discardLast discards the last forward, unless it was put aside.
func (s *Sharded) discardLast(ctx context.Context) error {
	p := s.pass
	s.pass = nil
	return s.discard(ctx, p)
}

// discard ends a forward that gets no backward. Gathers for the backward may be in flight: their buffers are the group's
// until they are waited for.
func (s *Sharded) discard(ctx context.Context, p *pass) error {
	if p == nil {
		return nil
	}
	if s.err != nil { // after a failure the buffers stay where they are, until Close has waited
		s.ended = append(s.ended, p)
		return nil
	}
	for g, w := range p.gather {
		if w == nil {
			continue
		}
		if err := w.Wait(ctx); err != nil {
			s.ended = append(s.ended, p)
			return s.broken(fmt.Errorf("pass %d has no Backward: waiting for group %s: %w", p.number, s.groups[g].Name, err))
		}
		p.gather[g] = nil
	}
	s.drop(p)
	return s.endStep()
}

// settle waits for what is in flight, which is over when it has failed, too: then the memory is this rank's again.
func (p *pass) settle() {
	for _, works := range [][]comm.Work{p.gather, p.reduce} {
		for i, w := range works {
			if w != nil {
				_ = w.Wait(context.Background())
			}
			works[i] = nil
		}
	}
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
