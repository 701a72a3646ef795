package fsdp

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/provenance"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
)

// Join ranges over the batches of this rank. When they are used up it continues as long as any rank
// has one: ranks may have different numbers of batches, including none. Sharded training needs
// every rank in every collective, since each owns a part of every parameter. Without Join, ranks
// that have more batches get an error instead of waiting for the others forever.
//
//	for batch, err := range m.Join(ctx, data) {
//		loss, err := m.Forward(ctx, batch...) // of nothing: 0
//		err = m.Backward(ctx, fsdp.Share(batch))
//		_, err = m.ClipGradNorm(ctx, 1)
//		err = opt.Step(lr)
//		m.ZeroGrad()
//	}
//
// A rank that has run out gets nil batches, as does a rank whose data yields nil in an iteration.
// Its loop body does the same as always. Forward and Eval without a batch take part in the
// collectives of the pass and compute nothing: no random numbers, no statistics. Eval returns no
// results. Backward adds nothing to the sums except gradients left by NoSync, and keeps the part of
// the sums that this rank owns. Clipping, loss scales and optimizers run as on the other ranks, so
// the slice of the model that only this rank owns continues to learn. With [Share] the gradients
// are means over the data of the ranks; without it Config.GradAverage decides. The loop ends on all
// ranks in the same place.
//
// The loop body must make the same collective calls on every rank, whether it has a batch or not.
// If a rank skips a call, or leaves the loop alone, the next call is an error on all ranks. Loops
// may be nested: an inner Join, such as one over the steps of generation, ends on every rank when
// all are done. If ranks cannot make the same calls, see [Sharded.JoinCalls]. A second model in the
// same loop, such as a teacher, needs a separate Join inside, over the one batch or none.
//
// Before each iteration the ranks exchange a flag. If their data comes from different sources, by a
// data.Loader that divides it among all ranks, the first exchange is an error on every rank. An
// error or a panic of the data of one rank ends the loop on all, and the loop yields that error
// last. Batches before it count; a batch that comes with it does not. [Batches] makes data of
// batches in memory. If one rank leaves the loop early, all must, and the inner one of nested loops
// first. In an inner loop within an iteration of Dummy, batches count for nothing either.
func (s *Sharded) Join(ctx context.Context, data iter.Seq2[[]Tensor, error], opts ...JoinOption) iter.Seq2[[]Tensor, error] {
	return func(yield func([]Tensor, error) bool) {
		var o joinOptions
		for _, opt := range opts {
			if opt != nil {
				opt(&o)
			}
		}
		next, stop := iter.Pull2(guarded(data))
		defer stop()
		if err := s.busy.enter("Join"); err != nil {
			yield(nil, err)
			return
		}
		outer, depth := s.turn, len(s.loops)
		defer func() {
			s.busy.Lock() // a method that the loop has left to another goroutine ends first
			s.turn, s.loops = outer, s.loops[:depth]
			s.busy.leave()
		}()
		s.loops = append(s.loops, 0)
		s.busy.leave()
		for more := true; ; {
			err := s.busy.enter("Join")
			if err != nil {
				yield(nil, err)
				return
			}
			s.turn, s.loops = outer, s.loops[:depth+1]
			s.loops[depth]++
			batch, err := []Tensor(nil), s.checkCall("Join")
			s.busy.leave() // the data is the caller's
			if err == nil && data == nil {
				err = errors.New("the data is nil")
			}
			if err == nil && more {
				batch, err, more = next()
			}
			another, err := o.ask(ctx, &s.session, &batch, more, err)
			if err != nil {
				yield(nil, err)
				return
			}
			if !another || !yield(batch, nil) {
				return
			}
		}
	}
}

// guarded turns a panic of data into an error, while the panicking line is still known.
func guarded(data iter.Seq2[[]Tensor, error]) iter.Seq2[[]Tensor, error] {
	return func(yield func([]Tensor, error) bool) {
		ended := false // by Join
		err := ranks.Guarded("the data", func() error {
			data(func(batch []Tensor, err error) bool { ended = !yield(batch, err); return !ended })
			return nil
		})
		switch {
		case err == nil:
		case ended: // no caller takes a batch any more
			panic(err)
		default:
			yield(nil, err)
		}
	}
}

// turn says which parts of an iteration of Join a rank lacks.
type turn struct {
	absent bool // this loop or one around it has no batch for it
	dummy  bool // this loop or one around it has a dummy batch for it
	idle   bool // this loop itself has no batch for it
}

// Batches returns data for [Sharded.Join]: batches that are in memory, without an error.
func Batches(batches ...[]Tensor) iter.Seq2[[]Tensor, error] {
	return func(yield func([]Tensor, error) bool) {
		for _, batch := range batches {
			if !yield(batch, nil) {
				return
			}
		}
	}
}

