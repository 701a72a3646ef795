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
	spinTime     = 20 * time.Microsecond // without letting others run
	sharedYields = 200                   // rounds through the schedulers after that
	crowdedSpins = 10                    // looks, where ranks share processors
	crowdedYield = 50
	longYield    = time.Millisecond      // when others need the processor so much, sleep
	nap          = 10 * time.Millisecond // the longest that a waiter does not look
)

// eagerness returns how often a waiter looks at once, and then between letting
// others run, before it sleeps. Processors differ much in the length of a pause.
func eagerness(crowded bool) (spins, yields int) {
	if crowded {
		return crowdedSpins, crowdedYield
	}
	const sample = 256
	begin := time.Now()
	for range sample {
		shm.Pause(1)
	}
	each := max(time.Since(begin)/sample, 1)
	return max(int(spinTime/each), crowdedSpins), sharedYields
}

// rest is called when there is nothing to do but wait, and returns for another
// look. It returns true when that has been so for long enough to look closely.
func (w *waiter) rest() (long bool) {
	w.tries++
	d := w.s.domain
	switch {
	case w.tries < d.spins:
		shm.Pause(1)
		if w.tries%256 == 0 {
			runtime.Gosched()
		}
	case w.tries < d.spins+d.yields:
		begin := time.Now()
		runtime.Gosched()
		shm.Yield()
		if time.Since(begin) > longYield {
			w.tries = d.spins + d.yields
		}
	case !w.armed:
		h := w.s.board.head()
		h.sleepers.Add(1)
		w.armed, w.rung = true, h.bell.Load()
		return true
	default:
		shm.Wait(&w.s.board.head().bell, w.rung, nap)
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
// the given others.
func (s *shared) timedOut(ranks []int, seq uint64, c *Call) error {
	return s.accuse(ranks, seq, fmt.Errorf("rank %d waited for ranks %v in %s: %w for %v",
		s.rank, ranks, c.numbered(seq), ErrTimeout, s.timeout))
}

// accuse blames one of the suspects for err, or this rank if there are none.
func (s *shared) accuse(suspects []int, seq uint64, err error) error {
	if len(suspects) == 0 {
		return s.blame(err)
	}
	rank, err := convict(s.report, suspects, seq, err)
	return &RankError{s.name, rank, err}
}
