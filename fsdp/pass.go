package fsdp

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"time"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/shard"
)

// pass is a training pass under way.
type pass struct {
	*engine.Pass
	weight   float64  // of this rank among the others
	dummy    bool     // the batch is not this rank's: backward adds nothing
	declined bool     // in JoinCalls: this rank needs no backward of it, and adds nothing to the backward of other ranks
	sums     sums     // of the data that its backward reads again
	tensors  []Tensor // the batch, as Forward got it; nil without one
	share    *share   // of its step, if Backward has that option
	scaled   bool     // Backward has the option Scale
}

// Forward runs the forward pass on this rank's batch and returns this rank's loss. The batch must
// not be modified until Backward has returned: Backward refuses a batch that has changed, unless a
// GPU holds a copy of it. With Config.Poison it also refuses parameters that have changed. The next
// pass discards a forward whose Backward never comes, unless Hold has put it aside.
//
// Batches may differ in shape from rank to rank and from step to step. With Config.VirtualRanks
// some ranks may have none. If a data.Loader divides the samples among the ranks, and ranks give it
// different sources, the first Forward is an error.
func (s *Sharded) Forward(ctx context.Context, batch ...Tensor) (loss float64, err error) {
	if err := s.busy.enter("Forward"); err != nil {
		return 0, err
	}
	defer s.busy.leave()
	p, err := s.start(ctx, ranks.Ask{Call: "Forward"}, s.engine.Training(s.noSync), batch)
	if err != nil || p == nil {
		return 0, err
	}
	if p.Turn.At == 0 { // a step counts once, wherever it is given up
		s.forwards++
	}
	p.Key = s.forwards - 1
	s.life.watch.forward(&s.session)
	s.life.watch.batch(&s.session, p, batch)
	sums, err := s.sumsOf(p)
	if err != nil {
		return 0, s.end(err)
	}
	if err := s.end(p.Forward(ctx)); err != nil {
		return 0, err
	}
	s.life.last = &pass{Pass: p, dummy: s.turn.dummy, sums: sums, tensors: batch}
	return p.Loss, nil
}

// Backward runs the backward pass of the last Forward. It adds the mean of the gradients over the
// ranks (see [Share] and Config.GradAverage) to the gradients in the shards that each rank owns. If
// the loss of any rank is not finite, it fails on every rank and changes no gradient. The error
// names the batch, or the first call and parameter, in which the NaN or infinity began. After an
// error the Forward is discarded: the next call is another Forward. If all parameters are frozen it
// does nothing, without an error.
func (s *Sharded) Backward(ctx context.Context, opts ...BackwardOption) error {
	if err := s.busy.enter("Backward"); err != nil {
		return err
	}
	defer s.busy.leave()
	if s.idle(nil) && (s.life.last == nil || s.life.last.Absent) {
		return nil
	}
	return s.life.takeLast().backward(ctx, &s.session, opts)
}

// backward runs the backward pass of p, which is nil if there was no forward.
func (p *pass) backward(ctx context.Context, s *session, opts []BackwardOption) error {
	q := ranks.Ask{Call: "Backward", Past: &s.life.grads}
	err := s.checkCall("Backward")
	if err == nil {
		err = p.prepare(s, opts)
	}
	if p != nil {
		q.Argument, q.Schedule, q.NoSync, q.Absent, q.Value = float64(p.Number), p.Hash, p.NoSync, p.declined, p.weight
		q.Has = p.Has()
		if p.share != nil {
			q.Detail = " with Share"
			if p.share.source != "" {
				q.Detail += " of [" + p.share.source + "]"
			}
		}
	}
	ans, err := s.ask(ctx, &q, err)
	if err == nil && ans.Leader >= 0 {
		err = p.weigh(ctx, s)
	}
	if err != nil || ans.Leader < 0 {
		return errors.Join(err, s.discard(ctx, p))
	}
	s.life.backward(s, p)
	return s.end(p.Pass.Backward(ctx, ans.Had))
}

