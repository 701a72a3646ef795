package fsdp

import (
	"context"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// FullState returns the whole parameters by name, on every rank. It gathers one group at a time, but the result is the
// size of the model. The tensors belong to the caller; a scalar comes as a tensor of shape (1).
func (s *Sharded) FullState(ctx context.Context) (map[string]*tensor.Dense, error) {
	return s.full(ctx, passState, func(g *flatGroup) []byte { return g.value.Data })
}

// FullGrads returns the whole gradients by name, on every rank, as FullState does the parameters.
func (s *Sharded) FullGrads(ctx context.Context) (map[string]*tensor.Dense, error) {
	return s.full(ctx, passGrads, func(g *flatGroup) []byte { return g.grad.Data })
}

func (s *Sharded) full(ctx context.Context, kind passKind, shard func(*flatGroup) []byte) (map[string]*tensor.Dense, error) {
	largest := 0
	for _, g := range s.groups {
		largest = max(largest, g.bytes())
	}
	var block *arena.Block // while ranks can still say that they have no memory
	err := s.err
	if err == nil {
		block, err = s.arena.Alloc(largest, arena.Gathered)
	}
	defer func() {
		if s.err == nil { // after a failure buffers stay where they are
			s.arena.Free(block)
		}
	}()
	if err := s.agree(ctx, kind, 0, err); err != nil {
		return nil, err
	}
	all := make(map[string]*tensor.Dense)
	for _, g := range s.groups {
		full := block.Data[:g.bytes()]
		if err := s.cfg.Group.AllGather(g.buffer(full), g.buffer(shard(g))).Wait(ctx); err != nil {
			return nil, s.broken(fmt.Errorf("gathering group %s: %w", g.name, err))
		}
		for i, p := range g.layout.Params() {
			v := exec.Value{Shape: p.Shape, DType: g.dtype.tensor(), Bytes: g.param(full, i)}
			all[p.Name] = v.Tensor().Clone().(*tensor.Dense)
		}
	}
	return all, nil
}