// ask exchanges the flags of an iteration and reports whether there is one. It notes this rank's
// turn, and replaces a missing batch with the dummy batch.
func (o *joinOptions) ask(ctx context.Context, s *session, batch *[]Tensor, more bool, err error) (bool, error) {
	if busy := s.busy.enter("Join"); busy != nil {
		return false, busy
	}
	defer s.busy.leave()
	q := ranks.Ask{Call: o.policy.call(), Absent: !more, Source: s.sourceOf(*batch)}
	another, err := o.exchange(ctx, s, &q, err)
	if err != nil {
		return false, err
	}
	s.turn.idle = *batch == nil
	if *batch == nil && o.dummy != nil {
		s.turn.dummy, *batch = true, o.dummy
	} else if *batch == nil {
		s.turn.absent = true
	}
	return another, nil
}

// sourceOf describes the data that a loader divides among all ranks, if it has made the batch; else
// it returns "".
func (s *session) sourceOf(batch []Tensor) string {
	if from := provenance.Of(batch); from.Ranks == s.team.Size() {
		return from.Source
	}
	return ""
}

// compareSources is called by a pass and returns an error on every rank if loaders give the ranks
// samples of different sources. The first Forward outside of Join compares them; Join does it itself.
// err is why this rank cannot run the pass, or nil.
func (s *session) compareSources(ctx context.Context, q ranks.Ask, v engine.Variant, batch []Tensor, err error) error {
	if s.life.compared || v.Eval || len(s.loops) > 0 || s.life.calls != nil || s.team.Size() == 1 {
		return nil
	}
	q.Source = s.sourceOf(batch)
	q.Absent = q.Source == "" // it has nothing to compare
	if err := s.agree(ctx, q, err); err != nil {
		return err
	}
	s.requests-- // the call is still the same
	s.life.compared = true
	return nil
}

func (o *joinOptions) exchange(ctx context.Context, s *session, q *ranks.Ask, err error) (bool, error) {
	ans, err := s.ask(ctx, q, err)
	switch {
	case err != nil:
		return false, err
	case ans.Missing && o.policy == stopAtShortest:
		if s.engine.MidStep() > 0 { // which would not have begun on as many ranks
			s.engine.DropWhole()
		}
		return false, nil
	case ans.Leader < 0:
		mid := s.engine.MidStep() // a step continues to its end, if the loop body does
		on := mid > 0 && mid != o.mid
		o.mid = mid
		return on, nil
	case ans.Missing && o.policy == refuseUneven:
		missing, err := s.team.Missing(ctx, q.Absent)
		if err != nil {
			return false, s.end(s.team.Fail(fmt.Errorf("Join: %w", err)))
		}
		return false, s.end(fmt.Errorf("Join: ranks %v have no batch left, but other ranks have: give all ranks the same number of batches, or use another policy than RefuseUneven", missing))
	}
	return true, nil
}

// Any reports on every rank whether the argument is true on any rank. So all ranks decide alike,
// while a rank that stopped alone would leave the others waiting. For example, they stop early
// after the same step because one was interrupted or is out of time, or its loss no longer
// improves.
//
//	interrupt, stop := comm.Interrupt(ctx) // Ctrl-C, SIGTERM, SIGHUP, notices of Slurm
//	defer stop()
//	for batch, err := range m.Join(ctx, data) {
//		… // a step
//		if over, err := m.Any(ctx, interrupt.Err() != nil); over || err != nil {
//			return errors.Join(err, m.Save(ctx, dir, opt, nil))
//		}
//	}
//
// It costs the same as the flag of Join: one exchange of some words. Its ctx must not be interrupt,
// which would end the exchange.
func (s *Sharded) Any(ctx context.Context, is bool) (bool, error) {
	if err := s.busy.enter("Any"); err != nil {
		return false, err
	}
	defer s.busy.leave()
	q := ranks.Ask{Call: "Any"}
	if is {
		q.Value = 1
	}
	ans, err := s.ask(ctx, &q, s.checkCall("Any"))
	return ans.Largest != 0, err
}

