package fsdp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/program"
	"github.com/gofsdp/gofsdp/optim"
)

// Freeze changes which parameters are frozen, between two steps: it takes the place of Config.Frozen, nil freezes none. The
// schedule is compiled anew and parameters move to where the new layout has them; gradients are dropped, and a Forward that
// waits for its Backward. What Shards returned before must not be used any more: the optimizer is made anew, and the old one
// refuses to step, to be saved and to be loaded. Given the old one, Freeze returns its state as this rank needs it, for the new one to adopt; parameters that
// were frozen until now start with none. A nil opt has no state; all ranks give an optimizer, or none does.
//
//	entries, err := m.Freeze(ctx, func(name string) bool { return !strings.HasPrefix(name, "head") }, opt)
//	next, err := optim.AdamW{}.New(m.Shards())
//	err = next.Adopt(opt.Steps(), entries)
//	opt = next
//
// An error that is found before anything moves leaves parameters and optimizer as they were, on every rank.
func (s *Sharded) Freeze(ctx context.Context, frozen func(name string) bool, opt optim.Optimizer) ([]optim.Entry, error) {
	cfg := s.cfg
	cfg.Frozen = frozen
	var units []*unit
	err := s.usableWith(opt)
	if err == nil {
		err = s.refusal(opt, errFormer)
	}
	if err == nil {
		err = s.idle()
	}
	if err == nil {
		units, err = decideUnits(&cfg, s.trace)
	}
	q := ranks.Ask{Call: "Freeze"}
	if opt != nil {
		q.Detail = " with an optimizer" // state that only some ranks bring would be zero in the pieces of the others
	}
	if err := s.agree(ctx, q, err); err != nil {
		return nil, err
	}
	if err := s.team.Same(ctx, "frozen parameters", s.manifest(units)); err != nil {
		return nil, s.refused("Freeze", err)
	}
	if err := s.discardLast(ctx); err != nil {
		return nil, err
	}
	kept, err := s.stateNames(ctx, opt)
	if err != nil {
		return nil, s.broken(fmt.Errorf("Freeze: %w", err))
	}
	next := refreezing{cfg: cfg, units: units}
	var meshes []ranks.Mesh
	if next.layout, meshes, err = s.lay(ctx, &cfg, units); err != nil {
		return nil, s.broken(fmt.Errorf("Freeze: %w", err))
	}
	next.groups = flatGroups(next.layout, meshes)
	full, err := s.room(&next)
	if err := s.agree(ctx, ranks.Ask{Call: "Freeze"}, err); err != nil {
		s.arena.Free(full)
		next.free(s.arena)
		return nil, err
	}
	entries, err := s.move(ctx, &next, full, kept, opt)
	if err != nil {
		return nil, s.broken(fmt.Errorf("Freeze: %w", err))
	}
	s.arena.Free(full)
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

// room allocates the new shards, and a buffer for any of the old groups whole.
func (s *Sharded) room(next *refreezing) (full *arena.Block, err error) {
	if next.programs, err = s.check(next.layout); err != nil {
		return nil, err
	}
	for _, g := range next.groups {
		if err := g.alloc(s.arena); err != nil {
			return nil, err
		}
	}
	largest := 0
	for _, g := range s.groups {
		largest = max(largest, g.Bytes())
	}
	return s.arena.Alloc(largest, arena.Gathered)
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

// stateName is a tensor of an optimizer's state that some rank has a piece of.
type stateName struct {
	param, name string
	steps       int
}

// stateNames lists the tensors of the optimizer's state on all ranks: a rank that owns nothing of a parameter does not know.
func (s *Sharded) stateNames(ctx context.Context, opt optim.Optimizer) ([]stateName, error) {
	var b strings.Builder
	if opt != nil {
		for _, e := range opt.State() {
			fmt.Fprintf(&b, "%s %s %d\n", e.Param, strings.ReplaceAll(e.Name, " ", "\x00"), e.Steps)
		}
	}
	all, err := comm.GatherBytes(ctx, s.cfg.Group, []byte(b.String()))
	if err != nil {
		return nil, fmt.Errorf("comparing the state of the optimizer: %w", err)
	}
	var list []stateName
	for _, text := range all {
		for _, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
			var n stateName
			if _, err := fmt.Sscan(line, &n.param, &n.name, &n.steps); err == nil {
				n.name = strings.ReplaceAll(n.name, "\x00", " ")
				list = append(list, n)
			}
		}
	}
	slices.SortFunc(list, func(a, b stateName) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.param, b.param), cmp.Compare(a.steps, b.steps))
	})
	return slices.Compact(list), nil
}

// move gathers each group, and the optimizer's state of it, and keeps what this rank has in next.
func (s *Sharded) move(ctx context.Context, next *refreezing, full *arena.Block, kept []stateName, opt optim.Optimizer) (entries []optim.Entry, err error) {
	var old []optim.Entry
	if opt != nil {
		old = opt.State()
	}
	for _, g := range s.groups {
		if err := g.gatherNow(ctx, full.Data, g.value.Data); err != nil {
			return nil, err
		}
		for i, p := range g.Params {
			to := next.layout.Home[p]
			next.groups[to.Group].take(next.groups[to.Group].value.Data, to.Index, g.Param(full.Data, i))
		}
		if g.grad == nil {
			continue
		}
		for rest := kept; len(rest) > 0; {
			name := rest[0].name
			n := slices.IndexFunc(rest, func(k stateName) bool { return k.name != name })
			if n < 0 {
				n = len(rest)
			}
			if err := g.putState(old, name); err != nil { // where the gradients were, which are dropped
				return nil, err
			}
			if err := g.gatherNow(ctx, full.Data, g.grad.Data); err != nil {
				return nil, err
			}
			for _, k := range rest[:n] {
				if i, ok := g.Flat.Lookup(k.param); ok {
					entries = append(entries, next.takeState(s.trace.params[s.trace.byName[k.param]].Shape, s.trace.byName[k.param], k, g.Param(full.Data, i))...)
				}
			}
			rest = rest[n:]
		}
	}
	return entries, nil
}

// putState writes the state entries of that name to where the gradients were.
func (f *flatGroup) putState(entries []optim.Entry, name string) error {
	clear(f.grad.Data)
	segments := f.Segments()
	for _, e := range entries {
		if e.Name != name {
			continue
		}
		for _, seg := range segments {
			if seg.Name != e.Param {
				continue
			}
			lo, hi := max(seg.Offset, e.Offset), min(seg.Offset+seg.Len, e.Offset+e.Data.Len())
			if lo < hi {
				to := f.vec(f.grad.Data, seg.At+lo-seg.Offset, hi-lo)
				if err := e.Data.Slice(lo-e.Offset, hi-e.Offset).Read(to); err != nil {
					return fmt.Errorf("%s of %s: %w", name, e.Param, err)
				}
			}
		}
	}
	return nil
}

// takeState returns what this rank owns of a parameter's state, whose elements are in whole.
func (r *refreezing) takeState(shape []int, p int, k stateName, whole []byte) (entries []optim.Entry) {
	home := r.layout.Home[p]
	g := r.groups[home.Group]
	if g.Kind.Frozen {
		return nil
	}
	for _, seg := range g.Segments() {
		if seg.Param != home.Index {
			continue
		}
		v := g.vec(whole, seg.Offset, seg.Len)
		entries = append(entries, optim.Entry{
			Param: k.param, Name: k.name, Shape: shape, Offset: seg.Offset, Steps: k.steps,
			Data: optim.Host{F32: slices.Clone(v.F32), F64: slices.Clone(v.F64)},
		})
	}
	return entries
}
