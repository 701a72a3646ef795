package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/shm"
)

// shared is one rank's handle of a group of processes on one host.
//
// It works as an in-process group does, with its records in memory that all
// ranks map: issuing a collective posts this rank's part on the board of the
// group, and once all ranks have arrived, whoever waits executes it, for every
// rank. Ranks execute their collectives in order, one goroutine at a time: the turn.
//
//	issued ≥ published ≥ done        collectives of this rank, by number; those not published are the backlog
//	             published - 32 ≤    done of every other rank: the slots of the board
//	             reclaimed      ≤    done of all ranks
//
// What the others cannot reach costs a copy. A source outside of the domain is
// copied when it is published, into memory of this rank's segment that is kept
// until all ranks have done the collective: at most what is in flight. A
// destination outside is written by its own rank, but for an all-reduce, which
// happens in the copy. Tensors of up to a page are copied onto the board, and every
// rank computes its own result from there: one arrival and nobody waits twice.
//
// No Wait needs another rank to wait too. A rank with a private destination reads the
// sources by itself, when it waits. If that takes long, the source is copied after all,
// for that rank to read, and is free.
type shared struct {
	face
	link    *link
	domain  *domain
	memory  []byte // of the board, on rank 0
	board   board
	timeout time.Duration
	rec     recorder
	watch   flights
	alarm   alarm // rung when the group fails

	done  atomic.Uint64         // collectives complete on this rank
	fault atomic.Pointer[error] // the first failure; what was published before is ready or never
	lost  []atomic.Bool         // ranks whose process has died

	mu        sync.Mutex
	issued    uint64
	published uint64
	reclaimed uint64 // collectives whose copies are freed
	tickets   tickets
	tasks     [boardSlots]task // those in (reclaimed, published], by number mod len; see step
	backlog   []Call           // those in (published, issued]
	signed    [kinds]signed    // the latest call of each kind
	closed    bool
	detached  bool // the board is not ours any more; changed with the turn
	released  bool // and nobody reads our copies

	turn baton // of whoever executes
	// Guarded by turn.
	work    division
	private []bool // ranks that only themselves can write the destination of
	need    []int  // parts of every lane that must be finished before this rank is done
	reducer reducer
}

// task is what a rank knows about a collective that it has published.
type task struct {
	call   Call
	copied bool   // the others do not read call.Src
	staged []byte // the copy they read, nil if there is none
	moved  []byte // the copy that it was moved to later
}

var (
	_ Group     = (*shared)(nil)
	_ Allocator = (*shared)(nil)
	_ member    = (*shared)(nil)
	_ reporter  = (*shared)(nil)
	_ Watcher   = (*shared)(nil)
)

// newShared makes the group of l, all of whose ranks are in d and call newShared.
func newShared(ctx context.Context, l *link, d *domain) (Group, error) {
	n := len(l.ranks)
	s := &shared{
		link: l, domain: d, timeout: cmp.Or(l.session.cfg.Timeout, defaultTimeout),
		lost: make([]atomic.Bool, n), turn: baton{handed: make(chan struct{}, 1)},
		work: newDivision(n), private: make([]bool, n), need: make([]int, n), detached: true,
	}
	s.face = face{s, l.name, l.rank, n}
	s.turn.take() // Close waits until the ranks have met
	l.attach(s)
	d.sweep()
	ctx, done := withLimit(ctx, s.timeout)
	defer done()
	err := s.meet(ctx)
	if err != nil {
		err = s.notMade(fmt.Errorf("making the group: %w", err))
	}
	s.turn.pass()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// notMade makes err the failure of a group that could not be made, unless it has
// one, and returns that.
func (s *shared) notMade(err error) error {
	if s.failure() == nil {
		if errors.Is(err, ErrTimeout) {
			err = s.blameStraggler(s.others(), 0, err)
		} else {
			err = s.blame(err)
		}
		s.fail(err)
	}
	return s.failure()
}

// others lists all ranks but this one.
func (s *shared) others() (ranks []int) {
	for r := range s.size {
		if r != s.rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// meet finds the board, which rank 0 makes, and waits for the other ranks there.
func (s *shared) meet(ctx context.Context) (err error) {
	if err := s.failure(); err != nil { // then the memory may be gone
		return err
	}
	key, host := s.link.id, s.domain.segments[s.link.ranks[0]]
	if host == nil {
		return fmt.Errorf("rank 0 is not on this host")
	}
	if s.rank == 0 {
		if s.memory, err = host.Alloc(boardSize(s.size)); err != nil {
			return err
		}
		off, _ := host.Offset(s.memory)
		if err := host.Publish(key, off); err != nil {
			return err
		}
		defer host.Retract(key)
	}
	for {
		off, bell, rung, ok := host.Lookup(key)
		if ok {
			mem, ok := host.Bytes(off, boardSize(s.size))
			if !ok {
				return fmt.Errorf("rank 0 says that the board is at %d of its memory", off)
			}
			s.attach(mem)
			break
		}
		if err := s.patience(ctx); err != nil {
			return fmt.Errorf("waiting for rank 0: %w", err)
		}
		shm.Wait(bell, rung, nap)
	}
	h := s.board.head()
	h.joined.Add(1)
	h.bell.Add(1)
	shm.Wake(&h.bell)
	for {
		rung := h.bell.Load()
		if joined := int(h.joined.Load()); joined == s.size {
			return nil
		} else if err := s.patience(ctx); err != nil {
			return fmt.Errorf("%d of %d ranks are here: %w", joined, s.size, err)
		}
		shm.Wait(&h.bell, rung, nap)
	}
}

// attach begins to use the board in mem.
func (s *shared) attach(mem []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.board, s.detached = boardOf(mem, s.size), false
}

// patience returns why there is nothing to wait for any more, or nil.
func (s *shared) patience(ctx context.Context) error {
	if err := s.failure(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// form implements transport.
func (s *shared) form(ctx context.Context, seq uint64, color int, ranks []int) (Group, error) {
	child, err := s.link.form(ctx, seq, color, ranks)
	if err != nil {
		s.fail(splitError(s.name, s.rank, seq, color, ranks, err))
		return nil, s.failure()
	}
	return child, nil
}

// Alloc implements [Allocator].
func (s *shared) Alloc(n int) ([]byte, error) { return s.domain.own.Alloc(n) }

// Free implements [Allocator].
func (s *shared) Free(b []byte) error { return s.domain.own.Free(b) }

// Watch implements [Watcher].
func (s *shared) Watch(f func(Flight)) (stop func()) { return s.watch.add(f) }

func (s *shared) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.status(s.name, s.rank, s.done.Load())
}

func (s *shared) report(ctx context.Context) ([]Status, error) { return s.link.report(ctx) }
