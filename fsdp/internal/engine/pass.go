package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/program"
)

// A Pass is a pass under way.
type Pass struct {
	*Compiled
	Batch  []exec.Value
	Number int
	Key    int       // of its random numbers, the same in forward and backward
	Turn   Turn      // its place in a step
	Scale  float64   // gradient of the loss
	Loss   float64   // of this rank
	Shares []float64 // by word of Layout.Votes: additional factors for gradients; nil is 1
	Search bool      // an evaluation looks for the Origin of its loss after each call, before it frees the results

	e     *Engine
	frame Frame
	first struct { // call whose result is not finite, of a Search
		text string
		call int
	}
}

// A Step is the operation that has just been done.
type Step struct {
	Pass   int
	Op     program.Op
	Model  *program.Model
	Begin  time.Time
	Live   int // bytes of counted memory, including memory about to be freed
	Absent bool
	Eval   bool
	Last   bool // of the pass
	Second int  // see program.Step

	pass *Pass
}

// Results calls f with each result of the call that was run, in its stored form: outputs of a
// forward, and for a backward the gradients of its inputs, summed so far. The bytes are in
// *scratch, valid until the next call of f.
func (s *Step) Results(scratch *[]byte, f func(i int, b []byte)) error {
	if s.Absent || s.Op.Call < 0 {
		return nil
	}
	p := s.pass
	ids := p.Calls[s.Op.Call].Out
	if s.Op.Kind == program.Backward {
		ids = p.Calls[s.Op.Call].GradIn
	}
	for i, id := range ids {
		if id < 0 {
			continue
		}
		n := p.Plan.Buffers[id].Bytes
		*scratch = slices.Grow((*scratch)[:0], n)[:n]
		if err := p.frame.Result(id, *scratch); err != nil {
			return err
		}
		f(i, *scratch)
	}
	return nil
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
	p := &Pass{Compiled: c, Batch: batch, Number: e.passes, e: e, frame: e.dev.Open(c, e.passes, e.shards, batch)}
	if !c.Eval {
		p.Turn, _ = e.Turn(c.NoSync) // checked before
		e.whole = p.Turn.Whole
	}
	return p
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

// Origin returns where the NaN or infinity of a loss began, and the index of the call, or -1: in
// the batch, or in the first call with such a result. It reads the batch and the results that
// backward needs, so a training whose losses are finite pays nothing for it. An evaluation has
// freed its results, and returns the call that a Search has found.
func (p *Pass) Origin() (text string, call int) {
	for i, v := range p.Batch[:min(len(p.Batch), p.Path.Inputs)] {
		if n, text := special(v.Bytes, v.DType, false, v.Shape); n > 0 {
			return fmt.Sprintf("%s has %s", p.Path.Input(i), text), -1
		}
	}
	if p.Compiled.Eval && p.first.text != "" {
		return p.first.text, p.first.call
	} else if p.Compiled.Eval {
		return "", -1
	}
	live := make([]bool, len(p.Plan.Buffers))
	for i := range p.Plan.Steps[:p.Plan.Turn] {
		for _, id := range p.Plan.Steps[i].Alloc {
			live[id] = true
		}
		for _, id := range p.Plan.Steps[i].Free {
			live[id] = false
		}
	}
	for i := range p.Calls {
		text, err := p.specialResult(i, func(id int) bool { return live[id] })
		if err != nil { // a device that has failed returns the error again
			break
		}
		if text != "" {
			return text, i
		}
	}
	return "", -1
}

// specialResult describes the first result of a call that is not finite, among those that are live.
func (p *Pass) specialResult(call int, live func(id int) bool) (string, error) {
	u := p.Calls[call].Unit
	if u == nil {
		return "", nil
	}
	for out, id := range p.Calls[call].Out {
		if id < 0 || !live(id) {
			continue
		}
		b := make([]byte, p.Plan.Buffers[id].Bytes)
		if err := p.frame.Result(id, b); err != nil {
			return "", err
		}
		size := int(u.DType.Size())
		if u.OutHalf[out] {
			size = 2
		}
		if n, text := special(b[:size*exec.Numel(u.OutShape[out])], u.DType, u.OutHalf[out], u.OutShape[out]); n > 0 {
			return fmt.Sprintf("the first call with a result that is not finite is %s: it has %s", p.Model.Calls[call].Name, text), nil
		}
	}
	return "", nil
}

// special counts the elements of a tensor that are NaN or infinite, and describes the first one and
// its row.
func special(b []byte, t tensor.Dtype, bfloat16 bool, shape []int) (n int, text string) {
	size := 4
	switch {
	case bfloat16:
		size = 2
	case t == tensor.Float64:
		size = 8
	case t != tensor.Float32:
		return 0, ""
	}
	for i := range len(b) / size {
		var x float64
		switch e := b[i*size:]; size {
		case 2:
			x = float64(math.Float32frombits(uint32(binary.NativeEndian.Uint16(e)) << 16))
		case 4:
			x = float64(math.Float32frombits(binary.NativeEndian.Uint32(e)))
		default:
			x = math.Float64frombits(binary.NativeEndian.Uint64(e))
		}
		if x-x == 0 {
			continue
		}
		if n++; n == 1 {
			text = fmt.Sprintf("the first is %v, element %d", x, i)
			if len(shape) > 0 {
				text += fmt.Sprintf(", in row %d of %d", i/exec.Numel(shape[1:]), shape[0])
			}
		}
	}
	return n, fmt.Sprintf("%d of %d values that are NaN or infinite, %s", n, len(b)/size, text)
}

// Backward runs the other half. Switch may have changed its schedule since the forward. had has, by
// the words of Layout.Votes, whether any rank has run a call.
func (p *Pass) Backward(ctx context.Context, had []int64) error {
	e := p.e
	e.dev.Begin(arena.Training)
	if err := p.turn(); err != nil {
		return e.team.Fail(err)
	}
	p.frame.Inherit()
	if err := p.share(p.Plan.Inherited, true); err != nil {
		return p.fail(p.Plan.Steps[p.Plan.Turn].Op, err)
	}
	if err := p.run(ctx, p.Plan.Turn, len(p.Plan.Steps)); err != nil {
		return err
	}
	if err := p.share(p.Plan.Left, false); err != nil {
		return p.fail(p.Plan.Steps[len(p.Plan.Steps)-1].Op, err)
	}
	p.frame.Bequeath()
	if e.pending++; !p.NoSync && e.pending >= e.o.Passes {
		e.pending = 0
	}
	e.met = !p.Turn.Last() && (e.met || p.Needs != e.nothing)
	for i, has := range p.Grad {
		if word := e.layout.Votes.Of[i]; word >= 0 {
			has = has && had[word] != 0
		}
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

// Eval runs an evaluation, and copies each of its results that is present to the memory that room
// returns. It ends the pass.
func (p *Pass) Eval(ctx context.Context, room func(result int, shape []int) []byte) error {
	if err := p.run(ctx, 0, len(p.Plan.Steps)); err != nil {
		return err
	}
	for i, r := range p.Model.Results {
		if p.Absent || r.Call == program.None {
			continue
		}
		to := room(i, p.Calls[r.Call].Unit.OutShape[r.Out])
		if err := p.frame.Result(p.Plan.Lookup(program.CallOut, r.Call, r.Out), to); err != nil {
			return p.fail(p.Plan.Steps[len(p.Plan.Steps)-1].Op, err)
		}
	}
	p.frame.Free()
	return p.e.endStep()
}

// Discard ends a forward that gets no backward. Gathers for the backward may be in flight: their
// buffers are the group's until they are waited for. If the model has failed already, Settle waits
// for them.
func (p *Pass) Discard(ctx context.Context, failed bool) error {
	e := p.e
	if failed {
		e.failed = append(e.failed, p)
		return nil
	}
	if g, err := p.frame.Await(ctx); err != nil {
		e.failed = append(e.failed, p)
		return e.team.Fail(fmt.Errorf("discarding pass %d: waiting for group %s: %w", p.Number, e.layout.Groups[g].Name, err))
	}
	p.frame.Free()
	return e.endStep()
}

// Has returns the words of Layout.Votes for the gradients that p writes.
func (p *Pass) Has() []int { return p.votes }

// Tally returns numbers whose sums over the ranks give, by word of Layout.Votes, the weights of the
// ranks that have it, and then the weights of the ranks that might have it.
func (p *Pass) Tally(weight float64) []float64 {
	v := &p.e.layout.Votes
	sums := make([]float64, 2*v.Words)
	for _, word := range p.votes {
		sums[word] = weight
	}
	for _, word := range v.Of {
		if word >= 0 {
			sums[v.Words+word] = weight
		}
	}
	return sums
}

// share multiplies gradients in buffers of the plan by their Shares. Earlier gradients to which the
// pass adds are divided by Shares before, so that they do not change.
func (p *Pass) share(buffers []int, before bool) error {
	if p.Shares == nil {
		return nil
	}
	for _, id := range buffers {
		if err := p.shareGroup(p.Plan.Buffers[id].Index, before); err != nil {
			return err
		}
	}
	return nil
}

// shareGroup is share for one group.
func (p *Pass) shareGroup(group int, before bool) error {
	if p.Shares == nil {
		return nil
	}
	for _, param := range p.e.layout.Groups[group].Params {
		word := p.e.layout.Votes.Of[param]
		if word < 0 || !p.Wrote[param] || p.Shares[word] == 1 {
			continue
		}
		c := p.Shares[word]
		if before {
			c = 1 / c
		}
		if err := p.frame.ScaleGrad(param, c); err != nil {
			return err
		}
	}
	return nil
}

// endStep frees memory that steps have stopped using.
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

// fail ends the pass, and the use of the model. Operations may fail after the device has accepted
// them, including operations of an earlier pass: then err names the operation.
func (p *Pass) fail(op program.Op, err error) error {
	if late := (*OpError)(nil); !errors.As(err, &late) {
		err = &OpError{Place{p.Number, p.Plan.Program, op}, err}
	}
	p.e.failed = append(p.e.failed, p)
	return p.e.team.Fail(err)
}

// execute runs a step. A kernel panics on data that no forward would have accepted, such as a batch
// that was modified before its backward, and Options.Trace is the user's code: a panic fails the
// pass like any other error.
func (p *Pass) execute(ctx context.Context, i int, step *program.Step) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	if err := p.frame.Enter(i); err != nil {
		return err
	}
	if p.e.o.Trace == nil && !p.Search {
		return p.operate(ctx, step)
	}
	begin := time.Now()
	if err := p.operate(ctx, step); err != nil {
		return err
	}
	if err := p.frame.Follow(); err != nil {
		return err
	}
	if p.Search && step.Kind == program.Forward && p.Computes(step.Op) && p.first.text == "" {
		text, err := p.specialResult(step.Call, func(int) bool { return true })
		if err != nil {
			return err
		}
		p.first.text, p.first.call = text, step.Call
	}
	if p.e.o.Trace == nil {
		return nil
	}
	live := p.e.dev.Stats().Total
	p.e.o.Trace(&Step{
		Pass: p.Number, Op: step.Op, Model: p.Model, Begin: begin, Live: live, Eval: p.Compiled.Eval,
		Absent: p.Absent || step.Call >= 0 && !p.Computes(step.Op), Last: i == len(p.Plan.Steps)-1, Second: step.Second, pass: p,
	})
	return nil
}

// operate issues the operation of a step.
func (p *Pass) operate(ctx context.Context, step *program.Step) error {
	e, f := p.e, p.frame
	switch step.Kind {
	case program.Forward:
		if !p.Computes(step.Op) {
			return nil
		}
		return f.Forward(step, p.callSeed(step.Call))
	case program.Backward:
		if !p.Computes(step.Op) {
			return nil
		}
		return f.Backward(step, p.callSeed(step.Call))
	case program.Turn:
		return f.Seed(p.Scale)
	case program.Gather:
		return f.Gather(step.Group)
	case program.Wait:
		return f.Wait(ctx, step.Group)
	case program.Reduce:
		if err := p.shareGroup(step.Group, false); err != nil {
			return err
		}
		return f.Reduce(step.Group, e.o.Before(&e.layout.Groups[step.Group]))
	case program.Sync:
		return f.Sync(ctx, step.Group)
	case program.Drain:
		return f.Drain(ctx, step.Group, e.factor()/float64(e.o.Before(&e.layout.Groups[step.Group])))
	}
	return nil
}

// callSeed returns the seed of the random numbers of a call. It differs for each rank, or virtual
// rank, training pass and call. Other passes do not count, so that an evaluation between two steps
// does not change the training. The finaliser is the one of SplitMix64 (Steele, Lea and Flood,
// 2014).
func (p *Pass) callSeed(call int) uint64 {
	x, rank := p.e.o.Seed, p.e.team.Rank()
	if p.Turn.Of > 0 {
		rank = p.Turn.VirtualRank(rank, p.e.team.Size())
	}
	for _, v := range [...]int{rank, p.Key, call} {
		x = (x ^ uint64(v)) + 0x9E3779B97F4A7C15
		x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
		x = (x ^ x>>27) * 0x94D049BB133111EB
		x ^= x >> 31
	}
	return x
}
