package fsdp

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/optim"
)

// Freeze changes which parameters are frozen, between two steps: it takes the place of
// Config.Frozen, nil freezes none. The schedule is compiled anew and parameters move to where the
// new layout has them; gradients are dropped, and a Forward that waits for its Backward. What
// Shards returned before must not be used any more: the optimizer is made anew, and the old one
// refuses to step, to be saved and to be loaded. Given the old one, Freeze returns its state as
// this rank needs it, for the new one to adopt; parameters that were frozen until now start with
// none. A nil opt has no state; all ranks give an optimizer, or none does.
//
//	entries, err := m.Freeze(ctx, func(name string) bool { return !strings.HasPrefix(name, "head") }, opt)
//	next, err := optim.AdamW{}.New(m.Shards())
//	err = next.Adopt(opt.Steps(), entries)
//	opt = next
//
// An error that is found before anything moves leaves parameters and optimizer as they were, on
// every rank.
func (s *Sharded) Freeze(ctx context.Context, frozen func(name string) bool, opt optim.Optimizer) ([]optim.Entry, error) {
	cfg := s.cfg
	cfg.Frozen = frozen
	var units []*unit
	err := s.usableWith(opt)
	if err == nil {
		err = s.idle()
	}
	if err == nil {
		units, err = decideUnits(&cfg, s.trace)
	}
	q := ranks.Ask{Call: "Freeze"}
	if opt != nil {
		q.Detail = " with an optimizer" // all ranks have one, or none has
	}
	if err := s.agree(ctx, q, err); err != nil {
		return nil, err
	}
	if err := s.team.Same(ctx, "frozen parameters", s.manifest(units)); err != nil {
		return nil, fmt.Errorf("fsdp: rank %d: Freeze: %w", s.team.Rank(), err)
	}
	st := s.store(ranks.Ask{Call: "Freeze"}, nil)
	plan, err := st.PlanMove(ctx, opt)
	if err != nil {
		return nil, st.end(err)
	}
	defer plan.Close()
	next := refreezing{cfg: cfg, units: units}
	var meshes []ranks.Mesh
	if next.layout, meshes, err = s.lay(ctx, &cfg, units); err != nil {
		return nil, s.broken(fmt.Errorf("Freeze: %w", err))
	}
	next.groups = flatGroups(next.layout, meshes)
	if err := s.agree(ctx, ranks.Ask{Call: "Freeze"}, s.room(&next)); err != nil {
		next.free(s.arena)
		return nil, err
	}
	if err := s.discardLast(ctx); err != nil {
		return nil, err
	}
	entries, err := plan.Run(ctx, next.layout, hostMemory{s, next.groups})
	if err != nil {
		return nil, st.end(err)
	}
	s.become(&next)
	s.log("frozen anew")
	return entries, nil
}

// refreezing is what takes the place of a model's layout.
type refreezing struct {
	cfg      Config
	units    []*unit
	layout   *layout.Layout
	groups   []*flatGroup
	programs map[string]*program.Program
}

// room allocates the new shards.
func (s *Sharded) room(next *refreezing) (err error) {
	if next.programs, err = s.check(next.layout); err != nil {
		return err
	}
	for _, g := range next.groups {
		if err := g.alloc(s.arena); err != nil {
			return err
		}
	}
	return nil
}

// free gives the shards back.
func (r *refreezing) free(a *arena.Arena) {
	for _, g := range r.groups {
		g.free(a)
	}
}

// become replaces the layout by next.
func (s *Sharded) become(next *refreezing) {
	for _, g := range s.groups {
		g.free(s.arena)
	}
	for _, b := range s.state {
		s.arena.Free(b)
	}
	s.state, s.compiled, s.facts = nil, nil, nil
	clear(s.shadows)
	clear(s.present)
	s.cfg, s.units, s.layout, s.groups, s.programs = next.cfg, next.units, next.layout, next.groups, next.programs
}
