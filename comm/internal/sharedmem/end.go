package sharedmem

import (
	"context"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// Failure returns the error that the group has failed with, or nil.
func (s *shared) Failure() error {
	if err := s.fault.Load(); err != nil {
		return *err
	}
	return nil
}

// fail makes err the failure of the group, on all ranks, unless it has one.
func (s *shared) fail(err error) {
	defer s.alarm.Ring()
	if s.enter(err) {
		s.link.Fail(err)
	}
}

// Failing returns a channel that is closed when the group fails, see the function Failing.
func (s *shared) Failing() <-chan struct{} { return s.alarm.Bell() }

// enter makes err the failure of the group on this rank, unless it has one.
func (s *shared) enter(err error) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Failure() != nil {
		return false
	}
	if !s.detached {
		for seq := s.published; seq > s.done.Load(); seq-- {
			s.board.cancel(seq)
		}
	}
	s.fault.Store(&err)
	if !s.detached {
		s.board.ring()
	}
	return true
}

func (s *shared) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Failed implements [session.Member].
func (s *shared) Failed(err error) {
	s.enter(err)
	s.alarm.Ring()
}

// Left implements [session.Member]: collectives that all ranks have issued are ready, and complete
// without the rank that has left.
func (s *shared) Left(rank int, _ uint64) {
	s.enter(&transport.RankError{Group: s.Name(), Rank: rank, Err: transport.ErrClosed})
}

// AbortWith implements [transport.Issuer].
func (s *shared) AbortWith(err error) {
	if s.isClosed() {
		return
	}
	defer s.alarm.Ring()
	// A group that a rank has left has failed, but groups split from it may go on: they must still
	// learn of an abort.
	if first := s.enter(err); first || !s.link.Failed() {
		s.link.Fail(err)
	}
}

// Close implements [transport.Group].
func (s *shared) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.enter(s.Blame(transport.ErrClosed)) // collectives that are not ready now never will be
	s.turn.Take()
	s.settle()
	s.turn.Pass()
	return s.link.Leave(s.done.Load())
}

// settle completes the collectives that all ranks have issued and releases the board. Called with
// the turn held.
func (s *shared) settle() {
	if s.detached {
		return
	}
	for seq := s.done.Load() + 1; s.posted(seq); seq++ {
		if !s.ready(seq) || s.step(context.Background(), seq) != nil {
			break // or a rank has died, or they disagree: the others know
		}
	}
	s.mu.Lock()
	s.detached = true
	s.mu.Unlock()
	s.board.line(s.Rank()).done.Store(^uint64(0)) // this rank reads no post any more
	s.board.ring()
	s.domain.linger(s)
}

// release frees the shared memory of the handle if no rank reads it any more, or anyway, and
// reports whether that is all. The handle is closed.
func (s *shared) release(anyway bool) (all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.released {
		if !anyway && s.board.completed() < s.published {
			return false
		}
		for ; s.reclaimed < s.published; s.reclaimed++ {
			s.drop(s.task(s.reclaimed + 1))
		}
		clear(s.tasks[:])
		s.released = true
		s.board.head().released.Add(1)
	}
	if s.Rank() != 0 {
		return true
	}
	if !anyway && int(s.board.head().released.Load()) < s.Size() {
		return false
	}
	_ = s.domain.own.Free(s.memory) // cannot fail: it is our own, and freed once
	return true
}
