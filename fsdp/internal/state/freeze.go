package state

import (
	"context"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/optim"
)

// A Moving takes the state from one layout to another of the same model and ranks.
type Moving struct {
	s    *Store
	own  []Piece
	list []Tensor // this rank's
	ring *ring
}

// PlanMove lists the state, including the state of opt unless it is nil, and takes memory.
func (s *Store) PlanMove(ctx context.Context, opt optim.Optimizer) (*Moving, error) {
	m := &Moving{s: s}
	own, err := s.pieces(opt)
	if err := s.Team.Agree(ctx, 0, err); err != nil {
		return nil, err
	}
	list, _, err := s.listed(ctx, opt, own, true)
	if err != nil {
		return nil, err
	}
	m.own = own
	for _, t := range list {
		if mine(s.Layout, &t) {
			t.Owner = layout.Shared // among the ranks that have it
			m.list = append(m.list, t)
		}
	}
	m.ring, err = s.newRing(m.list)
	if err := s.Team.Agree(ctx, 0, err); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Run gathers each tensor and keeps this rank's part in another layout: values in the shards there,
// and the state of an optimizer in separate entries, for another optimizer to adopt.
func (m *Moving) Run(ctx context.Context, l *layout.Layout, memory Memory) (entries []optim.Entry, err error) {
	to := &Store{Layout: l, Memory: memory, Team: m.s.Team, Compute: m.s.Compute}
	t, next := m.s.Compute, to.parts(to.shares(memory.Value))
	c := collector{
		s: m.s, parts: m.s.parts(m.own), root: Everywhere, ahead: underWay,
		room: func(of *Tensor) []byte { return m.ring.room(of.Len() * t.Size()) },
		take: func(_ context.Context, of *Tensor, whole []byte) error {
			p := next.of(of.Index, "")
			switch {
			case p == nil: // this rank has nothing of it
			case of.Entry == "":
				return p.put(t, whole)
			case !group(l, of.Index).Kind.Frozen:
				v := p.of(t, whole)
				entries = append(entries, optim.Entry{
					Param: of.Param, Name: of.Entry, Shape: of.Shape, Offset: p.Offset, Steps: of.Steps,
					Data: optim.Host{F32: slices.Clone(v.F32), F64: slices.Clone(v.F64)},
				})
			}
			return nil
		},
	}
	return entries, c.run(ctx, m.list)
}

// Close gives the memory back.
func (m *Moving) Close() { m.ring.close() }
