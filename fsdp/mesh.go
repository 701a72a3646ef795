package fsdp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
)

// A mesh is where the parameters of a flat group live: cut over the ranks of shard, each piece of which the ranks of
// replica hold alike.
//
//	FullShard     shard: all ranks      replica: none
//	HybridShard   shard: one of R sets  replica: the ranks that have the same place in the other sets
//	NoShard       shard: this rank      replica: all ranks
type mesh struct {
	shard   comm.Group
	replica comm.Group // nil without replicas
	leader  int        // 0, or the first rank of Config.Group in a group of the user's, which tells such groups apart
}

// replicas returns how many ranks hold the same piece.
func (m *mesh) replicas() int {
	if m.replica == nil {
		return 1
	}
	return m.replica.Size()
}

// twice tells whether gradients are summed over the ranks that share them, and then over the replicas.
func (m *mesh) twice() bool { return m.shard.Size() > 1 && m.replicas() > 1 }

// counts tells whether this rank speaks for its replicas when something is summed over all ranks.
func (m *mesh) counts() bool { return m.replica == nil || m.replica.Rank() == 0 }

// meshes are those of a model, each made when it is first needed.
type meshes struct {
	group comm.Group
	ranks int // of a shard group of the hybrid strategies
	whole *mesh
	apart *mesh // NoShard
	local *mesh // this rank alone: buffers
	mixed *mesh
	own   map[comm.Group]*mesh // of the user's groups
	split []comm.Group         // made here
}

func newMeshes(g comm.Group, ranks int) *meshes {
	m := &meshes{
		group: g, ranks: ranks, whole: &mesh{shard: g}, local: &mesh{shard: comm.Local(1)[0]},
		own: make(map[comm.Group]*mesh),
	}
	m.apart = &mesh{shard: m.local.shard, replica: several(g)}
	return m
}

// several returns g, or nil if it is one rank.
func several(g comm.Group) comm.Group {
	if g.Size() == 1 {
		return nil
	}
	return g
}

// of returns the mesh of a kind of parameters in a unit. It is a collective of all ranks, or of the unit's own group.
func (m *meshes) of(ctx context.Context, u *unit, k kind) (*mesh, error) {
	switch {
	case k.buffer:
		return m.local, nil
	case u.group != nil:
		own, err := m.ofUser(ctx, u.group)
		if err == nil && k.ignored {
			own = &mesh{shard: m.local.shard, replica: several(u.group), leader: own.leader}
		}
		return own, err
	case k.ignored:
		return m.apart, nil
	}
	switch u.strategy {
	case NoShard:
		return m.apart, nil
	case HybridShard, HybridGradOp:
		return m.hybrid(ctx)
	default:
		return m.whole, nil
	}
}

// hybrid returns the mesh of the hybrid strategies.
func (m *meshes) hybrid(ctx context.Context) (_ *mesh, err error) {
	switch m.ranks {
	case m.group.Size():
		return m.whole, nil
	case 1:
		return m.apart, nil
	}
	if m.mixed == nil {
		h := &mesh{}
		sets, set, place := m.group.Size()/m.ranks, m.group.Rank()/m.ranks, m.group.Rank()%m.ranks
		if h.shard, err = m.part(ctx, set, set*m.ranks, 1, m.ranks); err != nil {
			return nil, fmt.Errorf("making the groups of %d ranks that share shards: %w", m.ranks, err)
		}
		if h.replica, err = m.part(ctx, sets+place, place, m.ranks, sets); err != nil { // colors of their own: groups are named by them
			return nil, fmt.Errorf("making the groups of replicas: %w", err)
		}
		m.mixed = h
	}
	return m.mixed, nil
}

// part splits off the group of color, whose n ranks are first, first+step, …
func (m *meshes) part(ctx context.Context, color, first, step, n int) (comm.Group, error) {
	g, err := m.group.Split(ctx, color, m.group.Rank())
	if err != nil {
		return nil, err
	}
	p := &part{Group: g}
	for i := range n {
		p.ranks = append(p.ranks, first+i*step)
	}
	m.split = append(m.split, p)
	return p, nil
}

// ofUser returns the mesh of a group of the user's.
func (m *meshes) ofUser(ctx context.Context, g comm.Group) (*mesh, error) {
	if known := m.own[g]; known != nil {
		return known, nil
	}
	first := []int64{int64(m.group.Rank())}
	if err := g.AllReduce(comm.Of(first).Named("first rank"), comm.Min).Wait(ctx); err != nil {
		return nil, fmt.Errorf("meeting the ranks of a group of GroupOf: %w", err)
	}
	m.own[g] = &mesh{shard: g, leader: int(first[0])}
	return m.own[g], nil
}

// abort fails all groups on every rank. Those made here fail with the group, but not if it has failed before because a rank
// has left it: then the ranks that wait elsewhere, for this one, would not know.
func (m *meshes) abort(err error) {
	m.group.Abort(err)
	for _, g := range m.split {
		g.Abort(err)
	}
	for g := range m.own {
		g.Abort(err)
	}
}

// abortOwn fails the groups of the user's that this rank has met or was about to: their other ranks may wait for it there.
func (m *meshes) abortOwn(units []*unit, err error) {
	for _, u := range units {
		if u.group != nil {
			u.group.Abort(err)
		}
	}
}

// close closes the groups made here.
func (m *meshes) close() error {
	var errs []error
	for _, g := range append(m.split, m.local.shard) {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// A part is a group that was split off here. It has numbers of its own for ranks that the user knows by others, so its errors
// list those.
type part struct {
	comm.Group
	ranks []int // of Config.Group
}

// partWork is an operation of a part.
type partWork struct {
	comm.Work
	part *part
}

// Wait implements comm.Work.
func (w partWork) Wait(ctx context.Context) error {
	if err := w.Work.Wait(ctx); err != nil {
		return fmt.Errorf("among ranks %v: %w", w.part.ranks, err)
	}
	return nil
}

// AllGather implements comm.Group.
func (p *part) AllGather(dst, src comm.Buffer) comm.Work {
	return partWork{p.Group.AllGather(dst, src), p}
}

// ReduceScatter implements comm.Group.
func (p *part) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return partWork{p.Group.ReduceScatter(dst, src, op), p}
}

// Gather implements comm.Group.
func (p *part) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return partWork{p.Group.Gather(dst, src, counts, root), p}
}

// AllReduce implements comm.Group.
func (p *part) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return partWork{p.Group.AllReduce(buf, op), p}
}