// prepare applies the options to p, and finds the schedule of its backward: the treatment of the
// gradients may have been decided after the forward. It returns an error if the backward cannot
// run.
func (p *pass) prepare(s *session, opts []BackwardOption) (err error) {
	calls := s.life.calls != nil
	switch {
	case p == nil, calls && p.Absent && !p.declined:
		return errors.New("Backward has no pending Forward: none was called, its Backward has already run, or another pass, such as an Eval, has discarded it. Call Forward first; Hold keeps several passes")
	case calls && !p.declined && p.NoSync != s.noSync:
		return errors.New("inside JoinCalls, run a Forward and its Backward both inside NoSync or both outside: other ranks may be replaying the Forward")
	}
	if err := p.MayTurn(s.noSync); err != nil {
		return err
	}
	v := s.engine.Training(s.noSync)
	if calls {
		v = s.engine.Training(p.NoSync)
	}
	var c *engine.Compiled
	p.Scale, p.weight, p.share, p.scaled = 1, 1, nil, false
	if s.cfg.GradAverage == ByWeights {
		p.weight = math.NaN()
	}
	for _, o := range opts {
		if o != nil {
			o(p)
		}
	}
	if p.share != nil {
		if err := p.measure(s); err != nil {
			return err
		}
	}
	if p.Absent || p.dummy || p.declined {
		p.Scale, p.weight = 1, 0
		c, err = s.engine.Absent(v, p.Needs) // the parameters of its forward, on which ranks have agreed
	} else if err = errors.Join(p.check(s), p.changed(s)); err == nil {
		c, err = s.engine.Compiled(v, p.Batch)
	}
	if err == nil {
		p.Switch(c)
	}
	return err
}

// sums are checksums of the data that a forward has read and its backward reads again.
type sums struct {
	batch  []uint32 // by batch tensor; nil if the device has copied them
	params []uint32 // with Config.Poison, by segment of the groups of parameters
}

// sumsOf returns the checksums for p.
func (s *session) sumsOf(p *engine.Pass) (sums, error) {
	var all sums
	if !s.engine.Device().Copies() {
		for _, v := range p.Batch {
			all.batch = append(all.batch, crc32.ChecksumIEEE(v.Bytes))
		}
	}
	if !s.cfg.Poison {
		return all, nil
	}
	err := s.eachSegment(func(_ shard.Interval, sum uint32) { all.params = append(all.params, sum) })
	return all, err
}

// changed returns an error that names a tensor of p's batch, or a parameter, that has changed since
// its forward.
func (p *pass) changed(s *session) error {
	for i, sum := range p.sums.batch {
		if sum != crc32.ChecksumIEEE(p.Batch[i].Bytes) {
			return fmt.Errorf("%s has changed since the Forward of pass %d, but Backward reads it again: "+
				"do not change the batch before Backward returns, or give Forward a copy", p.Path.Input(i), p.Number)
		}
	}
	if p.sums.params == nil {
		return nil
	}
	at, where := 0, ""
	err := s.eachSegment(func(iv shard.Interval, sum uint32) {
		if at++; where == "" && sum != p.sums.params[at-1] {
			where = iv.String()
		}
	})
	if err == nil && where != "" {
		err = fmt.Errorf("parameter %s has changed since the Forward of pass %d, but Backward reads it again: "+
			"change parameters before Forward or after Backward", where, p.Number)
	}
	return err
}

// eachSegment calls f with this rank's segments of all parameters, buffers aside, and their
// checksums.
func (s *session) eachSegment(f func(iv shard.Interval, sum uint32)) error {
	for i := range s.layout.Groups {
		g := &s.layout.Groups[i]
		if g.Kind.Buffer { // which a forward changes
			continue
		}
		for _, seg := range g.Segments() {
			v := state.NewHost(s.cfg.Precision.wide().comm(), seg.Len)
			if err := s.engine.Shards().Value(i).Slice(seg.At, seg.At+seg.Len).Read(v); err != nil {
				return fmt.Errorf("parameter %s: %w", seg.Interval, err)
			}
			f(seg.Interval, crc32.ChecksumIEEE(state.BytesOf(v)))
		}
	}
	return nil
}

