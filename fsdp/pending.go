package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
)

// NoSync runs f, in which no Backward sends gradients: they add up whole on every rank, and the next Backward outside, or
// [Sharded.SyncGrads], reduces the sum. That is one reduction in place of many, for the memory of the whole model's gradients
// on every rank; without NoSync every Backward adds to the gradient shards, which costs no memory. Both may be mixed: the
// gradients are those of the batches together. NoSync itself does not communicate and may be nested.
func (s *Sharded) NoSync(f func() error) error {
	if f == nil {
		return errors.New("fsdp: NoSync of no function")
	}
	before := s.noSync
	s.noSync = true
	defer func() { s.noSync = before }()
	return f()
}

// pending are whole gradients of passes inside NoSync.
type pending struct {
	blocks map[int]*arena.Block // by group
	passes int
}

func (d *pending) any() bool { return d.passes > 0 }

// take hands the gradients to a pass that adds to them.
func (d *pending) take(p *pass) {
	for _, id := range p.plan.Inherited {
		g := p.plan.Buffers[id].Index
		p.blocks[id] = d.blocks[g]
		delete(d.blocks, g)
	}
}

// put takes what a pass leaves.
func (d *pending) put(p *pass) {
	if !p.noSync {
		d.passes = 0
		return
	}
	d.passes++
	if d.blocks == nil {
		d.blocks = make(map[int]*arena.Block)
	}
	for _, id := range p.plan.Left {
		d.blocks[p.plan.Buffers[id].Index] = p.blocks[id]
		p.blocks[id] = nil
	}
}

// drop frees them.
func (d *pending) drop(a *arena.Arena) {
	for _, b := range d.blocks {
		a.Free(b)
	}
	*d = pending{}
}

// reduced is the error of a method that needs gradients in shards.
func (d *pending) reduced() error {
	if d.any() {
		return fmt.Errorf("the gradients of %d passes inside NoSync are not reduced: run a Backward outside, SyncGrads or ZeroGrad first", d.passes)
	}
	return nil
}

// weigh multiplies p's loss by its weight relative to the mean of the weights that the ranks have just agreed on: the mean over
// the ranks is the weighted one then, the gradients of all passes have the same divisor, and none grows with the unit of the
// weights.
func (s *Sharded) weigh(ctx context.Context, p *pass) error {
	if s.cfg.Divide != ByWeights && s.cfg.Divide != ByActive {
		return nil
	}
	sum, err := s.team.Sum(ctx, p.weight)
	if err != nil {
		return s.broken(fmt.Errorf("Backward: %w", err))
	}
	mean := sum / float64(s.team.Size())
	if mean == 0 || math.IsInf(mean, 0) {
		return fmt.Errorf("fsdp: rank %d: Backward: the mean of the ranks' weights is %v", s.cfg.Group.Rank(), mean)
	}
	p.scale *= p.weight / mean
	return nil
}

// factor returns what sums of gradients are multiplied by.
func (s *Sharded) factor() float64 {
	if s.cfg.Divide == ByOne {
		return 1
	}
	return 1 / float64(s.cfg.Group.Size())
}

// preDivide returns what gradients are multiplied by before they are summed: a power of two near 1/√N if they travel as
// Float16, so that neither they nor their sum leave its range easily, and 1 otherwise.
func (s *Sharded) preDivide(g *flatGroup) float32 {
	if g.Reduce != comm.Float16 || s.cfg.Divide == ByOne {
		return 1
	}
	n, pre := s.cfg.Group.Size(), 1
	for n%pre == 0 && n/pre > pre {
		pre *= 2
	}
	return 1 / float32(pre)
}

// SyncGrads reduces the gradients of the passes inside NoSync, as the next Backward outside would. Without such it does
// nothing.
func (s *Sharded) SyncGrads(ctx context.Context) error {
	if err := s.agree(ctx, ranks.Ask{Call: "SyncGrads", Argument: float64(s.pending.passes)}, s.err); err != nil {
		return err
	}
	if !s.pending.any() {
		return nil
	}
	for i, g := range s.groups {
		if b := s.pending.blocks[i]; b != nil {
			if err := s.reduceNow(ctx, g, b.Data); err != nil {
				return s.broken(fmt.Errorf("SyncGrads: group %s: %w", g.Name, err))
			}
		}
	}
	s.pending.drop(s.arena)
	return nil
}

// reduceNow adds the sum over the ranks of the whole gradients in full to the gradient shard.
func (s *Sharded) reduceNow(ctx context.Context, g *flatGroup, full []byte) error {
	pre := s.preDivide(g)
	if w := g.startReduce(full, pre); w != nil {
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
	if g.Ranks.Twice() {
		if err := g.startSync(full).Wait(ctx); err != nil {
			return err
		}
	}
	g.finishReduce(full, s.factor()/float64(pre))
	return nil
}

// A Pass is a forward pass whose Backward is to come, put aside by Hold.
type Pass struct {
	s    *Sharded
	p    *pass // nil when it is over
	loss float64
}

// Hold puts the last Forward aside, so that others may run before its Backward: for losses that compare passes, or
// gradients in another order. It keeps its activations, and the parameters that were gathered for its Backward. Parameters
// must not change in between. Without a Forward, the Pass is one whose Backward says so.
func (s *Sharded) Hold() *Pass {
	p := &Pass{s: s, p: s.pass}
	if s.pass != nil {
		p.loss = s.pass.loss
		s.held[p] = true
		s.pass = nil
	}
	return p
}

// Loss returns this rank's loss.
func (p *Pass) Loss() float64 { return p.loss }

// Backward is [Sharded.Backward] of the pass. It is over then, with or without an error.
func (p *Pass) Backward(ctx context.Context, opts ...BackwardOption) error {
	q := p.p
	p.p = nil
	delete(p.s.held, p)
	return p.s.backward(ctx, q, opts)
}

// Discard ends the pass without a Backward. It is no collective.
func (p *Pass) Discard(ctx context.Context) error {
	q := p.p
	p.p = nil
	delete(p.s.held, p)
	return p.s.discard(ctx, q)
}

// waiting returns the passes that may have collectives in flight: those whose backward is to come, and those that err has ended.
func (s *Sharded) waiting() []*pass {
	list := slices.Clone(s.ended)
	if s.pass != nil {
		list = append(list, s.pass)
	}
	for p := range s.held {
		list = append(list, p.p)
	}
	return list
}

// idle is the error of a method that no pass may be waiting through.
func (s *Sharded) idle() error {
	if err := s.noneHeld(); err != nil {
		return err
	}
	return s.pending.reduced()
}

// noneHeld is the error of a method that changes parameters.
func (s *Sharded) noneHeld() error {
	if len(s.held) > 0 {
		return fmt.Errorf("%d passes put aside by Hold are waiting for their Backward", len(s.held))
	}
	return nil
}
