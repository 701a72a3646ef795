package fsdp

import (
	"context"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/comm"
)

// ClipGradNorm computes the L2 norm of the gradients of the whole model, over all ranks, and if it exceeds limit scales the
// gradients by limit/(norm + 1e-6), as PyTorch's clip_grad_norm_ does. It returns the norm before clipping; with an
// infinite limit it only measures. If a gradient is not finite it fails on every rank, naming a parameter, and changes
// nothing.
func (s *Sharded) ClipGradNorm(ctx context.Context, limit float64) (norm float64, err error) {
	err = s.err
	if err == nil && !(limit > 0) {
		err = fmt.Errorf("limit is %v, want a positive number", limit)
	}
	sum := []float64{0}
	for i := 0; i < len(s.groups) && err == nil; i++ {
		squares := s.groups[i].sumSquares()
		if name := s.groups[i].nonFiniteIf(squares); name != "" {
			err = fmt.Errorf("the gradient of %s is not finite", name)
		}
		sum[0] += squares
	}
	if err := s.agree(ctx, passClip, limit, err); err != nil {
		return 0, err
	}
	if err := s.cfg.Group.AllReduce(comm.Of(sum).Named("gradient norm"), comm.Sum).Wait(ctx); err != nil {
		return 0, s.broken(fmt.Errorf("ClipGradNorm: %w", err))
	}
	if norm = math.Sqrt(sum[0]); math.IsInf(norm, 0) {
		return 0, fmt.Errorf("fsdp: rank %d: ClipGradNorm: the sum of the squares of the gradients overflows", s.cfg.Group.Rank())
	}
	if c := limit / (norm + 1e-6); c < 1 {
		for _, g := range s.groups {
			g.scaleGrad(c)
		}
	}
	return norm, nil
}

// nonFiniteIf returns the name of a parameter with a gradient that is not finite, looking only if the sum of squares says
// that there may be one.
func (f *flatGroup) nonFiniteIf(squares float64) string {
	if !math.IsNaN(squares) && !math.IsInf(squares, 0) {
		return ""
	}
	return f.nonFinite()
}