// check returns an error for an invalid loss, scale or weight. The options have set scale and
// weight.
func (p *pass) check(s *session) error {
	cfg := &s.cfg
	switch {
	case !cfg.Precision.finite(p.Scale):
		return fmt.Errorf("Scale is %v: want a finite number", p.Scale)
	case cfg.GradAverage == ByWeights && math.IsNaN(p.weight):
		return errors.New("Config.GradAverage is ByWeights: give Backward a Weight")
	case !(p.weight >= 0) || math.IsInf(p.weight, 0):
		return fmt.Errorf("Weight is %v: must be finite and not negative", p.weight)
	case math.IsNaN(p.Loss) || math.IsInf(p.Loss, 0):
		return fmt.Errorf("the loss of pass %d is %v%s", p.Number, p.Loss, s.origin(p.Pass))
	case cfg.GradAverage != ByWeights && p.weight != 1:
		return fmt.Errorf("Weight needs Config.GradAverage = ByWeights, but it is %v: leave out Weight, or change GradAverage", cfg.GradAverage)
	}
	return nil
}

// A Pass is a forward pass whose Backward is to come, put aside by Hold.
type Pass struct {
	s    *session
	p    *pass // nil when it is over
	loss float64
}

// Hold puts the last Forward aside, so that others may run before its Backward: for losses that
// compare passes, or gradients in another order. It keeps its activations, and the parameters that
// were gathered for its Backward. Parameters must not change in between. Without a Forward, or with
// Config.VirtualRanks, the Backward of the Pass returns an error.
func (s *Sharded) Hold() *Pass {
	p := &Pass{s: &s.session}
	if !s.busy.enterOrNote("Hold") {
		return p
	}
	defer s.busy.leave()
	if s.life.calls == nil && s.life.passes == 0 {
		p.p = s.life.takeLast()
	}
	if p.p != nil {
		p.loss = p.p.Loss
		s.life.held[p] = true
	}
	return p
}

// Loss returns this rank's loss.
func (p *Pass) Loss() float64 { return p.loss }

// Backward is [Sharded.Backward] of the pass. Afterwards the pass is over, with or without an
// error.
func (p *Pass) Backward(ctx context.Context, opts ...BackwardOption) error {
	if err := p.s.busy.enter("Backward"); err != nil {
		return err
	}
	defer p.s.busy.leave()
	if p.s.life.calls != nil {
		return fmt.Errorf("fsdp: rank %d: Backward of a Pass: %w", p.s.team.Rank(), errCalls)
	}
	if p.s.life.passes > 0 {
		return fmt.Errorf("fsdp: rank %d: Backward of a Pass: %w", p.s.team.Rank(), errVirtual)
	}
	q := p.p
	p.p = nil
	delete(p.s.life.held, p)
	return q.backward(ctx, p.s, opts)
}

// Discard ends the pass without a Backward. It is no collective.
func (p *Pass) Discard(ctx context.Context) error {
	if err := p.s.busy.enter("Discard of a Pass"); err != nil {
		return err
	}
	defer p.s.busy.leave()
	q := p.p
	p.p = nil
	delete(p.s.life.held, p)
	return p.s.discard(ctx, q)
}

