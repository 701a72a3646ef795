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
func (s *Sharded) listed(ctx context.Context, call string, n *naming, opt optim.Optimizer) (*listing, error) {
	if err := s.team.Same(ctx, "options", n.text); err != nil {
		return nil, s.refused(call, err)
	}
	holdings := s.holdings()
	l := &listing{holdings: holdings}
	values := s.values(holdings)
	if opt == nil {
		l.tensors = values
		return l, s.named(call, n, l.tensors)
	}
	all, err := s.exchange(ctx, s.inventory(opt))
	if err != nil {
		return nil, s.broken(fmt.Errorf("%s: %w", call, err))
	}
	state, err := s.merge(all, holdings, call == "Export")
	if err != nil {
		return nil, s.refused(call, err)
	}
	l.steps = state.steps
	rest := state.tensors
	for _, v := range values {
		l.tensors = append(l.tensors, v)
		for len(rest) > 0 && rest[0].Param == v.Param && rest[0].Owner == v.Owner {
			l.tensors, rest = append(l.tensors, rest[0]), rest[1:]
		}
	}
	return l, s.named(call, n, l.tensors)
}

// named returns an error on all ranks alike if two tensors have one name there.
func (s *Sharded) named(call string, n *naming, list []stateTensor) error {
	if err := distinct(list, n.of); err != nil {
		return s.refused(call, err)
	}
	return nil
}
