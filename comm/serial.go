package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Serial is a [Group] whose collectives a [Backend] executes one after another.
//
// Whoever waits runs what has been issued, up to the collective it waits for; a
// goroutine of the group's own runs what nobody waits for yet, so that
// communication goes on beside the computation. A Serial is made by [NewSerial].
type Serial struct {
	name       string
	rank, size int
	backend    Backend
	rec        recorder
	tickets    tickets
	background sync.WaitGroup
	wake       chan struct{} // has room for one: there may be something to run
	quit       chan struct{} // closed by Close

	mu      sync.Mutex
	tasks   []Call // issued, not complete: collective s at s mod len (a power of two)
	issued  uint64
	done    uint64 // collectives complete on this rank
	running bool   // some goroutine is in Run, or about to be
	fault   failure
	closed  bool
	parked  []parked        // waiters
	chans   []chan struct{} // empty, for reuse
}

// failure is the sticky error of a group on one rank. Collectives up to spare
// may still complete; the zero value is no failure.
type failure struct {
	err   error
	spare uint64
}

// parked is a waiter: it is woken when collective seq is complete or the group
// fails, or somebody has to run it.
type parked struct {
	seq uint64
	ch  chan struct{}
}

// Close waits this long for operations that this rank has issued and others may
// not have, and a broken connection this long for its cause to become known.
const grace = time.Second

// NewSerial returns the group of the given name, in which this process is rank
// rank of size. The caller connects it to the other ranks: their bad news goes
// to Failed and Left. Close ends it and the backend.
func NewSerial(name string, rank, size int, b Backend) *Serial {
	s := &Serial{
		name: name, rank: rank, size: size, backend: b, tasks: make([]Call, 16),
		wake: make(chan struct{}, 1), quit: make(chan struct{}),
	}
	s.background.Go(s.serve)
	return s
}

// Rank implements [Group].
func (s *Serial) Rank() int { return s.rank }

// Size implements [Group].
func (s *Serial) Size() int { return s.size }

// AllGather implements [Group].
func (s *Serial) AllGather(dst, src Buffer) Work {
	return s.work(Call{Kind: KindAllGather, Dst: dst, Src: src})
}

// ReduceScatter implements [Group].
func (s *Serial) ReduceScatter(dst, src Buffer, op Op) Work {
	return s.work(Call{Kind: KindReduceScatter, Op: op, Dst: dst, Src: src})
}

// AllReduce implements [Group].
func (s *Serial) AllReduce(buf Buffer, op Op) Work {
	return s.work(Call{Kind: KindAllReduce, Op: op, Dst: buf, Src: buf})
}

// Broadcast implements [Group].
func (s *Serial) Broadcast(buf Buffer, root int) Work {
	return s.work(Call{Kind: KindBroadcast, Root: root, Dst: buf, Src: buf})
}

// Barrier implements [Group].
func (s *Serial) Barrier(ctx context.Context) error {
	seq, err := s.issue(Call{Kind: KindBarrier})
	if err != nil {
		return err
	}
	return s.await(ctx, seq)
}

// Split implements [Group].
func (s *Serial) Split(ctx context.Context, color, key int) (Group, error) {
	pairs := make([]int64, 2*s.size)
	mine := []int64{int64(color), int64(key)}
	seq, err := s.issue(Call{Kind: KindSplit, Dst: Of(pairs), Src: Of(mine)})
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx, seq); err != nil || color < 0 {
		return nil, err
	}
	child, err := s.backend.Split(ctx, seq, color, splitRanks(pairs, color))
	if err != nil {
		err = s.blame(fmt.Errorf("making group %d of split #%d: %w", color, seq, err))
		s.fail(err)
		return nil, err
	}
	return child, nil
}

// Abort implements [Group].
func (s *Serial) Abort(err error) {
	if err == nil {
		err = errors.New("aborted")
	}
	s.fail(s.blame(err))
}

// Failed says that the group has failed with err on another rank.
func (s *Serial) Failed(err error) {
	if s.enter(failure{err: err}) {
		s.backend.Stop()
	}
}

// Left says that a rank has left the group after completing collective last.
// What it has completed the others still will; anything later fails.
func (s *Serial) Left(rank int, last uint64) {
	err := &RankError{Group: s.name, Rank: rank, Err: ErrClosed}
	if s.enter(failure{err, last}) {
		s.backend.Stop()
	}
}

// Close implements [Group].
func (s *Serial) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	issued := s.issued
	s.mu.Unlock()

	// What every rank has issued completes. What some rank has not is told from
	// it by time only, so that closing takes no agreement.
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	_ = s.advance(ctx, issued, false) // an error says that some rank had not
	cancel()
	if s.enter(failure{err: s.blame(ErrClosed)}) {
		s.backend.Stop()
	}
	close(s.quit)
	s.background.Wait()
	s.mu.Lock()
	for s.running { // a waiter that lets go now
		s.park(context.Background(), 0)
	}
	last := s.done
	clear(s.tasks)
	s.mu.Unlock()
	return s.backend.Leave(last)
}

