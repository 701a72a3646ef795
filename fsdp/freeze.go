package fsdp

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/optim"
)

// Freeze changes which parameters are frozen, between two steps: frozen replaces Config.Frozen, nil
// freezes none. It compiles the schedule again and moves parameters to their place in the new
// layout. It drops gradients, and a Forward that waits for its Backward. The earlier result of
// Shards must not be used any more: make a new optimizer; the old one refuses to step, to be saved
// and to be loaded. Given the old one, Freeze returns the state that this rank needs, for the new
// one to adopt. Parameters that were frozen until now start with none. A nil opt has no state.
// Either all ranks give an optimizer, or none does.
//
//	frozen := func(name string) bool { return !strings.HasPrefix(name, "head") }
//	entries, err := m.Freeze(ctx, frozen, opt)
//	next, err := optim.AdamW{}.New(m.Params())
//	err = next.Adopt(opt.Steps(), entries)
//	opt = next
//
// An error that is found before anything moves leaves parameters and optimizer unchanged, on every
// rank.
func (s *Sharded) Freeze(ctx context.Context, frozen func(name string) bool, opt optim.Optimizer) ([]optim.Entry, error) {
	if err := enter(s, "Freeze"); err != nil {
		return nil, err
	}
	defer leave(s)
	cfg := s.cfg
	cfg.Frozen = frozen
	var units []*unit
	err := mayReplace(s, "Freeze", opt)
	if err == nil {
		units, err = decideUnits(&cfg, s.trace)
	}
	if err == nil {
		err = virtualModel(&cfg, s.trace, units)
	}
	q := ranks.Ask{Call: "Freeze"}
	if opt != nil {
		q.Detail = " with an optimizer" // else pieces of the others would be zero
	}
	if err := s.agree(ctx, q, err); err != nil {
		return nil, err
	}
	if err := s.team.Same(ctx, "frozen parameters", manifest(&cfg, s.trace, s.layout.Model, units)); err != nil {
		return nil, s.end(fmt.Errorf("Freeze: %w", err))
	}
	st := s.store(ranks.Ask{Call: "Freeze"}, nil)
	plan, err := st.PlanMove(ctx, opt)
	if err != nil {
		return nil, st.end(err)
	}
	defer plan.Close()
	next, err := arrange(ctx, s.team, s.layout.Model, cfg, units)
	if err != nil {
		return nil, s.end(s.team.Fail(fmt.Errorf("Freeze: %w", err)))
	}
	var shards engine.Shards
	programs, err := s.engine.Check(next.layout)
	if err == nil {
		shards, err = s.engine.Device().NewShards(ctx, next.layout, next.meshes)
	}
	if err := s.agree(ctx, ranks.Ask{Call: "Freeze"}, err); err != nil {
		if shards != nil {
			shards.Free()
		}
		return nil, err
	}
	if err := s.discard(ctx, s.life.takeLast()); err != nil {
		return nil, err
	}
	entries, err := plan.Run(ctx, next.layout, memory{s, shards})
	if err != nil {
		return nil, st.end(err)
	}
	s.engine.Adopt(next.layout, shards, programs)
	s.life.grads = gradients{}
	s.arrangement = next
	s.log("frozen anew", s.trace, s.team.Rank())
	return entries, nil
}
