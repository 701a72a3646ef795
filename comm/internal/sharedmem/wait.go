package sharedmem

import (
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
	"github.com/gofsdp/gofsdp/internal/shm"
)

// A waiter polls memory that other processes change, and sleeps on the bell of the board, for a
// while at a time.
type waiter struct {
	backoff.Waiter
	s     *shared
	armed bool   // counted as a sleeper, with rung as what to sleep on
	rung  uint32 // the bell
	seen  uint64 // latest progress
}

const (
	spinTime = 20 * time.Microsecond // longer than a peer that is just as far takes
	yields   = 200
	nap      = 10 * time.Millisecond // the longest time that a waiter does not check
)

// waiting returns how a waiter polls before it sleeps. Processors differ much in the length
// of a pause, so it is measured: several times, because others may run meanwhile.
func waiting(crowded bool) backoff.Policy {
	if crowded {
		return backoff.Policy{Eager: backoff.Eager, Processes: true}
	}
	const samples, pauses = 16, 32
	best := spinTime
	for range samples {
		begin := time.Now()
		for range pauses {
			shm.Pause(1)
		}
		best = min(best, time.Since(begin))
	}
	return backoff.Policy{Spins: int(spinTime * pauses / max(best, 1)), Yields: yields, Processes: true}
}

func (s *shared) waiter() waiter {
	return waiter{Waiter: backoff.Waiter{Policy: &s.domain.waiting}, s: s}
}

// rest is called when there is nothing to do but wait, and returns for another
// look. It returns true when that has been so for long enough to look closely.
func (w *waiter) rest() (long bool) {
	switch h := w.s.board.head(); {
	case w.Rest():
	case !w.armed:
		h.sleepers.Add(1)
		w.armed, w.rung = true, h.bell.Load()
		return true
	default:
		shm.Wait(&h.bell, w.rung, nap)
		w.end()
	}
	return false
}

// end is called when the wait is over.
func (w *waiter) end() {
	if w.armed {
		w.s.board.head().sleepers.Add(-1)
		w.armed = false
	}
}

// late reports whether progress has not changed for the time limit of the group.
func (w *waiter) late(progress uint64) bool {
	if progress != w.seen {
		w.seen = progress
		w.Progress()
	}
	return w.Idle() >= w.s.timeout
}

// timedOut returns the failure of a group in which this rank has waited too long for the given
// others.
func (s *shared) timedOut(ranks []int, seq uint64, what string) error {
	return s.blameStraggler(ranks, seq, fmt.Errorf("rank %d waited for ranks %v in %s: %w",
		s.Rank(), ranks, what, transport.NoProgress(s.timeout)))
}

// blameStraggler blames one of the given ranks for err, or this one if there are none.
func (s *shared) blameStraggler(ranks []int, seq uint64, err error) error {
	if len(ranks) == 0 {
		return s.Blame(err)
	}
	rank, err := transport.Straggler(s.Report, ranks, seq, err)
	return &transport.RankError{Group: s.Name(), Rank: rank, Err: err}
}