// Mean returns the mean of x over the ranks, on every rank: Σ w·x / Σ w. A rank's weight w is 1, or
// the given weight, such as its number of tokens. In Join, a rank whose loop has no batch for it
// counts only with a given weight, and in an iteration of Dummy not even then: the mean of the
// results of Forward is the mean over the ranks that have computed a loss. A weight of 0 leaves x
// out, whatever its value. An x that is not a number makes the mean not a number. If all weights
// are 0, that is an error.
//
//	loss, err := m.Forward(ctx, batch...)
//	mean, err := m.Mean(ctx, loss, tokens(batch))
//
// It costs the same as the flag of Join, and a sum of two numbers. For many numbers, see package
// metrics.
func (s *Sharded) Mean(ctx context.Context, x float64, weight ...float64) (float64, error) {
	if err := s.busy.enter("Mean"); err != nil {
		return 0, err
	}
	defer s.busy.leave()
	w, err := 1.0, s.checkCall("Mean")
	if len(weight) > 0 {
		w = weight[0]
	} else if s.turn.idle {
		w = 0
	}
	switch {
	case err != nil:
	case len(weight) > 1:
		err = fmt.Errorf("got %d weights, want at most one", len(weight))
	case !(w >= 0), math.IsInf(w, 0):
		err = fmt.Errorf("the weight is %v: must be finite and not negative", w)
	}
	if _, err := s.ask(ctx, &ranks.Ask{Call: "Mean"}, err); err != nil {
		return 0, err
	}
	sums := []float64{0, 0}
	if w > 0 && !s.turn.dummy {
		sums = []float64{w * x, w}
	}
	if err := s.team.Sum(ctx, sums); err != nil {
		return 0, s.end(s.team.Fail(fmt.Errorf("Mean: %w", err)))
	}
	if sums[1] == 0 {
		return 0, s.end(errors.New("Mean: the weights of all ranks are 0: leave out the weight, or give a rank a positive one"))
	}
	return sums[0] / sums[1], nil
}

// JoinCalls runs f, in which ranks may make different calls: Forward and Backward, Eval and
// EvalProgram, any number of times and in any order. Join needs the same calls on every rank in an
// iteration. Here one rank may validate while another generates, or both may generate by beam
// search deep inside other code. JoinCalls returns on all ranks when f has returned on all.
//
//	err := m.JoinCalls(ctx, func() error {
//		for _, prompt := range mine {
//			answer, err := search(ctx, m, prompt) // calls m.EvalProgram until it has found one
//			…
//		}
//		return nil
//	})
//
// The ranks take turns. Before each pass one of them is next: the lowest rank first, then the rank
// after the last one, except ranks whose f has returned. Ranks that need the same program run it
// with this rank, each on its own batch. The other ranks take part in its collectives without
// computing, and then their own calls are still to come. So no rank waits for a rank that does not
// come. If all ranks make the same calls, these cost the same as outside, and JoinCalls itself costs
// one exchange of a flag at the end.
//
// After a Forward the ranks that have taken part run its Backward together. If a rank does not call
// Backward next, the forward is discarded there, as it is outside. Every Backward adds to the
// gradients of all ranks. Under ByRanks and ByOne the gradients do not depend on which ranks run at
// the same time. Under ByActive and ByWeights each Backward is a mean over the ranks that run it
// together, which depends on the other ranks; with no weight it adds nothing. A Forward and its
// Backward are both inside NoSync or both outside. Dropout counts the passes of each rank, and
// afterwards the passes of all. With Config.VirtualRanks f may call only Eval and EvalProgram.
//
// Operations that all ranks must do alike come before JoinCalls or after it: steps of optimizers,
// ZeroGrad, clipping, saving, Join, Hold. Inside f, methods of this kind that return an error are
// refused, as ranks are in different places. Gradients that some ranks have dropped or scaled are
// an error at the next pass. In the body of Join, calls without a batch do nothing in f. Other
// models get no turns: if ranks wait for each other in different models, that is an error, or a
// wait until the timeout if the models have different groups.
//
// An error or a panic of f, the end of its goroutine, or an error of a call ends JoinCalls on all
// ranks, each with that error. Calls in f return it from then on. The model is then in the same
// state as after an error outside.
func (s *Sharded) JoinCalls(ctx context.Context, f func() error) (err error) {
	if err := s.busy.enter("JoinCalls"); err != nil {
		return err
	}
	if err = s.checkCall("JoinCalls"); err == errCalls {
		s.busy.leave()
		return fmt.Errorf("fsdp: rank %d: JoinCalls: %w", s.team.Rank(), err)
	}
	err = errors.Join(err, s.discard(ctx, s.life.takeLast()))
	s.life.calls = &calls{forwards: s.forwards}
	s.busy.leave()
	defer func() { err = s.endCalls(ctx, err) }()
	switch {
	case err != nil:
		return err
	case f == nil:
		return errors.New("the function is nil")
	}
	err = errors.New("the function has ended its goroutine, as t.FailNow does") // unless it comes back
	return ranks.Guarded("the function", f)
}