// blame says that the group failed because of err on this rank.
func (s *Serial) blame(err error) error { return &RankError{Group: s.name, Rank: s.rank, Err: err} }

// fail makes err the failure of the group, here and on all other ranks.
func (s *Serial) fail(err error) {
	s.mu.Lock()
	known := s.fault.err != nil
	s.mu.Unlock()
	stop := s.enter(failure{err: err})
	if !known {
		s.backend.Tell(err)
	}
	if stop {
		s.backend.Stop()
	}
}

// enter makes f the failure of the group, unless it has one that leaves as
// little to complete, and reports whether the backend must stop now.
func (s *Serial) enter(f failure) (stop bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fault.err == nil:
		s.fault = f
	case f.spare < s.fault.spare: // the first error stays, but spares no more than f does
		s.fault.spare = f.spare
	default:
		return false
	}
	s.wakeAll()
	return s.fault.spare <= s.done
}

// doomed reports whether collective seq can no longer complete. Called with mu held.
func (s *Serial) doomed(seq uint64) bool { return s.fault.err != nil && seq > s.fault.spare }

// work issues c and returns its handle, or one that gives the error.
func (s *Serial) work(c Call) Work {
	seq, err := s.issue(c)
	if err != nil {
		return failed{err}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return s.tickets.ticket(s, seq)
}

// awaiter is what tickets are for.
type awaiter interface {
	await(ctx context.Context, seq uint64) error
}

// ticket is the Work of collective seq.
type ticket struct {
	of  awaiter
	seq uint64
}

// Wait implements [Work].
func (t *ticket) Wait(ctx context.Context) error { return t.of.await(ctx, t.seq) }

// tickets makes tickets.
type tickets struct {
	mu    sync.Mutex
	sheet sheet[ticket]
}

func (t *tickets) ticket(of awaiter, seq uint64) *ticket {
	t.mu.Lock()
	k := t.sheet.next()
	t.mu.Unlock()
	*k = ticket{of, seq}
	return k
}

// issue records this rank's next collective and returns its number.
func (s *Serial) issue(c Call) (uint64, error) {
	if err := c.check(s.rank, s.size); err != nil {
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return 0, s.blame(ErrClosed)
		}
		err = s.blame(err)
		s.fail(err)
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, s.blame(ErrClosed)
	}
	if s.doomed(s.issued + 1) {
		return 0, s.fault.err
	}
	if s.issued-s.done == uint64(len(s.tasks)) {
		tasks := make([]Call, 2*len(s.tasks))
		for q := s.done + 1; q <= s.issued; q++ {
			tasks[q%uint64(len(tasks))] = *s.task(q)
		}
		s.tasks = tasks
	}
	s.issued++
	*s.task(s.issued) = c
	s.rec.issue(s.issued, &c)
	return s.issued, nil
}

func (s *Serial) task(seq uint64) *Call { return &s.tasks[seq%uint64(len(s.tasks))] }

// await returns when collective seq is complete or has failed. If ctx ends
// first, the group fails.
func (s *Serial) await(ctx context.Context, seq uint64) error { return s.advance(ctx, seq, true) }

// advance runs what has been issued up to collective seq, or waits for whoever
// does. If ctx ends first the group fails, if it may; otherwise that is the error.
func (s *Serial) advance(ctx context.Context, seq uint64, mayFail bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.done < seq {
		switch inRun := s.running && s.done+1 == seq; {
		case s.doomed(seq) && !inRun: // else the backend may still be in its buffers
			return s.fault.err
		case !s.running:
			if err := s.drive(ctx, seq); err != nil && !s.doomed(seq) {
				if !mayFail && ctx.Err() != nil {
					return err
				}
				s.mu.Unlock()
				s.fail(err)
				s.mu.Lock()
			}
		case s.doomed(seq):
			s.park(context.Background(), seq)
		case !s.park(ctx, seq):
			if !mayFail {
				return context.Cause(ctx)
			}
			err := s.gaveUp(s.done+1, context.Cause(ctx))
			s.mu.Unlock()
			s.fail(err)
			s.mu.Lock()
		}
	}
	return nil
}

