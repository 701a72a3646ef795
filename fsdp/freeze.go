package fsdp

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
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
	next := &Sharded{cfg: s.cfg, trace: s.trace, traces: s.traces, meshes: s.meshes, arena: s.arena}
	next.cfg.Frozen = frozen
	err := s.usableWith(opt)
	if err == nil {
		err = s.refusal(opt, errFormer)
	}
	if err == nil {
		err = s.idle()
	}
	if err == nil {
		err = next.makeUnits()
	}
	r := request{method: methodFreeze}
	if opt != nil {
		r.argument = 1 // state that only some ranks bring would be zero in the pieces of the others
	}
	if err := s.agree(ctx, r, err); err != nil {
		return nil, err
	}
	if err := sameText(ctx, s.cfg.Group, "frozen parameters", next.manifest()); err != nil {
		return nil, fmt.Errorf("fsdp: rank %d: Freeze: %w", s.cfg.Group.Rank(), err)
	}
	if err := s.discardLast(ctx); err != nil {
		return nil, err
	}
	kept, err := s.stateNames(ctx, opt)
	if err != nil {
		return nil, s.broken(fmt.Errorf("Freeze: %w", err))
	}
	if err := next.makeGroups(ctx); err != nil {
		return nil, s.broken(fmt.Errorf("Freeze: %w", err))
	}
	full, err := next.room(s.groups)
	if err := s.agree(ctx, request{method: methodFreeze}, err); err != nil {
		next.leave(full)
		return nil, err
	}
	entries, err := s.move(ctx, next, full, kept, opt)
	if err != nil {
		return nil, s.broken(fmt.Errorf("Freeze: %w", err))
	}
	s.arena.Free(full)
	s.become(next)
	s.log("frozen anew")
	return entries, nil
}

// room allocates the new shards, and a buffer for any of the old groups whole.
func (s *Sharded) room(old []*flatGroup) (full *arena.Block, err error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	for _, g := range s.groups {
		if err := g.alloc(s.arena); err != nil {
			return nil, err
		}
	}
	largest := 0
	for _, g := range old {
		largest = max(largest, g.bytes())
	}
	return s.arena.Alloc(largest, arena.Gathered)
}

// leave gives back what room has allocated.
func (s *Sharded) leave(full *arena.Block) {
	s.arena.Free(full)
	for _, g := range s.groups {
		g.free(s.arena)
	}
}

// become replaces the layout by that of next.
func (s *Sharded) become(next *Sharded) {
	for _, g := range s.groups {
		g.free(s.arena)
	}
	for _, b := range s.state {
		s.arena.Free(b)
	}
	s.state, s.compiled, s.facts = nil, nil, nil
	clear(s.shadows)
	clear(s.present)
	s.cfg, s.units, s.groups, s.home, s.model, s.entries, s.programs = next.cfg, next.units, next.groups, next.home, next.model, next.entries, next.programs
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
func (s *Sharded) move(ctx context.Context, next *Sharded, full *arena.Block, kept []stateName, opt optim.Optimizer) (entries []optim.Entry, err error) {
	var old []optim.Entry
	if opt != nil {
		old = opt.State()
	}
	for _, g := range s.groups {
		if err := g.gatherNow(ctx, full.Data, g.value.Data); err != nil {
			return nil, err
		}
		for i, p := range g.params {
			to := next.home[p]
			next.groups[to.group].take(next.groups[to.group].value.Data, to.index, g.param(full.Data, i))
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
			g.putState(old, name) // the gradients' memory is free for it: they are dropped
			if err := g.gatherNow(ctx, full.Data, g.grad.Data); err != nil {
				return nil, err
			}
			for _, k := range rest[:n] {
				if i, ok := g.layout.Lookup(k.param); ok {
					entries = append(entries, next.takeState(s.trace.byName[k.param], k, g.param(full.Data, i))...)
				}
			}
			rest = rest[n:]
		}
	}
	return entries, nil
}

// putState writes the state entries of that name to where the gradients were.
func (f *flatGroup) putState(entries []optim.Entry, name string) {
	clear(f.grad.Data)
	segments := f.segments()
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
				copy(to.F32, sliceOf(e.Data.F32, lo-e.Offset, hi-e.Offset))
				copy(to.F64, sliceOf(e.Data.F64, lo-e.Offset, hi-e.Offset))
			}
		}
	}
}

// sliceOf is v[lo:hi], or nothing of nothing.
func sliceOf[T any](v []T, lo, hi int) []T {
	if v == nil {
		return nil
	}
	return v[lo:hi]
}

// takeState returns what this rank owns of a parameter's state, whose elements are in whole.
func (s *Sharded) takeState(p int, k stateName, whole []byte) (entries []optim.Entry) {
	g := s.groups[s.home[p].group]
	if g.kind.frozen {
		return nil
	}
	for _, seg := range g.segments() {
		if seg.Param != s.home[p].index {
			continue
		}
		v := g.vec(whole, seg.Offset, seg.Len)
		entries = append(entries, optim.Entry{
			Param: k.param, Name: k.name, Shape: s.trace.params[p].Shape, Offset: seg.Offset, Steps: k.steps,
			Data: optim.Vec{F32: slices.Clone(v.F32), F64: slices.Clone(v.F64)},
		})
	}
	return entries
}