// endCalls takes part in the calls of other ranks until all are done. err is the reason why this
// rank cannot, or nil.
func (s *session) endCalls(ctx context.Context, err error) error {
	s.busy.Lock() // a call that f has left to another goroutine is one of this rank's
	defer s.busy.leave()
	if failed := s.life.calls.failed; failed != nil {
		if !errors.Is(err, failed) {
			err = errors.Join(failed, err)
		}
	} else {
		if err != nil { // end adds the rank again
			err = &rewordedError{strings.TrimPrefix(err.Error(), fmt.Sprintf("fsdp: rank %d: ", s.team.Rank())), err}
		}
		err = s.takeTurns(ctx, "", nil, err)
	}
	s.forwards, s.life.calls = s.life.calls.forwards, nil
	return errors.Join(err, s.discard(ctx, s.life.takeLast()))
}

// calls is the state of a JoinCalls under way. first and forwards have the same values on all ranks,
// and last has the same schedule.
type calls struct {
	first    int              // rank that leads the next round, if it has a call
	last     *engine.Compiled // that this rank has run, or nil
	forwards int              // Sharded.forwards, as if this rank had made all of them
	failed   error            // the error that has ended it
}

// idle reports whether a call of this rank does nothing. In JoinCalls, a pass without a batch is left
// out, because the other ranks need not take part in it.
func (s *session) idle(batch []Tensor) bool {
	return s.life.calls != nil && s.turn.absent && len(batch) == 0
}

// takeTurns takes part in the passes of other ranks until they run mine, the pass of a call of this
// rank. Without a call, it ends when no rank has one left. err is the reason why this rank cannot
// continue, or nil.
func (s *session) takeTurns(ctx context.Context, call string, mine *engine.Compiled, err error) error {
	c := s.life.calls
	q := ranks.Ask{Call: "JoinCalls", Round: true}
	if call == "" {
		q.Absent = true
	} else if err != nil {
		err = fmt.Errorf("%s: %w", call, err)
	}
	for {
		if last := s.life.last; last != nil && err == nil {
			s.life.last, last.declined = nil, true
			if err := last.backward(ctx, s, nil); err != nil {
				return err
			}
		}
		next := mine
		if next == nil && err == nil {
			next, err = s.expected()
		}
		q.First, q.Past = c.first, &s.life.grads
		if c.last == nil {
			q.Past = &s.life.updates
		}
		if err == nil {
			q.Schedule = next.Hash
		}
		ans, err := s.ask(ctx, &q, err)
		if err != nil {
			return err
		}
		s.life.updates.clear()
		if ans.Leader < 0 {
			return nil
		}
		if next, err = s.engine.Agreed(ctx, next, &ans); err != nil {
			return s.end(err)
		}
		if !next.Eval {
			c.forwards++
		}
		c.first, c.last = (ans.Leader+1)%s.team.Size(), next
		if next == mine {
			return nil
		}
		if err := s.end(s.replay(ctx, next)); err != nil {
			return err
		}
	}
}

// expected returns the pass that a rank without a call takes part in if the others repeat their
// last pass.
func (s *session) expected() (*engine.Compiled, error) {
	if last := s.life.calls.last; last != nil {
		return s.engine.Absent(last.Variant, last.Needs)
	}
	return s.engine.Absent(engine.Variant{Eval: true}, nil)
}

// replay takes part in a pass of other ranks.
func (s *session) replay(ctx context.Context, c *engine.Compiled) error {
	p := s.begin(c, nil)
	if c.Eval {
		return p.Eval(ctx, nil)
	}
	err := p.Forward(ctx)
	if err == nil {
		s.life.last = &pass{Pass: p}
	}
	return err
}

// A JoinOption changes Join.
type JoinOption func(*joinOptions)

type joinOptions struct {
	policy joinPolicy
	dummy  []Tensor
	mid    int // passes of the step when no rank has had a batch left
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

// StopAtShortest ends the loop on all ranks as soon as one has no batch left. Batches that other
// ranks have read for that iteration are lost.
func StopAtShortest() JoinOption { return func(o *joinOptions) { o.policy = stopAtShortest } }

// Dummy gives a rank that has run out this batch instead of nil. Forward computes as if it were one
// of the rank's own batches, with statistics and random numbers, but Backward adds nothing to the
// sums. Dummy is for loop bodies that read the batch, and for models whose passes should take as
// long on every rank. In GradAverage it counts as no batch.
func Dummy(batch ...Tensor) JoinOption { return func(o *joinOptions) { o.dummy = batch } }

// RefuseUneven makes it an error if some ranks have a batch left and others have none. Every rank
// returns the error, which names the ranks without a batch.
func RefuseUneven() JoinOption { return func(o *joinOptions) { o.policy = refuseUneven } }
