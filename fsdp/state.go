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
	if err := s.agree(ctx, kind, 0, s.err); err != nil {
		return nil, err
	}
	all := make(map[string]*tensor.Dense)
	for _, g := range s.groups {
		block := s.arena.Alloc(g.bytes(), arena.Gathered)
		err := s.cfg.Group.AllGather(g.buffer(block.Data), g.buffer(shard(g))).Wait(ctx)
		if err != nil { // the block may still be written to: it is not freed
			return nil, s.broken(fmt.Errorf("gathering group %s: %w", g.name, err))
		}
		for i, p := range g.layout.Params() {
			v := exec.Value{Shape: p.Shape, DType: g.dtype.tensor(), Bytes: g.param(block.Data, i)}
			all[p.Name] = v.Tensor().Clone().(*tensor.Dense)
		}
		s.arena.Free(block)
	}
	return all, nil
}
