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
// 2^k aligned leaves are a branch. So ranks that sum gradients in every pass are a power of two, or
// a step inside NoSync has a power of two of passes on each rank. With one rank, or one pass, there
// is only one sum.
//
// The sum over passes is kept as a binary counter: after n passes there is a sum of 2^k leaves for
// each bit k of n. The last pass adds the kept sums, the smallest first, which gives the same tree.
//
// # Leaf by leaf
//
// For other numbers of ranks, the leaves of a pass are no branch. And if the ranks do not divide
// the leaves, the last pass has a leaf for some of the ranks only:
//
//	7 leaves on 3 ranks    rank 0    rank 1    rank 2    kept by each rank, for its part
//	first pass             0         1         2         0+1, 2
//	second pass            3         4         5         (0+1)+(2+3), 4+5
//	last pass              6         -         -         the sum
//
// Here ranks that reduce do not sum. Each rank receives the gradients of its part from all ranks,
// in an all-to-all, and adds them to the binary counter one by one: it counts leaves, not passes.
// Ranks that have the same part as others, their replicas, add a piece of it each, and gather the
// pieces in the last pass. A rank without a leaf takes part with nothing: it runs the schedule
// without computing, like a rank without a batch, and the other ranks ignore the gradients that it
// sends.
//
// Hybrid strategies sum first over ranks that are a power of two. The leaves of these ranks are a
// branch, which then counts as one leaf. In the last pass some of these ranks may be without a
// leaf. They send -0, since x + -0 is x for every x.

// A Turn is the place of a pass in its step. The zero value is a separate step.
type Turn struct {
	At, Of   int
	Whole    bool // all passes of the step but the last are inside NoSync
	Leafwise bool // ranks receive the leaves of the pass one by one
	Leaves   int  // of the step, on all ranks
	Missing  bool // this rank has no leaf in the pass
}

// newTurn returns the turn of pass at of a rank.
func newTurn(at, leaves, rank, ranks int, whole bool) Turn {
	t := Turn{At: at, Of: (leaves + ranks - 1) / ranks, Whole: whole, Leaves: leaves}
	if !whole {
		t.Leafwise = t.Of > 1 && (leaves%ranks != 0 || !power(ranks))
		t.Missing = at*ranks+rank >= leaves
	}
	return t
}

// Leaf returns the turn of the leaf of a place in a leafwise pass, counted in leaves. Each place
// stands for this many ranks. ok is false if none of them has a leaf.
func (t Turn) Leaf(place, places, ranks int) (leaf Turn, ok bool) {
	leaf = Turn{At: t.At*places + place, Of: (t.Leaves + ranks - 1) / ranks}
	return leaf, leaf.At < leaf.Of
}

// An Exchange is the all-to-all of a group in a leafwise pass: each of some places adds a part of
// the elements, and stands for this many ranks.
type Exchange struct {
	Places, Ranks  int
	Elements, Part int
}

// NewExchange returns the exchange of a group.
func NewExchange(g *layout.Group) Exchange {
	r, n := &g.Ranks, g.Flat.ShardLen()
	if r.Replicas == 1 {
		return Exchange{r.Shards, 1, g.Flat.Len(), n}
	}
	return Exchange{r.Replicas, r.Shards, n, Part(n, r.Replicas)}
}

// Part returns how many of n elements each of some replicas adds. The last ones may add fewer.
func Part(n, replicas int) int {
	const align = 64
	return ((n+replicas-1)/replicas + align - 1) / align * align
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
	if e.o.Leaves == 0 {
		return Turn{}, nil
	}
	whole, n := noSync, e.team.Size()
	if e.pending > 0 {
		whole = e.whole
	}
	t := newTurn(e.pending, e.o.Leaves, e.team.Rank(), n, whole)
	switch {
	case t.At == t.Of:
		return t, fmt.Errorf("all %d micro-batches of the step have run inside NoSync: call SyncGrads or ZeroGrad next", t.Of)
	case noSync != t.Whole && !(t.Whole && t.Last()):
		return t, fmt.Errorf("micro-batch %d of %d of the step is%s inside NoSync, but the first was%s: "+
			"run all but the last one of a step inside NoSync, or none", t.At+1, t.Of, not(noSync), not(t.Whole))
	case t.Whole && e.o.Leaves%n != 0:
		return t, fmt.Errorf("inside NoSync all ranks must have the same number of micro-batches, but Config.VirtualRanks makes %d for %d ranks: "+
			"run them outside NoSync", e.o.Leaves, n)
	case t.Of > 1 && t.Whole && n > 1 && !power(t.Of):
		return t, fmt.Errorf("inside NoSync the number of micro-batches of a rank must be a power of two, but Config.VirtualRanks makes it %d: "+
			"run them outside NoSync", t.Of)
	}
	return t, nil
}

// TurnOf is Turn for a pass of a variant, for a rank that has a batch or has none.
func (e *Engine) TurnOf(v Variant, batch bool) (Turn, error) {
	if v.Eval {
		return Turn{}, nil
	}
	t, err := e.Turn(v.NoSync)
	if err == nil && t.Missing && batch {
		err = fmt.Errorf("micro-batch %d of %d of the step would belong to virtual rank %d, but Config.VirtualRanks is %d: "+
			"call Forward without a batch on this rank, or leave out the batch in Join", t.At+1, t.Of, t.VirtualRank(e.team.Rank(), e.team.Size()), t.Leaves)
	}
	return t, err
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
		case t.Leafwise:
			x := NewExchange(g)
			leaf, _ := t.Leaf(0, x.Places, x.Ranks)
			n += x.Part * g.Compute.Size() * bits.Len(uint(leaf.Of-1))
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
	if t.Leafwise {
		return e.weighLeaves(ctx, t, weight)
	}
	sum := []float64{weight}
	if !t.Whole {
		err = e.team.Sum(ctx, sum)
	}
	if err != nil {
		return 0, e.team.Fail(fmt.Errorf("summing weights: %w", err))
	}
	if sum[0] = e.addWeight(t, sum[0]); !t.Last() {
		return 0, nil
	}
	if t.Whole {
		if err := e.team.Sum(ctx, sum); err != nil {
			return 0, e.team.Fail(fmt.Errorf("summing weights: %w", err))
		}
	}
	e.weight = sum[0]
	return e.weight, nil
}

// weighLeaves is Weigh in a leafwise pass.
func (e *Engine) weighLeaves(ctx context.Context, t Turn, weight float64) (total float64, err error) {
	all := make([]float64, e.team.Size())
	all[e.team.Rank()] = weight
	if err := e.team.Sum(ctx, all); err != nil {
		return 0, e.team.Fail(fmt.Errorf("summing weights: %w", err))
	}
	for rank, w := range all {
		if leaf, ok := t.Leaf(rank, len(all), 1); ok {
			total = e.addWeight(leaf, w)
		}
	}
	if !t.Last() {
		return 0, nil
	}
	e.weight = total
	return total, nil
}

// addWeight adds the weight of a turn to the sums that it carries, keeps the sum for later turns
// and returns it.
func (e *Engine) addWeight(t Turn, weight float64) float64 {
	for k, w := range e.weights {
		if t.Merges(k) {
			weight = w + weight
		}
	}
	if !t.Last() {
		for len(e.weights) <= t.Kept() {
			e.weights = append(e.weights, 0)
		}
		e.weights[t.Kept()] = weight
	}
	return weight
}

// factor returns the total factor for gradients.
func (e *Engine) factor() float64 {
	if e.weight != 0 {
		return 1 / e.weight
	}
	return e.o.Factor
}
