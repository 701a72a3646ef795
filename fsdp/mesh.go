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
		rank := m.group.Rank()
		if h.shard, err = m.group.Split(ctx, rank/m.ranks, rank); err != nil {
			return nil, fmt.Errorf("making the groups of %d ranks that share shards: %w", m.ranks, err)
		}
		m.split = append(m.split, h.shard)
		if h.replica, err = m.group.Split(ctx, rank%m.ranks, rank); err != nil {
			return nil, fmt.Errorf("making the groups of replicas: %w", err)
		}
		m.split = append(m.split, h.replica)
		m.mixed = h
	}
	return m.mixed, nil
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

// abort fails all groups on every rank.
func (m *meshes) abort(err error) {
	m.group.Abort(err)
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
