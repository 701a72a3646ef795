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

// Join ranges over the batches of this rank. When they are used up it goes on as long as any rank
// has one: ranks may have different numbers of batches, none included. Sharded training needs every
// rank in every collective, since each owns a part of every parameter. Without Join the ranks that
// have more batches get an error, in place of waiting for the others for ever.
//
//	for batch, err := range m.Join(ctx, data) {
//		loss, err := m.Forward(ctx, batch...) // of nothing: 0
//		err = m.Backward(ctx, fsdp.Share(batch))
//		_, err = m.ClipGradNorm(ctx, 1)
//		err = opt.Step(lr)
//		m.ZeroGrad()
//	}
//
// A rank that has run out gets nil batches, as does one whose data yields nil in an iteration, and
// its loop body does what it always does. Forward and Eval without a batch take part in the
// collectives of the pass and compute nothing: no random numbers, no statistics. Eval returns no
// results. Backward adds nothing to the sums, or what NoSync has left, and keeps the part of them
// that this rank owns. Clipping, loss scales and optimizers run as on the others, so the slice of
// the model that only this rank owns goes on learning. With [Share] the gradients are means over what
// the ranks have; without it Config.Divide says what they are means over. The loop ends on all ranks in the same place.
//
// The loop body must make the same collective calls on every rank, whether it has a batch or not. A
// rank that skips one, or leaves the loop alone, makes the next call an error on all. Loops may be
// nested: an inner Join, such as one over the steps of generation, ends on every rank when all are
// done. Where ranks cannot make the same calls, see [Sharded.JoinCalls]. A second model in the same
// loop, such as a teacher, needs a Join of its own inside, over the one batch or none.
//
// Before each iteration the ranks exchange a flag. If they read different data, by a data.Loader that shares
// it out among all of them, the first exchange is an error on every rank. An error or a panic of the data of one of them
// ends the loop on all, with that error as the last thing it yields; batches before it count, one
// that comes with it does not. [Batches] makes data of batches in memory. If one rank leaves the
// loop early, all must, and the inner one of nested loops first. In an inner loop within an
// iteration of Dummy, batches count for nothing either.
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
		if err := enter(s, "Join"); err != nil {
			yield(nil, err)
			return
		}
		outer, depth := s.turn, len(s.loops)
		defer func() {
			s.busy.Lock() // a method that the loop has left to another goroutine ends first
			s.turn, s.loops = outer, s.loops[:depth]
			leave(s)
		}()
		s.loops = append(s.loops, 0)
		leave(s)
		for more := true; ; {
			err := enter(s, "Join")
			if err != nil {
				yield(nil, err)
				return
			}
			s.turn, s.loops = outer, s.loops[:depth+1]
			s.loops[depth]++
			batch, err := []Tensor(nil), s.may("Join")
			leave(s) // the data is the caller's
			if err == nil && data == nil {
				err = errors.New("the data is nil")
			}
			if err == nil && more {
				batch, err, more = next()
			}
			another, err := o.ask(ctx, s, &batch, more, err)
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

// guarded makes an error of a panic of data, where it still has the line that panicked.
func guarded(data iter.Seq2[[]Tensor, error]) iter.Seq2[[]Tensor, error] {
	return func(yield func([]Tensor, error) bool) {
		ended := false // by Join
		err := ranks.Guarded("the data", func() error {
			data(func(batch []Tensor, err error) bool { ended = !yield(batch, err); return !ended })
			return nil
		})
		switch {
		case err == nil:
		case ended: // nobody takes anything any more
			panic(err)
		default:
			yield(nil, err)
		}
	}
}

// turn says what a rank is without in an iteration of Join.
type turn struct {
	absent bool // this loop or one around it has no batch for it
	dummy  bool // this loop or one around it has a dummy batch for it
	idle   bool // this loop has no batch of its own
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

// ask exchanges the flags of an iteration and tells whether there is one. It notes what this rank is
// without, and puts the dummy batch in the place of none.
func (o *joinOptions) ask(ctx context.Context, s *Sharded, batch *[]Tensor, more bool, err error) (bool, error) {
	if busy := enter(s, "Join"); busy != nil {
		return false, busy
	}
	defer leave(s)
	q := ranks.Ask{Call: o.policy.call(), Absent: !more}
	if from := provenance.Of(*batch); from.Ranks == s.team.Size() {
		q.Source = from.Source
	}
	another, err := o.exchange(ctx, s, &q, err)
	if err != nil {
		return false, err
	}
	if s.turn.idle = *batch == nil; *batch == nil && o.dummy != nil {
		s.turn.dummy, *batch = true, o.dummy
	} else if *batch == nil {
		s.turn.absent = true
	}
	return another, nil
}

func (o *joinOptions) exchange(ctx context.Context, s *Sharded, q *ranks.Ask, err error) (bool, error) {
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
		mid := s.engine.MidStep() // a step goes on to its end, if the loop body does
		on := mid > 0 && mid != o.mid
		o.mid = mid
		return on, nil
	case ans.Missing && o.policy == refuseUneven:
		missing, err := s.team.Missing(ctx, q.Absent)
		if err != nil {
			return false, s.end(s.team.Fail(fmt.Errorf("Join: %w", err)))
		}
		return false, s.end(fmt.Errorf("Join: ranks %v have no batch left, and others have", missing))
	}
	return true, nil
}

// Any tells whether is is true on any rank, on every rank. So all ranks decide alike, where one that
// stopped alone would leave the others waiting: after the same step they stop early, because one was
// interrupted, has lost patience or is out of time.
//
//	interrupt, stop := comm.Interrupt(ctx) // Ctrl-C, SIGTERM, SIGHUP, notices of Slurm
//	defer stop()
//	for batch, err := range m.Join(ctx, data) {
//		… // a step
//		if over, err := m.Any(ctx, interrupt.Err() != nil); over || err != nil {
//			return errors.Join(err, m.Save(ctx, dir, opt))
//		}
//	}
//
// It costs what the flag of Join does: one exchange of some words. Its ctx is not interrupt, which
// would end the exchange.
func (s *Sharded) Any(ctx context.Context, is bool) (bool, error) {
	if err := enter(s, "Any"); err != nil {
		return false, err
	}
	defer leave(s)
	q := ranks.Ask{Call: "Any"}
	if is {
		q.Value = 1
	}
	ans, err := s.ask(ctx, &q, s.may("Any"))
	return ans.Largest != 0, err
}

// Mean returns the mean of x over the ranks, on every rank: Σ w·x / Σ w. A rank's weight w is 1, or
// what is given, such as its number of tokens. In Join a rank whose loop has no batch for it counts
// only with a weight that is given, in an iteration of Dummy not even then: the mean of what Forward
// returns is that over the ranks that have computed a loss. A weight of 0 leaves x out, whatever it
// is; not a number makes the mean one, too. That all weights are 0 is an error.
//
//	loss, err := m.Forward(ctx, batch...)
//	mean, err := m.Mean(ctx, loss, tokens(batch))
//
// It costs what the flag of Join does, and a sum of two numbers. For many numbers, see package
// metrics.
func (s *Sharded) Mean(ctx context.Context, x float64, weight ...float64) (float64, error) {
	if err := enter(s, "Mean"); err != nil {
		return 0, err
	}
	defer leave(s)
	w, err := 1.0, s.may("Mean")
	if len(weight) > 0 {
		w = weight[0]
	} else if s.turn.idle {
		w = 0
	}
	switch {
	case err != nil:
	case len(weight) > 1:
		err = fmt.Errorf("there are %d weights, want one", len(weight))
	case !(w >= 0), math.IsInf(w, 0):
		err = fmt.Errorf("the weight is %v", w)
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
		return 0, s.end(errors.New("Mean: the weights of all ranks are 0"))
	}
	return sums[0] / sums[1], nil
}

// JoinCalls runs f, in which each rank makes calls of its own: Forward and Backward, Eval and
// EvalProgram, any number of times and in any order. Join wants the same calls on every rank in an
// iteration; here one rank may validate while another generates, or both generate by beam search
// somewhere down in other code. JoinCalls returns on all ranks when f has returned on all.
//
//	err := m.JoinCalls(ctx, func() error {
//		for _, prompt := range mine {
//			answer, err := search(ctx, m, prompt) // calls m.EvalProgram until it has found one
//			…
//		}
//		return nil
//	})
//
// The ranks take turns. Before each pass one of them is next: the lowest rank first, then the one
// after the last, left out if its f has returned. Ranks that want the same program run it with it,
// each on its own batch. The others take part in its collectives, without computing, and are back
// where they were. So nobody waits for a rank that does not come. Where all ranks make the same
// calls these cost what they do outside, and JoinCalls itself one exchange of a flag at the end.
//
// After a Forward the ranks that have taken part run its Backward together. On one that does not
// call Backward next, the forward is discarded, as it is outside. Every Backward adds to the
// gradients of all ranks. Under ByRanks and ByOne they are the same whoever runs at the same time.
// Under ByActive and ByWeights each Backward is a mean over the ranks that run it together, which
// depends on what the others do; with no weight it adds nothing. A Forward and its Backward are
// both inside NoSync or both outside. Dropout counts the passes of each rank, and afterwards those
// of all. With Config.VirtualRanks only Eval and EvalProgram are for f.
//
// What all ranks must do alike comes before JoinCalls or after it: steps of optimizers, ZeroGrad,
// clipping, saving, Join, Hold. Inside f what returns an error is refused, as ranks are in
// different places; gradients that some ranks have dropped or scaled are an error at the next pass.
// In the body of Join, calls without a batch do nothing in f. Other models get no turns: where
// ranks wait for each other in different ones, that is an error, or a wait until the timeout if
// these have different groups.
//
// An error or a panic of f, the end of its goroutine, or an error of a call ends JoinCalls on all
// ranks, each with that error: from then on calls in f return it. The model is then what it is
// after an error outside.
func (s *Sharded) JoinCalls(ctx context.Context, f func() error) (err error) {
	if err := enter(s, "JoinCalls"); err != nil {
		return err
	}
	if err = s.may("JoinCalls"); err == errCalls {
		leave(s)
		return fmt.Errorf("fsdp: rank %d: JoinCalls: %w", s.team.Rank(), err)
	}
	err = errors.Join(err, s.discard(ctx, s.life.takeLast()))
	s.life.calls = &calls{forwards: s.forwards}
	leave(s)
	defer func() { err = endCalls(ctx, s, err) }()
	switch {
	case err != nil:
		return err
	case f == nil:
		return errors.New("the function is nil")
	}
	err = errors.New("the function has ended its goroutine, as t.FailNow does") // unless it comes back
	return ranks.Guarded("the function", f)
}

// endCalls takes part in the calls of other ranks until all are done. err is why this rank cannot,
// or nil.
func endCalls(ctx context.Context, s *Sharded, err error) error {
	s.busy.Lock() // a call that f has left to another goroutine is one of this rank's
	defer leave(s)
	if failed := s.life.calls.failed; failed != nil {
		if !errors.Is(err, failed) {
			err = errors.Join(failed, err)
		}
	} else {
		if err != nil { // what it says of the rank is said again
			err = &rewordedError{strings.TrimPrefix(err.Error(), fmt.Sprintf("fsdp: rank %d: ", s.team.Rank())), err}
		}
		err = takeTurns(ctx, s, "", nil, err)
	}
	s.forwards, s.life.calls = s.life.calls.forwards, nil
	return errors.Join(err, s.discard(ctx, s.life.takeLast()))
}

// calls is a JoinCalls under way. All ranks have the same first and forwards, and the same schedule
// of last.
type calls struct {
	first    int              // rank that leads the next round, if it has a call
	last     *engine.Compiled // that this rank has run, or nil
	forwards int              // Sharded.forwards, as if this rank had made all of them
	failed   error            // what has ended it
}

// idle tells whether a call of this rank comes to nothing: in JoinCalls others need not take part
// in a pass that has no batch.
func idle(s *Sharded, batch []Tensor) bool {
	return s.life.calls != nil && s.turn.absent && len(batch) == 0
}

// takeTurns takes part in what other ranks run until they run mine, the pass of a call of this
// rank; without a call, until no rank has one left. err is why this rank cannot go on, or nil.
func takeTurns(ctx context.Context, s *Sharded, call string, mine *engine.Compiled, err error) error {
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
			if err := s.backward(ctx, last, nil); err != nil {
				return err
			}
		}
		next := mine
		if next == nil && err == nil {
			next, err = expected(s)
		}
		if q.First, q.Past = c.first, &s.life.grads; c.last == nil {
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
		if c.first, c.last = (ans.Leader+1)%s.team.Size(), next; next == mine {
			return nil
		}
		if err := s.end(replay(ctx, s, next)); err != nil {
			return err
		}
	}
}

// expected returns what a rank without a call runs if the others run what they have run last.
func expected(s *Sharded) (*engine.Compiled, error) {
	if last := s.life.calls.last; last != nil {
		return s.engine.Absent(last.Variant, last.Needs)
	}
	return s.engine.Absent(engine.Variant{Eval: true}, nil)
}

// replay takes part in a pass of other ranks.
func replay(ctx context.Context, s *Sharded, c *engine.Compiled) error {
	p := begin(s, c, nil)
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
