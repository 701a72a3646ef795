package sharedmem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/park"
	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/internal/ticket"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/shm"
)

// shared is one rank's handle of a group of processes on one host.
//
// It works as an in-process group does, with its records in memory that all ranks map: issuing a
// collective posts this rank's part on the board of the group. Once all ranks have arrived, a rank
// that waits executes it, for every rank. Ranks execute their collectives in order, one goroutine
// at a time: the turn.
//
//	issued ≥ published ≥ done        collectives of this rank, by number; those not published are the backlog
//	             published - 32 ≤    done of every other rank: the slots of the board
//	             reclaimed      ≤    done of all ranks
//
// Memory that the others cannot reach costs a copy. A source outside of the domain is copied when
// it is published, into memory of this rank's segment that is kept until all ranks have done the
// collective: at most the collectives in flight. A destination outside is written by its own rank,
// except for an all-reduce, which happens in the copy. Tensors of up to a page are copied onto the
// board, and every rank computes its own result from there: a rank arrives once, and no rank waits
// twice.
//
// No Wait needs another rank to wait too. A rank with a private destination reads the
// sources by itself, when it waits. If that takes long, the source is copied after all,
// for that rank to read, and is free.
type shared struct {
	transport.Base
	link    *session.Link
	domain  *Domain
	memory  []byte // of the board, on rank 0
	board   board
	timeout time.Duration
	rec     transport.Recorder
	watch   transport.Flights
	alarm   park.Alarm // rung when the group fails

	done  atomic.Uint64         // collectives complete on this rank
	fault atomic.Pointer[error] // the first failure; collectives before it are ready or never

	mu        sync.Mutex
	issued    uint64
	published uint64
	reclaimed uint64 // collectives whose copies are freed
	tickets   ticket.Roll
	tasks     [boardSlots]task        // those in (reclaimed, published], by number mod len; see step
	backlog   []transport.Call        // those in (published, issued]
	signed    [transport.Kinds]signed // the latest call of each kind
	closed    bool
	detached  bool // the board is not ours any more; changed with the turn
	released  bool // and no rank reads our copies

	turn park.Baton // of the goroutine that executes
	// Guarded by turn.
	work    transport.Division
	private []bool // ranks whose destination only they can write
	need    []int  // parts of every lane that must be finished before this rank is done
	reducer transport.Reducer
}

// task is a collective that a rank has published.
type task struct {
	call   transport.Call
	copied bool   // the others do not read call.Src
	staged []byte // the copy they read, nil if there is none
	moved  []byte // the copy that it was moved to later
}

var (
	_ transport.Group     = (*shared)(nil)
	_ transport.Allocator = (*shared)(nil)
	_ session.Member      = (*shared)(nil)
	_ transport.Reporter  = (*shared)(nil)
	_ transport.Watcher   = (*shared)(nil)
)

// newShared makes the group of l, all of whose ranks are in d and call newShared.
func newShared(ctx context.Context, l *session.Link, d *Domain) (transport.Group, error) {
	n := len(l.Ranks)
	s := &shared{
		link: l, domain: d, timeout: l.Session.Config.Timeout,
		turn: park.Baton{Handed: make(chan struct{}, 1)},
		work: transport.NewDivision(n), private: make([]bool, n), need: make([]int, n), detached: true,
	}
	s.Base = transport.NewBase(s, l.Name, l.Rank, n)
	s.turn.Take() // Close waits until the ranks have met
	l.Attach(s)
	d.sweep()
	ctx, done := limit.Context(ctx, s.timeout)
	defer done()
	err := s.meet(ctx)
	if err != nil {
		err = s.notMade(fmt.Errorf("making the group: %w", err))
	}
	s.turn.Pass()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// notMade makes err the failure of a group that could not be made, unless it has one, and returns
// the failure.
func (s *shared) notMade(err error) error {
	if s.Failure() == nil {
		if errors.Is(err, transport.ErrTimeout) {
			err = s.blameStraggler(s.otherRanks(), 0, err)
		} else {
			err = s.Blame(err)
		}
		s.fail(err)
	}
	return s.Failure()
}

// otherRanks lists all ranks but this one.
func (s *shared) otherRanks() (ranks []int) {
	for r := range s.Size() {
		if r != s.Rank() {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// meet finds the board, which rank 0 makes, and waits for the other ranks there.
func (s *shared) meet(ctx context.Context) (err error) {
	if err := s.Failure(); err != nil { // then the memory may be gone
		return err
	}
	key, host := s.link.ID, s.domain.segments[s.link.Ranks[0]]
	if host == nil {
		return fmt.Errorf("rank 0 is not on this host")
	}
	if s.Rank() == 0 {
		if s.memory, err = host.Alloc(boardSize(s.Size())); err != nil {
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
			mem, ok := host.Bytes(off, boardSize(s.Size()))
			if !ok {
				return fmt.Errorf("rank 0 gives offset %d for the board, which is outside of its shared memory", off)
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
		if joined := int(h.joined.Load()); joined == s.Size() {
			return nil
		} else if err := s.patience(ctx); err != nil {
			return fmt.Errorf("%d of %d ranks have joined: %w", joined, s.Size(), err)
		}
		shm.Wait(&h.bell, rung, nap)
	}
}

// attach begins to use the board in mem.
func (s *shared) attach(mem []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.board, s.detached = boardOf(mem, s.Size()), false
}

// patience returns the reason to stop waiting, or nil.
func (s *shared) patience(ctx context.Context) error {
	if err := s.Failure(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Form implements [transport.Issuer].
func (s *shared) Form(ctx context.Context, seq uint64, color int, ranks []int) (transport.Group, error) {
	child, err := s.link.Form(ctx, seq, color, ranks)
	if err != nil {
		s.fail(transport.SplitError(s.Name(), s.Rank(), seq, color, ranks, err))
		return nil, s.Failure()
	}
	return child, nil
}

// Alloc implements [transport.Allocator].
func (s *shared) Alloc(n int) ([]byte, error) { return s.domain.own.Alloc(n) }

// Free implements [transport.Allocator].
func (s *shared) Free(b []byte) error { return s.domain.own.Free(b) }

// Watch implements [transport.Watcher].
func (s *shared) Watch(f func(transport.Flight)) (stop func()) { return s.watch.Add(f) }

func (s *shared) Status() transport.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Status(s.Name(), s.Rank(), s.done.Load())
}

func (s *shared) Report(ctx context.Context) ([]transport.Status, error) { return s.link.Report(ctx) }

// Timeout returns the limit of operations, see the function Timeout.
func (s *shared) Timeout() time.Duration { return s.timeout }