// Eval runs the forward pass in evaluation mode, without dropout, and returns the results of the
// model. They belong to the caller. A result that is one number is a tensor of shape (1), and an
// absent result is nil, see [Tape.Optional]. The batch is the same as for Forward, targets
// included: if only predictions are needed, any valid targets will do, such as nn.IgnoreTarget. A
// loss that is NaN or infinite is returned like any other. The first one is a warning that names
// the batch tensor, or the first call with a bad parameter on this rank, where the NaN began. If it
// began elsewhere, the next Eval with such a loss is a warning that names the first call.
func (s *Sharded) Eval(ctx context.Context, batch ...Tensor) ([]Tensor, error) {
	return s.EvalProgram(ctx, "", batch...)
}

// EvalProgram is Eval of the model's program of this name. A model with the method Programs()
// map[string]Program has other paths than Forward, such as the encoder alone, or one step of a
// decoder. The batch has the program's inputs.
func (s *Sharded) EvalProgram(ctx context.Context, name string, batch ...Tensor) ([]Tensor, error) {
	if err := s.busy.enter("Eval"); err != nil {
		return nil, err
	}
	defer s.busy.leave()
	q := ranks.Ask{Call: "Eval"}
	if name != "" {
		q.Detail = " of program " + name
	}
	p, err := s.start(ctx, q, engine.Variant{Program: name, Eval: true}, batch)
	if err != nil || p == nil {
		return nil, err
	}
	results := make([]Tensor, len(p.Path.Results))
	p.Search = s.life.watch.search && name == ""
	err = p.Eval(ctx, func(i int, shape []int) []byte {
		v := newValue(s.cfg.Precision.wide(), shape)
		results[i] = v.Tensor()
		return v.Bytes
	})
	switch {
	case err != nil:
		return nil, s.end(err)
	case p.Absent:
		return results[:0], nil
	}
	if name == "" {
		s.life.watch.eval(&s.session, p, results)
	}
	return results, nil
}

// start checks the batch, finds the compiled pass and agrees with the other ranks to run it. It
// returns nil for a call that does nothing, see idle.
func (s *session) start(ctx context.Context, q ranks.Ask, v engine.Variant, batch []Tensor) (*engine.Pass, error) {
	if s.idle(batch) {
		return nil, nil
	}
	q.NoSync, q.Past = v.NoSync, &s.life.updates
	v.Pending = v.Pending && s.life.calls == nil // others may change it before the Backward, which decides
	c, values, err := s.prepareForward(q.Call, v, batch)
	if err := s.compareSources(ctx, q, v, batch, err); err != nil {
		return nil, errors.Join(err, s.discard(ctx, s.life.takeLast()))
	}
	if s.life.calls != nil {
		if err := s.takeTurns(ctx, q.Call, c, err); err != nil {
			return nil, err
		}
		return s.begin(c, values), nil
	}
	if err == nil {
		q.Schedule, q.Absent = c.Hash, c.Absent
	}
	ans, err := s.ask(ctx, &q, err)
	if err == nil {
		s.life.updates.clear()
		c, err = s.engine.Agreed(ctx, c, &ans)
		err = s.end(err)
	}
	if err = errors.Join(err, s.discard(ctx, s.life.takeLast())); err != nil {
		return nil, err
	}
	return s.begin(c, values), nil
}

// begin begins a pass that ranks have agreed on.
func (s *session) begin(c *engine.Compiled, batch []exec.Value) *engine.Pass {
	p := s.engine.Start(c, batch)
	s.hashes.Begin(p, s.layout, s.engine.Shards())
	return p
}

// prepareForward does the local work of a pass before the ranks agree on it.
func (s *session) prepareForward(call string, v engine.Variant, batch []Tensor) (*engine.Compiled, []exec.Value, error) {
	if err := s.checkCall(call); err != nil {
		return nil, nil, err
	}
	if !v.Eval && s.life.calls != nil && s.life.passes > 0 {
		return nil, nil, errVirtual
	}
	t, err := s.engine.TurnOf(v, len(batch) > 0 && !s.turn.dummy)
	if err != nil {
		return nil, nil, err
	}
	if s.layout.Model.Paths[v.Program] == nil {
		others := slices.DeleteFunc(slices.Sorted(maps.Keys(s.layout.Model.Paths)), func(p string) bool { return p == "" })
		return nil, nil, fmt.Errorf("the model has no program %q: its programs are %q", v.Program, others)
	}
	if (s.turn.absent || t.Missing) && len(batch) == 0 {
		c, err := s.engine.Absent(v, nil)
		return c, nil, err
	}
	values, err := s.batchValues(v.Program, batch)
	if err != nil {
		return nil, nil, err
	}
	c, err := s.engine.Compiled(v, values)
	if err != nil {
		return nil, nil, err
	}
	return c, values, c.CheckBatch(values)
}

