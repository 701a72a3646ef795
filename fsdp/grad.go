package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/optim"
)

// A Norm is a way to measure gradients.
type Norm uint8

// The norms.
const (
	L2Norm  Norm = iota // square root of the sum of squares
	InfNorm             // largest magnitude
)

// check returns an error if there is no such norm.
func (n Norm) check() error {
	if n > InfNorm {
		return fmt.Errorf("norm %d is neither L2Norm nor InfNorm", n)
	}
	return nil
}

// ClipGradNorm computes the norm of the gradients of the whole model, over all ranks, and if it exceeds limit scales the
// gradients by limit/(norm + 1e-6), as PyTorch's clip_grad_norm_ does. It returns the norm before clipping; with an
// infinite limit it only measures. The norm is L2Norm unless another is given. If a gradient is not finite it fails on every
// rank, naming a parameter, and changes nothing.
//
// The norm is computed exactly and rounded at the end, so that it has the same bits under every strategy and wrap policy.
func (s *Sharded) ClipGradNorm(ctx context.Context, limit float64, kind ...Norm) (norm float64, err error) {
	q := ranks.Ask{Call: "ClipGradNorm", Argument: limit}
	if len(kind) > 0 && kind[0] == InfNorm {
		q.Call = "ClipGradNorm of the infinity norm"
	}
	err = s.err
	if err == nil {
		err = s.pending.reduced()
	}
	if err == nil && len(kind) > 0 {
		err = kind[0].check()
	}
	if err == nil && !(limit > 0) {
		err = fmt.Errorf("limit is %v, want a positive number", limit)
	}
	if err == nil {
		q.Value, err = s.largestGrad()
	}
	ans, err := s.ask(ctx, &q, err)
	if err != nil {
		return 0, err
	}
	if norm = ans.Largest; len(kind) == 0 || kind[0] == L2Norm {
		if norm, err = s.l2(ctx, norm); err != nil {
			return 0, err
		}
	}
	if math.IsInf(norm, 0) {
		return 0, fmt.Errorf("fsdp: rank %d: ClipGradNorm: the norm of the gradients overflows", s.cfg.Group.Rank())
	}
	if c := limit / (norm + 1e-6); c < 1 {
		s.ScaleGrads(c)
	}
	return norm, nil
}

// ScaleGrads multiplies all gradients in shards by c. It is no collective: every rank must do the same.
func (s *Sharded) ScaleGrads(c float64) {
	if s.err == errClosed {
		return
	}
	for _, g := range s.trained() {
		g.scaleGrad(c)
	}
}

// trained returns the groups that have gradients.
func (s *Sharded) trained() []*flatGroup {
	var list []*flatGroup
	for _, g := range s.groups {
		if g.grad != nil {
			list = append(list, g)
		}
	}
	return list
}

// largestGrad returns the largest magnitude of this rank's gradients, or an error that names one that is not finite.
func (s *Sharded) largestGrad() (float64, error) {
	largest := 0.0
	for _, g := range s.trained() {
		m := maxAbs(g.vec(g.grad.Data, 0, g.Flat.ShardLen()))
		if m-m != 0 {
			return m, fmt.Errorf("the gradient of %s is not finite", g.nonFinite())
		}
		largest = max(largest, m)
	}
	return largest, nil
}

// l2 returns the L2 norm of the gradients, none of which is larger than bound.
func (s *Sharded) l2(ctx context.Context, bound float64) (float64, error) {
	mine := vec.NewSquares(bound)
	for _, g := range s.trained() {
		if g.Ranks.Counts() {
			addSquares(&mine, g.vec(g.grad.Data, 0, g.Flat.ShardLen()))
		}
	}
	words := mine.Words()
	if err := s.cfg.Group.AllReduce(comm.Of(words[:]).Named("gradient norm"), comm.Sum).Wait(ctx); err != nil {
		return 0, s.broken(fmt.Errorf("ClipGradNorm: %w", err))
	}
	all := vec.NewSquares(bound)
	all.Merge(words)
	return all.Norm(), nil
}

