package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/internal/exec"
)

// A BackwardOption changes one Backward.
type BackwardOption func(*pass)

// Scale multiplies the loss by c before it is differentiated, such as a loss scale against underflow,
// see [Sharded.Unscale]. For the mean of several forwards and backwards in a step, use [Share]. A
// second Scale multiplies the first.
func Scale(c float64) BackwardOption {
	return func(p *pass) { p.Scale, p.scaled = p.Scale*c, true }
}

// Weight gives this rank's batch a weight under Config.GradAverage = ByWeights, such as its number of
// tokens. It may be zero, but not on all ranks. For the mean over all tokens of several Backwards
// use [Share]. A pass without a batch, see [Sharded.Join], has no weight, whatever is given.
func Weight(w float64) BackwardOption { return func(p *pass) { p.weight = w } }

// Share makes the gradients of a step equal the gradients of its mean loss, for any division of its
// samples into ranks and batches. It takes all batches that this rank has in the step, including
// the batch of the Forward, and goes to each Backward of the step, on every rank. A rank without a
// batch gives none.
//
//	err = m.Backward(ctx, loader.Share()) // of a data.Loader, which has the batches
//	err = m.Backward(ctx, fsdp.Share(batch))
//
// The loss of a batch is weighted by its part of the step: by its targets that count, if the loss
// is a cross-entropy of targets in the batch (op.CrossEntropy, nn.Head), and else by its rows, the
// first dimension of its tensors. The loss must be a mean over them. Then masked targets, uneven
// ranks and micro-batches do not change the gradients of a step.
//
// Config.GradAverage must be ByRanks or ByOne, which give the same result. [Scale] multiplies the loss
// as without Share. The ranks exchange one number in each Backward.
func Share(step ...[]Tensor) BackwardOption {
	return func(p *pass) { p.share = &share{batches: step} }
}

// Source describes the data of a [Share], such as "train.bin, shuffled with seed 1"; a data.Loader does it.
// If ranks give different descriptions, Backward returns an error on every rank: they would train on some
// samples twice and leave others out. Without Share the description is ignored.
func (o BackwardOption) Source(source string) BackwardOption {
	return func(p *pass) {
		if o(p); p.share != nil {
			p.share.source = source
		}
	}
}

// share is a part of a step.
type share struct {
	batches    [][]Tensor // that this rank has in the step
	source     string     // of all ranks, or ""
	own, total float64    // targets or rows in the batch of the pass, and in all of batches
}

// measure counts the targets or rows of p's batch, and of all batches of this rank in the step.
func (p *pass) measure(s *session) error {
	h := p.share
	switch {
	case s.life.calls != nil:
		return errors.New("Share needs steps of all ranks, but inside JoinCalls each rank runs its own passes: call Backward without Share")
	case s.cfg.GradAverage == ByWeights, s.cfg.GradAverage == ByActive:
		return fmt.Errorf("Share already averages over the targets of the step, but Config.GradAverage is %v: use only one of them", s.cfg.GradAverage)
	case p.tensors != nil && !p.dummy && !slices.ContainsFunc(h.batches, p.has):
		return fmt.Errorf("the batch of the Forward is not among the %d batches that Share got: give Share the batches of the step, "+
			"or call Share of a data.Loader before it returns the next batch", len(h.batches))
	}
	for _, batch := range h.batches {
		n, err := s.counts(p, batch)
		if err != nil {
			return fmt.Errorf("Share: %w", err)
		}
		h.total += n
		if p.tensors != nil && !p.dummy && p.has(batch) {
			h.own = n
		}
	}
	return nil
}

// has reports whether the batch of p's Forward has a tensor of another batch.
func (p *pass) has(batch []Tensor) bool {
	return slices.ContainsFunc(batch, func(t Tensor) bool { return !isNil(t) && slices.Contains(p.tensors, t) })
}

