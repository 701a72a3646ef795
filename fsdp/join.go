package fsdp

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
)

// Join ranges over the batches of this rank. When they are used up it goes on as long as any rank
// has one: ranks may have different numbers of batches, none included. Sharded training needs every
// rank in every collective, since each owns a part of every parameter. Without Join the ranks that
// have more batches get an error, in place of waiting for the others for ever.
//
//	for batch, err := range m.Join(ctx, loader(g.Rank(), g.Size())) {
//		loss, err := m.Forward(ctx, batch...) // of nothing: 0
//		err = m.Backward(ctx)
//		_, err = m.ClipGradNorm(ctx, 1)
//		err = opt.Step(lr)
//		m.ZeroGrad()
//	}
//
// A rank that has run out gets nil batches, and its loop body does what it always does. Forward and
// Eval without a batch take part in the collectives of the pass and compute nothing: no random
// numbers, no statistics. Eval returns no results. Backward adds nothing to the sums, or what
// NoSync has left, and keeps the part of them that this rank owns. Clipping, loss scales and
// optimizers run as on the others, so the slice of the model that only this rank owns goes on
// learning. Config.Divide says what the gradients are means over. The loop ends on all ranks in the
// same place.
//
// The loop body must make the same collective calls on every rank, whether it has a batch or not. A
// rank that skips one, or leaves the loop alone, makes the next call an error on all. Loops may be
// nested: an inner Join, such as one over the steps of generation, ends on every rank when all are
// done. A second model in the same loop, such as a teacher, needs a Join of its own inside, over
// the one batch or none.
//
// Before each iteration the ranks exchange a flag. An error of one of them, such as a panic of its
// data, ends the loop on all, with that error as the last thing it yields. If one rank leaves the
// loop early, all must, and the inner one of nested loops first. In an inner loop within an
// iteration of Dummy, batches count for nothing either.
func (s *Sharded) Join(ctx context.Context, data iter.Seq[[]Tensor], opts ...JoinOption) iter.Seq2[[]Tensor, error] {
	return func(yield func([]Tensor, error) bool) {
		var o joinOptions
		for _, opt := range opts {
			if opt != nil {
				opt(&o)
			}
		}
		next, stop := iter.Pull(data)
		defer stop()
		outer, outerDummy, depth := s.joined, s.dummy, len(s.loops)
		defer func() { s.joined, s.dummy, s.loops = outer, outerDummy, s.loops[:depth] }()
		s.loops = append(s.loops, 0)
		for more := true; ; {
			s.joined, s.dummy, s.loops = outer, outerDummy, s.loops[:depth+1]
			s.loops[depth]++
			batch, err := []Tensor(nil), s.may("Join")
			if err == nil && data == nil {
				err = errors.New("the data is nil")
			}
			if err == nil && more {
				err = ranks.Guarded("the data", func() error { batch, more = next(); return nil })
			}
			another, err := o.ask(ctx, s, more, err)
			if err != nil {
				yield(nil, err)
				return
			}
			if !more && o.dummy != nil {
				s.dummy, batch = true, o.dummy
			} else if !more {
				s.joined = true
			}
			if !another || !yield(batch, nil) {
				return
			}
		}
	}
}

// ask exchanges the flags of an iteration and tells whether there is one.
func (o *joinOptions) ask(ctx context.Context, s *Sharded, more bool, err error) (bool, error) {
	if busy := enter(s, "Join"); busy != nil {
		return false, busy
	}
	defer leave(s)
	ans, err := s.ask(ctx, &ranks.Ask{Call: o.policy.call(), Absent: !more}, err)
	switch {
	case err != nil, ans.Leader < 0, ans.Missing && o.policy == stopAtShortest:
		return false, err
	case ans.Missing && o.policy == refuseUneven:
		missing, err := s.team.Missing(ctx, !more)
		if err != nil {
			return false, s.end(s.team.Fail(fmt.Errorf("Join: %w", err)))
		}
		return false, s.end(fmt.Errorf("Join: ranks %v have no batch left, and others have", missing))
	}
	return true, nil
}

// A JoinOption changes Join.
type JoinOption func(*joinOptions)

type joinOptions struct {
	policy joinPolicy
	dummy  []Tensor
}

type joinPolicy uint8

const (
	goOn joinPolicy = iota
	stopAtShortest
	refuseUneven
)

// call names Join with the policy.
func (p joinPolicy) call() string {
	return ranks.Join + [...]string{"", " with StopAtShortest", " with RefuseUneven"}[p]
}

// StopAtShortest ends the loop on all ranks as soon as one has no batch left. What others have read
// for that iteration is lost.
func StopAtShortest() JoinOption { return func(o *joinOptions) { o.policy = stopAtShortest } }

// Dummy gives a rank that has run out this batch, in place of nil. Forward computes as if it were
// one of the rank's own, with statistics and random numbers, but Backward adds nothing to the sums.
// It is for loop bodies that look into the batch, and for models whose passes should take as long
// on every rank. In Divide it counts as no batch.
func Dummy(batch ...Tensor) JoinOption { return func(o *joinOptions) { o.dummy = batch } }

// RefuseUneven makes it an error if some ranks have a batch left and others have none. Every rank
// returns it, and it names those that have none.
func RefuseUneven() JoinOption { return func(o *joinOptions) { o.policy = refuseUneven } }