// batchValues checks the number and kind of the tensors of a batch for a program. It returns them,
// and a value for each condition, present if the batch meets it.
func (s *session) batchValues(program string, batch []Tensor) ([]exec.Value, error) {
	p, computed := s.layout.Model.Paths[program], s.cfg.Precision.Compute.tensor()
	if len(batch) != p.Inputs {
		return nil, fmt.Errorf("the batch has %d tensors, the model takes %d: give one tensor for each input of the model's Forward, targets included", len(batch), p.Inputs)
	}
	values := make([]exec.Value, len(batch), len(batch)+p.Conditions)
	for i, t := range batch {
		switch optional := slices.Contains(p.Optional, i); {
		case isNil(t) && optional:
			values[i] = exec.Absent
			continue
		case isNil(t):
			return nil, fmt.Errorf("%s: the tensor is nil, but the model has not declared it as optional by Tape.Optional", p.Input(i))
		}
		v, err := exec.FromBatch(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Input(i), err)
		}
		if v.DType != tensor.Int && v.DType != computed {
			return nil, fmt.Errorf("%s is %v: the model computes in %v, so give it that, or int for tokens and classes, or change Config.Precision", p.Input(i), v.DType, computed)
		}
		values[i] = v
	}
	return s.trace.programs[program].conditions(values, batch)
}

// isNil reports whether a batch has nothing in place of t.
func isNil(t Tensor) bool {
	d, dense := t.(*tensor.Dense)
	return t == nil || dense && d == nil
}

// discard ends a forward that gets no backward. p may be nil.
func (s *session) discard(ctx context.Context, p *pass) error {
	if p == nil {
		return nil
	}
	return s.end(p.Discard(ctx, s.life.health != running))
}

// An Event is one operation of a pass, as a TraceFunc gets it.
type Event struct {
	Rank     int
	Pass     int       // number of the pass
	Kind     string    // gather, wait, forward, turn, free, backward, reduce, sync or drain
	Group    string    // for gather, wait, free, reduce, sync and drain
	Call     string    // for forward and backward
	Begin    time.Time // of the operation on this rank
	Duration time.Duration
	Absent   bool // the rank has no batch, or lacks the call, and takes part without computing
	Live     int  // bytes counted when it ends, before it frees any, without scratch
}

// String returns the event as a line.
func (e Event) String() string {
	text := fmt.Sprintf("rank %d, pass %d: %s", e.Rank, e.Pass, e.Kind)
	if name := e.Group + e.Call; name != "" {
		text += " " + name
	}
	if e.Absent {
		text += " without a batch"
	}
	return fmt.Sprintf("%s, %v, %s live", text, e.Duration, bytesText(e.Live))
}

// newEvent returns the event of a step on a rank.
func newEvent(rank int, s *engine.Step) Event {
	e := Event{
		Rank: rank, Pass: s.Pass, Kind: s.Op.Kind.String(), Absent: s.Absent,
		Begin: s.Begin, Duration: time.Since(s.Begin), Live: s.Live,
	}
	if s.Op.Group >= 0 {
		e.Group = s.Model.Groups[s.Op.Group].Name
	}
	if s.Op.Call >= 0 {
		e.Call = s.Model.Calls[s.Op.Call].Name
	}
	return e
}
