package fsdp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/fsdp/internal/record"
	"github.com/gofsdp/gofsdp/fsdp/internal/state"
	"github.com/gofsdp/gofsdp/fsdp/internal/timeline"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/optim"
)

// Sharded is one rank's handle of a wrapped model. The methods that take a context are collective:
// every rank of the group calls the same ones in the same order, except for passes inside
// JoinCalls. A Sharded is for one goroutine at a time: a method that is called while another
// goroutine is in a method returns an error. ZeroGrad, ScaleGrads, Hold and Params return no error.
// They do nothing then, and the next method returns the error.
//
// Errors that ranks find before a pass starts, such as a batch of the wrong shape, a token out of
// range or a loss that is NaN, are returned on every rank. Parameters and gradients do not change.
// An error in the middle of a pass, such as a context that ends or a user's operation that fails,
// fails the group: a rank that has already finished the pass gets the error from its next call, and
// no rank can use the model any more. A context that ends before a pass may do the same, because a
// rank that stops waiting for the others has no way to learn their decision.
type Sharded struct {
	session
	saver  state.Saver  // Save and SaveAsync
	copied *arena.Block // by SaveAsync
	files  struct {
		dropped runtime.Cleanup // releases the remains

		saves, exports, loads state.Files
	}
}

// A session runs the passes of a model on this rank and makes the agreements with the other ranks.
// Sharded embeds it and adds the reading and writing of files.
type session struct {
	*arrangement
	trace  *trace // of Forward
	team   *ranks.Team
	engine *engine.Engine
	life   life
	busy   methodLock

	hashes   *record.File   // of a HashDir, or nil
	timeline *timeline.File // of a TraceDir, or nil

	noSync   bool  // inside NoSync
	turn     turn  // in the loops of Join under way
	loops    []int // iterations of these, outer first
	requests int   // collective calls so far, including calls on which ranks could not agree
	forwards int   // training passes begun so far: keys dropout
	lists    int   // calls of Params so far
}

// String returns the rank of the handle, the size of its model, and whether it can be used.
func (s *Sharded) String() string {
	elements := 0
	for _, p := range s.layout.Model.Params {
		if !p.Buffer {
			elements += p.Len()
		}
	}
	text := fmt.Sprintf("rank %d of %d: parameters %d, units %d, ", s.team.Rank(), s.team.Size(), elements, len(s.units))
	switch s.life.health {
	case running:
		return text + bytesText(s.layout.ShardBytes()) + " of parameters and gradients here"
	case broken:
		cause, _, _ := strings.Cut(s.life.cause.Error(), "\n")
		return text + "broken: " + cause
	default:
		return text + "closed"
	}
}

// Group returns the group of all ranks of the model, for collectives between its calls.
func (s *Sharded) Group() comm.Group { return s.cfg.Group }

// LogValue implements [slog.LogValuer]: it is String.
func (s *Sharded) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(s)) }

// Params returns the pieces of the trained parameters that this rank owns, with their gradients,
// for an optimizer. The memory is the model's: values may be written between passes, and both are
// valid until Freeze or Close. A parameter of which this rank owns nothing has an empty piece,
// after the others, so that all ranks can compare their optimizers. If optimizers differ between
// ranks in kind, numbers, learning rate or steps, the next pass returns an error.
//
// Initial values are drawn at their first use, such as a Forward, and are NaN before. A program may
// write values before that, and they stay. To read or scale initial values, call [Sharded.Summon]
// first.
//
// A parameter that no Backward since ZeroGrad has reached has no gradient, and an optimizer does
// not change it. If no parameter has a gradient, the first such step is a warning. Gradients of
// passes inside NoSync are not in the shards until they are reduced. An optimizer refuses to step
// before that, between a Forward and its Backward, and after Freeze and Close. On a rank with a
// gradient that is NaN or infinite it also refuses, and changes nothing. Unless all ranks refuse,
// the step is then applied in part: Forward, Eval, Save, Export, StateDict, OptimStateDict and
// Freeze return an error on every rank until a Load or Import. A ClipGradNorm before the Step finds
// such a gradient on every rank.
//
// The state of an optimizer made of these pieces is in the same memory as the shards. It is counted
// with them until Freeze or Close, even when the optimizer is no longer in use.
func (s *Sharded) Params() []optim.Param {
	if !s.busy.enterOrNote("Params") {
		return nil
	}
	defer s.busy.leave()
	return s.pieces(false)
}

