package fsdp

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/optim"
)

// A listing is what there is of a training's state over all ranks.
type listing struct {
	holdings []holding
	tensors  []stateTensor // in the order of the model: each value, and what an optimizer keeps for it
	steps    int           // of the optimizer
}

// listed lists the state after comparing the names that the ranks give it. The counts of the optimizers matter where they are
// written. It is a collective and fails on all ranks alike.
func (s *Sharded) listed(ctx context.Context, m method, n *naming, opt optim.Optimizer) (*listing, error) {
	if err := sameText(ctx, s.cfg.Group, "options", n.text); err != nil {
		return nil, s.refused(m, err)
	}
	holdings, err := s.holdings(ctx)
	if err != nil {
		return nil, s.broken(fmt.Errorf("%v: %w", m, err))
	}
	l := &listing{holdings: holdings}
	values := s.values(holdings)
	if opt == nil {
		l.tensors = values
		return l, s.named(m, n, l.tensors)
	}
	all, err := s.exchange(ctx, s.inventory(opt))
	if err != nil {
		return nil, s.broken(fmt.Errorf("%v: %w", m, err))
	}
	state, err := s.merge(all, holdings, m == methodExport)
	if err != nil {
		return nil, s.refused(m, err)
	}
	l.steps = state.steps
	rest := state.tensors
	for _, v := range values {
		l.tensors = append(l.tensors, v)
		for len(rest) > 0 && rest[0].Param == v.Param && rest[0].Owner == v.Owner {
			l.tensors, rest = append(l.tensors, rest[0]), rest[1:]
		}
	}
	return l, s.named(m, n, l.tensors)
}

// named returns an error on all ranks alike if two tensors have one name there.
func (s *Sharded) named(m method, n *naming, list []stateTensor) error {
	if err := distinct(list, n.of); err != nil {
		return s.refused(m, err)
	}
	return nil
}