// drive runs collectives in order until seq is complete, and returns the error
// with which the group has to fail, if any. Called with mu held, when nobody else
// drives; it gives mu up meanwhile.
func (s *Serial) drive(ctx context.Context, seq uint64) (err error) {
	s.running = true
	for s.done < seq && err == nil && !s.doomed(s.done+1) {
		next := s.done + 1
		c := s.task(next)
		s.mu.Unlock()
		s.rec.start(next)
		err = s.backend.Run(ctx, next, c)
		s.mu.Lock()
		if err != nil {
			err = s.explain(ctx, next, err)
			break
		}
		s.done = next
		*s.task(next) = Call{}
		s.rec.complete(next)
		s.wakeDone()
	}
	s.running = false
	s.wakeAll() // somebody else may have to drive
	if s.done < s.issued && s.fault.err == nil {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return err
}

// explain turns what Run returned for collective seq into the failure of the
// group. Called with mu held, which it gives up to wait.
func (s *Serial) explain(ctx context.Context, seq uint64, err error) error {
	if s.doomed(seq) {
		return s.fault.err
	}
	if ctx.Err() != nil {
		return s.gaveUp(seq, context.Cause(ctx))
	}
	if errors.Is(err, ErrLost) {
		// Connections end when a rank fails for another reason, which it has told
		// before, but elsewhere: let that news overtake.
		late, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		for !s.doomed(seq) && s.park(late, ^uint64(0)) {
		}
		if s.doomed(seq) {
			return s.fault.err
		}
	}
	var blame *RankError
	var mismatch *MismatchError
	switch {
	case errors.As(err, &mismatch):
		return mismatch
	case errors.As(err, &blame):
		return blame
	case errors.Is(err, ErrTimeout):
		missing := s.backend.Missing()
		err = fmt.Errorf("rank %d waited for ranks %v in %s: %w", s.rank, missing, s.task(seq).numbered(seq), err)
		if len(missing) > 0 {
			return &RankError{Group: s.name, Rank: missing[0], Err: err}
		}
	}
	return s.blame(err)
}

// gaveUp is the failure of a rank that stopped waiting in collective seq. Called
// with mu held.
func (s *Serial) gaveUp(seq uint64, cause error) error {
	return s.blame(fmt.Errorf("waiting for ranks %v in %s: %w", s.backend.Missing(), s.task(seq).numbered(seq), cause))
}

// serve runs what nobody waits for yet.
func (s *Serial) serve() {
	for {
		select {
		case <-s.quit:
			return
		case <-s.wake:
		}
		s.mu.Lock()
		if !s.running && s.done < s.issued && s.fault.err == nil {
			if err := s.drive(context.Background(), s.issued); err != nil {
				s.mu.Unlock()
				s.fail(err)
				s.mu.Lock()
			}
		}
		s.mu.Unlock()
	}
}

// park waits until collective seq is complete, the group fails or somebody has to
// drive; it may return early. It returns false if ctx ended. Called with mu held,
// which it gives up meanwhile.
func (s *Serial) park(ctx context.Context, seq uint64) bool {
	ch := s.channel()
	s.parked = append(s.parked, parked{seq, ch})
	s.mu.Unlock()
	ended := false
	select {
	case <-ch:
		s.mu.Lock()
	case <-ctx.Done():
		ended = true
		s.mu.Lock()
		if i := slices.IndexFunc(s.parked, func(p parked) bool { return p.ch == ch }); i >= 0 {
			s.parked = slices.Delete(s.parked, i, i+1)
		} else {
			<-ch // woken as well
		}
	}
	s.chans = append(s.chans, ch)
	return !ended
}

// channel takes an empty channel to park on. Called with mu held.
func (s *Serial) channel() chan struct{} {
	if k := len(s.chans); k > 0 {
		ch := s.chans[k-1]
		s.chans = s.chans[:k-1]
		return ch
	}
	return make(chan struct{}, 1)
}

// wakeAll wakes every waiter, wakeDone those whose collective is complete. Both
// are called with mu held.
func (s *Serial) wakeAll() {
	for _, p := range s.parked {
		p.ch <- struct{}{} // has room: a channel is parked once and drained before reuse
	}
	clear(s.parked)
	s.parked = s.parked[:0]
}

func (s *Serial) wakeDone() {
	kept := s.parked[:0]
	for _, p := range s.parked {
		if p.seq <= s.done {
			p.ch <- struct{}{}
		} else {
			kept = append(kept, p)
		}
	}
	clear(s.parked[len(kept):])
	s.parked = kept
}

func (s *Serial) failed(err error)           { s.Failed(err) }
func (s *Serial) left(rank int, last uint64) { s.Left(rank, last) }
func (s *Serial) status() Status             { return s.rec.status(s.name, s.rank) }

func (s *Serial) report(ctx context.Context) ([]Status, error) {
	if r, ok := s.backend.(reporter); ok {
		return r.report(ctx)
	}
	return nil, fmt.Errorf("comm: group %q: its backend cannot ask the other ranks", s.name)
}
