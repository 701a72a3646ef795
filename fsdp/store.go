package fsdp

import (
	"context"
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/optim"
)

// Package state moves state in and out. What it needs of a model is here, and what becomes of its
// errors.

// A store is the state of a model for one method, and this rank's word to the others meanwhile.
type store struct {
	state.Store
	*ranks.Team
	s   *Sharded
	ask ranks.Ask
}

// store prepares for a method. refusal is why this rank cannot take part, or nil.
func (s *Sharded) store(ask ranks.Ask, refusal error) *store {
	st := &store{Team: s.team, s: s, ask: ask}
	st.Store = state.Store{Layout: s.layout, Memory: hostMemory{s, s.groups}, Team: st, Compute: s.cfg.Precision.Compute.comm(), Refusal: refusal}
	return st
}

// end returns an error of the method as its user gets it.
func (st *store) end(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fsdp: rank %d: %s: %w", st.Rank(), st.ask.Call, public(err))
}

// public returns err as users of this package know it.
func public(err error) error {
	if unfit, ok := err.(*state.Mismatch); ok {
		return (*StateError)(unfit)
	}
	return err
}

// Group implements state.Team.
func (st *store) Group() comm.Group { return st.s.cfg.Group }

// Shard implements state.Team.
func (st *store) Shard(group int) comm.Group { return st.s.groups[group].mesh.Shard }

// Agree implements state.Team.
func (st *store) Agree(ctx context.Context, hash uint64, err error) error {
	s, q := st.s, st.ask
	if s.err == errClosed { // the others need not know, and may have left
		return s.err
	}
	s.requests++
	q.Number, q.Schedule = s.requests, hash
	if err == nil {
		err = context.Cause(ctx)
	}
	_, err = st.Team.Agree(ctx, &q, public(err))
	if errors.As(err, new(*ranks.LostError)) {
		return st.Fail(err)
	}
	return err
}

// Fail implements state.Team.
func (st *store) Fail(err error) error {
	if st.s.err == nil {
		_ = st.s.broken(fmt.Errorf("%s: %w", st.ask.Call, err))
	}
	return &ranks.LostError{Err: err}
}

// A sideTeam is that of a group beside the training's.
type sideTeam struct {
	*ranks.Agreement
	group comm.Group
	calls int
}

// sideTeam makes one. It is a collective.
func (s *Sharded) sideTeam(ctx context.Context) (state.Team, error) {
	g, err := s.cfg.Group.Split(ctx, 0, s.cfg.Group.Rank())
	if err != nil {
		return nil, err
	}
	s.team.Adopt(g) // closed, and failed, with the others
	return &sideTeam{Agreement: ranks.NewAgreement(g, newPeerError), group: g}, nil
}

// Group implements state.Team.
func (t *sideTeam) Group() comm.Group { return t.group }

// Shard implements state.Team: nothing is collected beside the training.
func (t *sideTeam) Shard(int) comm.Group { return nil }

// Agree implements state.Team.
func (t *sideTeam) Agree(ctx context.Context, hash uint64, err error) error {
	t.calls++
	_, err = t.Agreement.Agree(ctx, &ranks.Ask{Call: "Save", Number: t.calls, Schedule: hash}, err)
	return err
}

// Fail implements state.Team. The group has failed already.
func (t *sideTeam) Fail(err error) error { return &ranks.LostError{Err: err} }

// hostMemory is the memory of groups whose shards lie on the host.
type hostMemory struct {
	s      *Sharded
	groups []*flatGroup
}

// Value implements state.Memory.
func (m hostMemory) Value(group int) optim.Vec { return m.vec(group, m.groups[group].value) }

// Grad implements state.Memory.
func (m hostMemory) Grad(group int) optim.Vec { return m.vec(group, m.groups[group].grad) }

func (m hostMemory) vec(group int, b *arena.Block) optim.Vec {
	if b == nil {
		return nil
	}
	return m.groups[group].vec(b.Data, 0, m.groups[group].Flat.ShardLen())
}

// Scratch implements state.Memory.
func (m hostMemory) Scratch(n int) (b []byte, free func(), err error) {
	block, err := m.s.arena.Alloc(n, arena.Gathered)
	if err != nil {
		return nil, nil, err
	}
	return block.Data, func() {
		if m.s.err == nil { // after a failure buffers stay where they are
			m.s.arena.Free(block)
		}
	}, nil
}

// Snapshot implements state.Memory.
func (m hostMemory) Snapshot(n int) (b []byte, err error) {
	m.s.arena.Free(m.s.snapshot) // which comes back, unless it is of another size
	if m.s.snapshot, err = m.s.arena.Alloc(n, arena.Snapshot); err != nil {
		return nil, err
	}
	return m.s.snapshot.Data, nil
}
