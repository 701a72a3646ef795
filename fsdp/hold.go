package fsdp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
)

// NoSync runs f. A Backward inside f sends no gradients: they add up whole on every rank, and the
// next Backward outside, or [Sharded.SyncGrads], reduces the sum. That is one reduction in place of
// many, for the memory of the whole model's gradients on every rank. Without NoSync every Backward
// adds to the gradient shards, which costs no memory. Both may be mixed: the gradients are those of
// the batches together. NoSync itself does not communicate and may be nested.
func (s *Sharded) NoSync(f func() error) error {
	if f == nil {
		return errors.New("fsdp: NoSync of no function")
	}
	if err := enter(s, "NoSync"); err != nil {
		return err
	}
	before := s.noSync
	s.noSync = true
	leave(s)
	defer func() {
		s.busy.Lock() // a method that f has left to another goroutine ends first
		s.noSync = before
		leave(s)
	}()
	return f()
}

// SyncGrads reduces the gradients of the passes inside NoSync, as the next Backward outside would.
// It does nothing if there are none.
func (s *Sharded) SyncGrads(ctx context.Context) error {
	if err := enter(s, "SyncGrads"); err != nil {
		return err
	}
	defer leave(s)
	q, err := ranks.Ask{Call: "SyncGrads"}, s.may("SyncGrads")
	if n := s.engine.MidStep(); err == nil && n > 0 {
		err = fmt.Errorf("a step has %d micro-batches on each rank, and %d have run: their gradients are summed with those of the others", s.cfg.passes(), n)
	}
	if err == nil {
		q.Argument = float64(s.engine.Pending())
	}
	if err := s.agree(ctx, q, err); err != nil {
		return err
	}
	return s.end(s.engine.SyncGrads(ctx))
}

// A Pass is a forward pass whose Backward is to come, put aside by Hold.
type Pass struct {
	s    *Sharded
	p    *pass // nil when it is over
	loss float64
}

// Hold puts the last Forward aside, so that others may run before its Backward: for losses that
// compare passes, or gradients in another order. It keeps its activations, and the parameters that
// were gathered for its Backward. Parameters must not change in between. Without a Forward, or
// with Config.VirtualRanks, the Pass is one whose Backward says so.
func (s *Sharded) Hold() *Pass {
	p := &Pass{s: s}
	if !enterOrNote(s, "Hold") {
		return p
	}
	defer leave(s)
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

// Backward is [Sharded.Backward] of the pass. It is over then, with or without an error.
func (p *Pass) Backward(ctx context.Context, opts ...BackwardOption) error {
	if err := enter(p.s, "Backward"); err != nil {
		return err
	}
	defer leave(p.s)
	if p.s.life.calls != nil {
		return fmt.Errorf("fsdp: rank %d: Backward of a Pass: %w", p.s.team.Rank(), errCalls)
	}
	if p.s.life.passes > 0 {
		return fmt.Errorf("fsdp: rank %d: Backward of a Pass: %w", p.s.team.Rank(), errVirtual)
	}
	q := p.p
	p.p = nil
	delete(p.s.life.held, p)
	return p.s.backward(ctx, q, opts)
}

// Discard ends the pass without a Backward. It is no collective.
func (p *Pass) Discard(ctx context.Context) error {
	if err := enter(p.s, "Discard of a Pass"); err != nil {
		return err
	}
	defer leave(p.s)
	q := p.p
	p.p = nil
	delete(p.s.life.held, p)
	return p.s.discard(ctx, q)
}