// GradNorms returns the norm of the gradient of each parameter by name, on every rank, for logging. Those that have no
// gradient are not in it. One that is not finite has a norm that is not.
func (s *Sharded) GradNorms(ctx context.Context, kind Norm) (map[string]float64, error) {
	err := s.err
	if err == nil {
		err = s.pending.reduced()
	}
	if err == nil {
		err = kind.check()
	}
	if err := s.agree(ctx, ranks.Ask{Call: "GradNorms", Argument: float64(kind)}, err); err != nil {
		return nil, err
	}
	norms := make(map[string]float64)
	for _, g := range s.trained() {
		list, err := g.norms(ctx, kind)
		if err != nil {
			return nil, s.broken(fmt.Errorf("GradNorms of group %s: %w", g.Name, err))
		}
		for i, p := range g.Params {
			if s.present[p] {
				norms[g.Flat.Params()[i].Name] = list[i]
			}
		}
	}
	return norms, nil
}

// norms returns the norm of the gradient of each parameter in the group.
func (f *flatGroup) norms(ctx context.Context, kind Norm) ([]float64, error) {
	largest := make([]float64, len(f.Params))
	for _, seg := range f.Segments() {
		m := maxAbs(f.vec(f.grad.Data, seg.At, seg.Len))
		if m != m { // a maximum over ranks may lose a NaN
			m = math.Inf(1)
		}
		largest[seg.Param] = max(largest[seg.Param], m)
	}
	if err := f.mesh.Shard.AllReduce(comm.Of(largest).Named(f.Name), comm.Max).Wait(ctx); err != nil || kind == InfNorm {
		return largest, err
	}
	const words = 4
	sums := make([]float64, words*len(f.Params))
	for _, seg := range f.Segments() {
		squares := vec.NewSquares(largest[seg.Param])
		addSquares(&squares, f.vec(f.grad.Data, seg.At, seg.Len))
		w := squares.Words()
		copy(sums[words*seg.Param:], w[:])
	}
	if err := f.mesh.Shard.AllReduce(comm.Of(sums).Named(f.Name), comm.Sum).Wait(ctx); err != nil {
		return nil, err
	}
	for i, bound := range largest {
		squares := vec.NewSquares(bound)
		squares.Merge([words]float64(sums[words*i:]))
		largest[i] = squares.Norm()
	}
	return largest, nil
}

// Unscale divides the gradients by the scale of l, which the losses were multiplied by (Scale(l.Scale()) in Backward), and
// updates l. If a gradient on any rank is not finite, it returns false on every rank and drops the gradients, so that the
// step is to be left out: call it once a step, after the last Backward and before ClipGradNorm.
func (s *Sharded) Unscale(ctx context.Context, l *optim.LossScaler) (finite bool, err error) {
	q := ranks.Ask{Call: "Unscale"}
	if err = s.err; err == nil {
		err = s.pending.reduced()
	}
	if err == nil && l == nil {
		err = errors.New("there is no LossScaler")
	}
	if err == nil {
		q.Argument = l.Scale()
		if _, infinite := s.largestGrad(); infinite != nil {
			q.Value = 1
		}
	}
	ans, err := s.ask(ctx, &q, err)
	if err != nil {
		return false, err
	}
	finite = ans.Largest == 0
	if finite {
		s.ScaleGrads(1 / l.Scale())
	} else {
		s.ZeroGrad()
	}
	l.Update(finite)
	return finite, nil
}

// nonFinite returns the name of the first parameter whose gradient on this rank is not finite, or "".
func (f *flatGroup) nonFinite() string {
	for _, seg := range f.Segments() {
		if m := maxAbs(f.vec(f.grad.Data, seg.At, seg.Len)); m-m != 0 {
			return seg.Interval.String()
		}
	}
	return ""
}

func maxAbs(v optim.Host) float64 {
	if v.F64 != nil {
		return vec.MaxAbs(v.F64)
	}
	return float64(vec.MaxAbs(v.F32))
}

func addSquares(s *vec.Squares, v optim.Host) {
	if v.F64 != nil {
		vec.AddSquares(s, v.F64)
	} else {
		vec.AddSquares(s, v.F32)
	}
}