// FrozenParams returns the pieces of the frozen parameters that this rank owns, such as a teacher
// that follows a student, see [optim.UpdateEMA]. They have no gradient, and no optimizer takes
// them. As with Params, the values may be written between passes: every rank writes its pieces, and
// the next pass gathers the new values. They are valid until Freeze or Close. Buffers are not among
// them.
//
// SaveOptions.TrainedOnly leaves these values out of a checkpoint. A program that changes them
// saves without it: from the second such save on, a change is an error. Load finds every change.
func (s *Sharded) FrozenParams() []optim.Param {
	if !s.busy.enterOrNote("FrozenParams") {
		return nil
	}
	defer s.busy.leave()
	s.life.frozen.lent = true
	return s.pieces(true)
}

// pieces returns the pieces of the frozen parameters, or of the others.
func (s *session) pieces(frozen bool) []optim.Param {
	if s.life.health == closed {
		return nil
	}
	s.lists++
	var list, empty []optim.Param
	for i := range s.layout.Groups {
		g := &s.layout.Groups[i]
		if g.Kind.Frozen != frozen || g.Kind.Buffer {
			continue
		}
		pieces := g.Segments()
		for k, p := range g.Params {
			if len(pieces) > 0 && pieces[0].Param == k {
				list = append(list, s.piece(i, p, pieces[0].Offset, pieces[0].At, pieces[0].Len))
				pieces = pieces[1:]
			} else {
				empty = append(empty, s.piece(i, p, 0, 0, 0))
			}
		}
	}
	return append(list, empty...)
}

// piece returns n elements of parameter p from offset on. They begin at index at of the shard of
// group i.
func (s *session) piece(i, p, offset, at, n int) optim.Param {
	frozen, shared := s.layout.Groups[i].Kind.Frozen, s.units[s.layout.Groups[i].Unit].group == nil
	l, number, shards, present := s.layout, s.lists, s.engine.Shards(), s.engine.Present()
	owner := guard{s, l}
	q := optim.Param{
		Name: l.Model.Params[p].Name, Shape: l.Model.Params[p].Shape, Offset: offset,
		Value: shards.Value(i).Slice(at, at+n), Guard: owner,
		Ready: func() error { return owner.ready(number, frozen) },
	}
	if frozen {
		q.Updated = func(u optim.Update) {
			s.life.moved = q.Name
			if shared {
				s.life.updates.add(p, u, s.life.grads)
			}
		}
		return q
	}
	q.Grad, q.Peers = shards.Grad(i).Slice(at, at+n), s.peers(p)
	q.Absent = func() bool { return !present[p] && s.missingGrad() }
	q.Alloc = func(n int) (optim.Vec, error) {
		v, err := shards.Alloc(i, n)
		if err != nil {
			return nil, fmt.Errorf("rank %d: state of group %s: %w", s.team.Rank(), l.Groups[i].Name, err)
		}
		return v, nil
	}
	q.Updated = func(u optim.Update) {
		s.life.watch.update(s, p, u)
		if s.hashes.Updated(); shared {
			s.life.updates.add(p, u, s.life.grads)
		}
	}
	q.Swapped, q.Warn = s.life.swapped, func(text string) { s.life.watch.warn(s.cfg.warner(s.team.Rank()), text) }
	return q
}

// ZeroGrad drops all gradients, including gradients that are not reduced yet. Without it, the next
// Backward adds to them.
func (s *Sharded) ZeroGrad() {
	if s.busy.enterOrNote("ZeroGrad") {
		defer s.busy.leave()
		s.life.watch.countDropped(&s.session)
		s.zeroGrad()
	}
}

func (s *session) zeroGrad() {
	if s.life.health == closed {
		return
	}
	s.life.zeroGrad()
	_ = s.engine.ZeroGrad() // a device that has failed returns the error again
	if s.life.health == running {
		s.engine.DropWhole()
	}
}

