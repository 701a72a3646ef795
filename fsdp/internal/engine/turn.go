package engine

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/internal/arena"
)

// # The tree over the passes of a step
//
// With Options.Passes a step has that number of passes. Their gradients are the leaves of one tree,
// together with the gradients of other ranks: the canonical tree of package comm, over the virtual
// ranks of all. The leaves that one reduction sums, or that one rank has, must be a branch of that
// tree. So the leaf of a pass depends on which sum comes first:
//
//	4 passes on 2 ranks      rank 0     rank 1     first
//	reduced in every pass    0 2 4 6    1 3 5 7    over the ranks: 0+1, 2+3, …, then over the passes
//	inside NoSync            0 1 2 3    4 5 6 7    over the passes: (0+1)+(2+3), then over the ranks
//
// Aligned leaves are a branch if there are 2^k of them. So ranks that reduce in every pass are a
// power of two, or a step inside NoSync has a power of two of passes on each rank. With one rank,
// or one pass, there is only one sum.
//
// The sum over passes is kept as a binary counter: after n passes there is a sum of 2^k leaves for
// each bit k of n. The last pass adds the kept sums, the smallest first, which gives the same tree.

// A Turn is the place of a pass in its step. The zero value is a separate step.
type Turn struct {
	At, Of int
	Whole  bool // all passes of the step but the last are inside NoSync
}

// Last reports whether the step is over with the pass.
func (t Turn) Last() bool { return t.At+1 >= t.Of }

// VirtualRank returns the leaf of a rank.
func (t Turn) VirtualRank(rank, ranks int) int {
	if t.Whole {
		return rank*t.Of + t.At
	}
	return t.At*ranks + rank
}

// merges returns the sums of 2^k leaves that are added to the leaf of this turn, by bit.
func (t Turn) merges() uint {
	if t.Last() {
		return uint(t.At)
	}
	return uint(t.At) &^ (uint(t.At) + 1) // the bits that carry
}

// Merges reports whether the sum of 2^k leaves is added to the leaf of this turn.
func (t Turn) Merges(k int) bool { return t.merges()>>k&1 != 0 }

// Kept returns the k of the sum of 2^k leaves that a turn that is not the last makes.
func (t Turn) Kept() int { return bits.TrailingZeros(^uint(t.At)) }

// A turner is implemented by Shards that sum the passes of a step in a tree.
type turner interface {
	// Turn sets the place of the next backward in its step. Gradients are multiplied by before when
	// they are rounded.
	Turn(t Turn, before func(*layout.Group) float32)
}

// Turn returns the place of a training pass that begins now, or an error if there is none.
func (e *Engine) Turn(noSync bool) (Turn, error) {
	t := Turn{At: e.pending, Of: e.o.Passes, Whole: noSync}
	if t.Of == 0 {
		return Turn{}, nil
	}
	if t.At > 0 {
		t.Whole = e.whole
	}
	n := e.team.Size()
	switch {
	case t.At == t.Of:
		return t, fmt.Errorf("all %d micro-batches of the step have run inside NoSync: call SyncGrads or ZeroGrad next", t.Of)
	case noSync != t.Whole && !(t.Whole && t.Last()):
		return t, fmt.Errorf("micro-batch %d of %d of the step is%s inside NoSync, but the first was%s: "+
			"run all but the last one of a step inside NoSync, or none", t.At+1, t.Of, not(noSync), not(t.Whole))
	case t.Of > 1 && t.Whole && n > 1 && !power(t.Of):
		return t, fmt.Errorf("inside NoSync the number of micro-batches of a rank must be a power of two, but Config.VirtualRanks makes it %d: "+
			"run them outside NoSync", t.Of)
	case t.Of > 1 && !t.Whole && !power(n):
		return t, fmt.Errorf("%d ranks are not a power of two: run all micro-batches of a step but the last inside NoSync", n)
	}
	return t, nil
}

func not(is bool) string {
	if is {
		return ""
	}
	return " not"
}

// power reports whether n is a power of two.
func power(n int) bool { return n&(n-1) == 0 }

// errStale is the reason why the backward of a pass whose step is over cannot run.
var errStale = errors.New("ZeroGrad or SyncGrads has ended the step since the Forward: run another Forward")

// MayTurn returns an error if the backward of p cannot come next in its step.
func (p *Pass) MayTurn(noSync bool) error {
	switch {
	case p.e.o.Passes == 0:
		return nil
	case p.Turn.At != p.e.pending:
		return errStale
	case p.NoSync != noSync:
		return errors.New("with Config.VirtualRanks, run a Forward and its Backward both inside NoSync or both outside: NoSync selects the virtual rank of the batch")
	}
	return nil
}

// turn gives the shards the place of p in its step.
func (p *Pass) turn() error {
	if p.e.o.Passes == 0 {
		return nil
	}
	s, ok := p.e.shards.(turner)
	if !ok {
		return fmt.Errorf("Config.VirtualRanks: %T does not sum passes in a tree", p.e.shards)
	}
	s.Turn(p.Turn, p.e.o.Before)
	return nil
}

// MidStep returns how many passes of a step have run, 0 if it is over.
func (e *Engine) MidStep() int {
	if e.pending == e.o.Passes {
		return 0
	}
	return min(e.pending, e.o.Passes)
}

// TreeClass returns the class of the sums that a step keeps between its passes.
func (e *Engine) TreeClass(noSync bool) arena.Class {
	if t, _ := e.Turn(noSync); t.Whole { // the error is for callers that run the pass
		return arena.Gradient
	}
	return arena.Shard
}

// TreeBytes returns the bytes of these sums, at most.
func (e *Engine) TreeBytes(noSync bool) (n int) {
	if e.o.Passes < 2 {
		return 0
	}
	t, _ := e.Turn(noSync)
	for i := range e.layout.Groups {
		g := &e.layout.Groups[i]
		switch {
		case g.Kind.Frozen:
		case t.Whole:
			n += g.GradBytes() * (bits.Len(uint(t.Of)) - 1)
		default:
			n += g.Flat.ShardLen() * g.Compute.Size() * bits.Len(uint(t.Of-1))
		}
	}
	return n
}

// Weigh adds the weight of a pass on this rank to the weights of its step, in the order of its
// gradients. With the last pass it returns the weight of the step over all ranks, by which its
// gradients are divided. It is a collective.
func (e *Engine) Weigh(ctx context.Context, t Turn, weight float64) (total float64, err error) {
	sum := []float64{weight}
	if !t.Whole {
		err = e.team.Sum(ctx, sum)
	}
	for k, w := range e.weights {
		if t.Merges(k) {
			sum[0] = w + sum[0]
		}
	}
	switch {
	case err != nil:
		return 0, e.team.Fail(fmt.Errorf("summing weights: %w", err))
	case !t.Last():
		for len(e.weights) <= t.Kept() {
			e.weights = append(e.weights, 0)
		}
		e.weights[t.Kept()] = sum[0]
		return 0, nil
	case t.Whole:
		if err := e.team.Sum(ctx, sum); err != nil {
			return 0, e.team.Fail(fmt.Errorf("summing weights: %w", err))
		}
	}
	e.weight = sum[0]
	return e.weight, nil
}

// factor returns the total factor for gradients.
func (e *Engine) factor() float64 {
	if e.weight != 0 {
		return 1 / e.weight
	}
	return e.o.Factor
}
