package comm

import (
	"fmt"
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/internal/shm"
)

// A waiter looks at memory that other processes change, at first without pause,
// then letting others run, then asleep, for a while at a time.
type waiter struct {
	s     *shared
	tries int
	armed bool      // counted as a sleeper, with rung as what to sleep on
	rung  uint32    // the bell
	seen  uint64    // how far things were
	since time.Time // then
}

const (
	sharedSpins  = 150                   // some 20 µs
	sharedYields = 50                    // rounds through the schedulers
	nap          = 10 * time.Millisecond // the longest that a waiter does not look
)

// rest is called when there is nothing to do but wait, and returns for another
// look. It returns true when that has been so for long enough to look closely.
func (w *waiter) rest() (long bool) {
	w.tries++
	s := w.s
	spins := sharedSpins
	if s.domain.crowded {
		spins = 10
	}
	switch {
	case w.tries < spins:
		shm.Pause(1)
		if w.tries%32 == 0 {
			runtime.Gosched()
		}
	case w.tries < spins+sharedYields:
		runtime.Gosched()
		shm.Yield()
	case !w.armed:
		h := s.board.head()
		h.sleepers.Add(1)
		w.armed, w.rung = true, h.bell.Load()
		return true
	default:
		shm.Wait(&s.board.head().bell, w.rung, nap)
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

// late reports whether progress has been the same for as long as the group allows.
func (w *waiter) late(progress uint64) bool {
	now := time.Now()
	if w.since.IsZero() || progress != w.seen {
		w.since, w.seen = now, progress
	}
	return now.Sub(w.since) >= w.s.timeout
}

// timedOut is the failure of a group in which this rank has waited too long for
// the given others. The first of them is blamed.
func (s *shared) timedOut(ranks []int, seq uint64, c *Call) error {
	blamed := s.rank
	if len(ranks) > 0 {
		blamed = ranks[0]
	}
	return &RankError{s.link.name, blamed, fmt.Errorf("rank %d waited for ranks %v in %s: %w for %v",
		s.rank, ranks, c.numbered(seq), ErrTimeout, s.timeout)}
}