// Close frees the memory of parameters, gradients and buffers. Collective methods return an error
// afterwards. Do not use the result of Params or step an optimizer made of it: the memory may be
// unmapped. Closing again does nothing.
//
// Close is not a collective. After a Forward without a Backward it waits for the gathers under way.
// After SaveAsync it waits until the checkpoint is written, and returns its error unless Wait has.
// If a file system does not respond for the timeout of the group (FSDP_TIMEOUT), Close returns an
// error that names the file, and the memory is freed when the operation ends. While another
// goroutine is in a method, Close returns an error and does nothing.
//
// Close leaves the group open. The group should outlive the model: if it is closed first and its
// memory is gone, Close returns an error and nothing worse happens.
//
// A model that is dropped without Close is freed when the garbage collector finds that neither the
// Sharded nor an [optim.Param] of it is referred to. If it has more than memory of the Go heap,
// which is the case with Config.Threads above 1, Device, Offload.Dir, a HashDir, a TraceDir or
// shared memory of the group, that is a warning: the collector may come late, and slices of an
// [optim.Vec] must not be used from then on.
func (s *Sharded) Close() error {
	if err := s.busy.enter("Close"); err != nil {
		return err
	}
	defer s.busy.leave()
	if s.life.health == closed {
		return nil
	}
	if s.life.calls != nil {
		return fmt.Errorf("fsdp: rank %d: Close: %w", s.team.Rank(), errCalls)
	}
	var passes []*engine.Pass
	for _, p := range s.life.waiting() {
		passes = append(passes, p.Pass)
	}
	s.engine.Settle(passes...)
	err := s.saver.Settle(context.Background())
	s.life = life{health: closed}
	s.files.dropped.Stop()
	if err := errors.Join(err, s.giveBack()); err != nil {
		return fmt.Errorf("fsdp: rank %d: Close: %w", s.team.Rank(), err)
	}
	return nil
}

// A PeerError is the failure of another rank before a pass, reported on this one, so that no rank
// waits for a rank that will not come.
type PeerError struct {
	Rank    int
	Message string
}

// Error implements error.
func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Message) }

func newPeerError(rank int, message string) error { return &PeerError{rank, message} }

// ask agrees with the other ranks to run a collective method. err is why this rank cannot, or nil.
func (s *session) ask(ctx context.Context, q *ranks.Ask, err error) (ranks.Answer, error) {
	if err := s.life.localError(err); err != nil {
		return ranks.Answer{}, fmt.Errorf("fsdp: rank %d: %s: %w", s.team.Rank(), q.Call, err)
	}
	if c := s.life.calls; c != nil && c.failed != nil {
		return ranks.Answer{}, c.failed
	}
	s.requests++
	q.Model, q.Number, q.Loops = s.team.Model, s.requests, s.loops
	if err == nil {
		err = context.Cause(ctx)
	}
	begin := s.cfg.observe.profile.Now()
	ans, all := s.team.Agree(ctx, q, err)
	s.cfg.observe.profile.Agreed(q.Call, begin, s.cfg.observe.profile.Now())
	if all == nil {
		return ans, nil
	}
	if err == nil {
		all = s.withoutRank(q.Call, all)
	}
	err = fmt.Errorf("%s: %w", q.Call, all)
	if errors.As(err, new(*ranks.LostError)) && s.life.health == running {
		err = s.team.Fail(err)
	}
	return ans, s.end(err)
}

// agree is ask for calls that need only the agreement.
func (s *session) agree(ctx context.Context, q ranks.Ask, err error) error {
	_, err = s.ask(ctx, &q, err)
	return err
}

// end returns an error of a method as its user gets it. A failure is the end of the model.
func (s *session) end(err error) error {
	if err == nil {
		return nil
	}
	if failure := new(ranks.Failure); errors.As(err, &failure) {
		s.life.markBroken(failure.Err)
	}
	err = fmt.Errorf("fsdp: rank %d: %w", s.team.Rank(), err)
	if c := s.life.calls; c != nil && c.failed == nil {
		c.failed = err
	}
	return err
}