// counts returns the number of targets or rows in the mean of a batch's loss.
func (s *session) counts(p *pass, batch []Tensor) (float64, error) {
	i := slices.IndexFunc(batch, func(t Tensor) bool { return !isNil(t) })
	if i < 0 {
		return 0, nil
	}
	targets := p.Targets
	if p.Absent { // without a batch nothing is compiled
		v := s.engine.Training(s.noSync)
		values, err := s.batchValues(v.Program, batch)
		if err != nil {
			return 0, err
		}
		c, err := s.engine.Compiled(v, values)
		if err != nil {
			return 0, err
		}
		targets = c.Targets
	}
	rows := 1.0
	if shape := batch[i].Shape(); len(shape) > 0 {
		rows = float64(shape[0])
	}
	for _, t := range targets {
		n, all, err := targetsOf(batch, t)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%s: %w", p.Path.Input(t.Input), err)
		case len(targets) == 1:
			return float64(n), nil
		case n < all:
			return 0, fmt.Errorf("the loss is a mean over targets of %d tensors, but in %s only %d of %d count: "+
				"no single share is right for all of them, so make the loss a sum", len(targets), p.Path.Input(t.Input), n, all)
		}
	}
	return rows, nil
}

// targetsOf returns how many targets of a batch count, and how many targets there are.
func targetsOf(batch []Tensor, t engine.Target) (counted, all int, err error) {
	if t.Input >= len(batch) || isNil(batch[t.Input]) {
		return 0, 0, nil
	}
	v, err := exec.FromBatch(batch[t.Input])
	if err == nil && v.DType != tensor.Int {
		err = fmt.Errorf("targets are %v, want integers", v.DType)
	}
	if err != nil {
		return 0, 0, err
	}
	list := exec.Data[int](v.Bytes)
	for _, target := range list {
		if target != t.Ignore {
			counted++
		}
	}
	return counted, len(list), nil
}

// Targets returns how many targets of this rank's batches have counted in the losses of all Backwards
// since Wrap, and how many there were: the others are masked, such as the padding and the questions of
// a conversation. Only the integer targets of op.CrossEntropy and nn.Head in a batch are counted. A
// program that trains on answers reports its speed in targets that count, and weighs mean losses by
// their number. Package monitor shows it.
func (s *Sharded) Targets() (counted, all int) {
	t := &s.life.targets
	return int(t.counted.Load()), int(t.all.Load())
}

// divide multiplies p's loss by its part of the step on all ranks.
func (p *pass) divide(ctx context.Context, s *session) error {
	sum := []float64{p.share.total}
	if err := s.team.Sum(ctx, sum); err != nil {
		return s.end(s.team.Fail(fmt.Errorf("Backward: %w", err)))
	}
	if sum[0] == 0 { // no target counts, of which Forward warns
		p.Scale = 0
		return nil
	}
	p.Scale *= p.share.own / sum[0]
	if s.cfg.GradAverage == ByRanks {
		p.Scale *= float64(s.cfg.virtualRanks()) // by which the sum is divided
	}
	return nil
}

// weigh multiplies p's loss by its weight relative to the mean of the weights of all ranks. The
// mean over the ranks is then the weighted one, the gradients of all passes have the same divisor,
// and none grows with the unit of the weights. Virtual ranks run one after the other: their losses are
// multiplied by the weights, and the gradients of a step divided by their sum.
func (p *pass) weigh(ctx context.Context, s *session) error {
	if p.share != nil {
		return p.divide(ctx, s)
	}
	if s.cfg.GradAverage != ByWeights && s.cfg.GradAverage != ByActive {
		return nil
	}
	if s.life.passes > 0 {
		p.Scale *= p.weight
		total, err := s.engine.Weigh(ctx, p.Turn, p.weight)
		if err == nil && p.Turn.Last() && (total == 0 || math.IsInf(total, 0)) {
			err = fmt.Errorf("Backward: the sum of the weights of the step is %v", total)
		}
		return s.end(err)
	}
	sum := []float64{p.weight}
	if s.cfg.GradAverage == ByActive {
		sum = append(sum, p.Tally(p.weight)...)
	}
	if err := s.team.Sum(ctx, sum); err != nil {
		return s.end(s.team.Fail(fmt.Errorf("Backward: %w", err)))
	}
	mean := sum[0] / float64(s.team.Size())
	if mean == 0 && s.life.calls != nil { // the ranks that have a weight run at another time
		p.Scale = 0
		return nil
	}
	if mean == 0 || math.IsInf(mean, 0) {
		return s.end(fmt.Errorf("Backward: the mean of the ranks' weights is %v", mean))
	}
	p.Scale *= p.weight / mean
	if n := len(sum) / 2; n > 0 {
		p.Shares = sum[1 : 1+n]
		for word, might := range sum[1+n:] {
			if p.Shares[word] > 0 {
				p.Shares[word] = might / p.Shares[word]
			}
		}
	}
	return nil
}
