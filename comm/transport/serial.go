package transport

import (
	"context"
	"errors"
	"fmt"
	"github.com/gofsdp/gofsdp/comm/internal/park"
	"github.com/gofsdp/gofsdp/comm/internal/ticket"
	"sync"
	"time"
)

// Serial is a [Group] whose collectives a [Backend] executes one after another.
//
// A goroutine that waits runs the issued collectives, up to the one it waits for. The
// group's own goroutine runs collectives that no goroutine waits for yet, so that
// communication goes on during the computation. [NewSerial] makes a Serial.
type Serial struct {
	Base
	backend    Backend
	rec        Recorder
	watch      Flights
	background sync.WaitGroup
	alarm      park.Alarm    // rung when the group fails
	wake       chan struct{} // has room for one: there may be something to run
	quit       chan struct{} // closed by Close
	over       chan struct{} // closed when Close is done, with the error
	ended      error

	mu      sync.Mutex // see "The lock of a Serial"
	tickets ticket.Roll
	tasks   []Call // issued, not complete: collective s at s mod len (a power of two)
	issued  uint64
	done    uint64 // collectives complete on this rank
	running bool   // some goroutine is in Run, or about to be
	opening bool   // it is in open, which counts as collective #0
	busy    int    // other calls that Close waits for, see unlocked
	faults  []failure
	said    bool // an operation has returned the failure of the group
	closed  bool
	owing   *time.Timer // calls the goroutine of the group, see later
	owed    bool        // it will be called
	asked   time.Time   // when a rank last asked for the status of this one
	waiters park.Parking
}

// The lock of a Serial
//
// mu is never held during a wait or during a call of the backend, except for calls of
// Missing and Owes. Waits and calls may take long, and the backend may come back with bad
// news. So a method that is called with mu held may give it up on the way and take it
// again, as Wait of a [sync.Cond] does. That happens in four places, and every method
// that "gives mu up" gets to one of them:
//
//	drive     around Backend.Run, by the one goroutine that has set running
//	begin     around Beginner.Begin, likewise
//	unlocked  around any other call, counted in busy
//	park      to wait
//
// After each of them the state may have changed: there may be a failure, the handle may
// be closed, collectives may be complete. Close releases the backend when neither running
// nor busy is set.

// failure is a reason why collectives of a group cannot complete on one rank. Collectives
// before spare still may, unless there is another reason: a rank leaves, and then another
// one fails in a collective that the first has completed. So a group may have several
// failures; each spares less than the failures before it.
type failure struct {
	err   error
	spare uint64
	abort bool // groups split from this one fail as well; when a rank leaves they may go on
}

// serialIssuer is a Serial with the methods that its Base and its tickets call.
type serialIssuer Serial

// NewSerial returns the group of the given name, in which this process is rank rank of
// size. The caller connects it to the other ranks: their bad news goes to Failed and
// Left. Close ends it and the backend.
func NewSerial(name string, rank, size int, b Backend) *Serial {
	s := &Serial{
		backend: b, tasks: make([]Call, 16),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), over: make(chan struct{}),
	}
	s.Base = NewBase((*serialIssuer)(s), name, rank, size)
	s.background.Go(s.serve)
	return s
}

// Open runs join, which makes the backend ready together with the other ranks, as collective #0. It
// is called once, before the first collective. If the group fails meanwhile, Open stops the
// backend, and join must return soon; Close waits for it. Open does not pass ctx on: join must
// return when it ends. If join fails, Open reports the failure to the other ranks. If Open returns
// an error, the group is closed.
func (s *Serial) Open(ctx context.Context, join func() error) error {
	s.mu.Lock()
	s.opening, s.running = true, true
	s.mu.Unlock()
	err := join()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.fail(failure{err: s.explain(ctx, 0, err)}, false)
		err = s.fault(0)
		// The others must not wait for this rank, even if the failure is already known here.
		s.unlocked(func() { s.backend.Tell(err) })
	}
	s.opening, s.running = false, false
	s.waiters.WakeAll()
	if err == nil && s.closed {
		err = s.errClosed()
	}
	if err != nil {
		s.mu.Unlock()
		_ = s.Close() // an error of Close is not the reason
		s.mu.Lock()
	}
	return err
}

// Form implements [Issuer].
func (x *serialIssuer) Form(ctx context.Context, seq uint64, color int, ranks []int) (Group, error) {
	s := (*Serial)(x)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, s.errClosed()
	}
	var child Group
	var err error
	s.unlocked(func() {
		open, done := s.whileOpen(ctx)
		defer done()
		child, err = s.backend.Split(open, seq, color, ranks)
	})
	if err == nil && s.closed { // nothing else would close it
		s.unlocked(func() { err = errors.Join(s.errClosed(), child.Close()) })
	}
	switch {
	case err == nil:
		return child, nil
	case s.closed:
		return nil, s.errClosed()
	}
	err = SplitError(s.name, s.rank, seq, color, ranks, err)
	s.fail(failure{err: err}, true)
	if first := s.fault(seq); first != nil {
		err = first
	}
	return nil, err // even if another rank has left since, which has the group that it wanted
}

// whileOpen returns a context that also ends when the handle is closed. done releases it.
func (s *Serial) whileOpen(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-s.quit:
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil); watch.Wait() }
}

// AbortWith implements [Issuer].
func (x *serialIssuer) AbortWith(err error) {
	s := (*Serial)(x)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(failure{err: err, abort: true}, true)
}

// Failed reports that the group has failed with err on another rank.
func (s *Serial) Failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(failure{err: err}, false)
}

// Left reports that a rank has left the group after completing collective last.
// Collectives up to that one still complete here; later ones fail.
func (s *Serial) Left(rank int, last uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(failure{err: &RankError{Group: s.name, Rank: rank, Err: ErrClosed}, spare: last + 1}, false)
}

// fail makes f a failure of the group, if it stops a collective that no earlier failure
// stops, and reports it to the other ranks if tell is set. After Close it does nothing.
// Called with mu held; gives mu up.
func (s *Serial) fail(f failure, tell bool) {
	if f.spare == 0 { // not because a rank leaves
		s.alarm.Ring()
	}
	next := s.done + 1
	if s.opening {
		next = 0
	}
	if n := len(s.faults); n > 0 && s.faults[n-1].spare <= max(f.spare, next) {
		// The ranks of groups split from this one need not know that a rank has left:
		// they must still learn of an abort.
		if _, left := WhoLeft(s.name, s.faults[n-1].err); !left || !f.abort || s.closed {
			return
		}
	}
	s.faults = append(s.faults, f)
	s.waiters.WakeAll()
	s.unlocked(func() {
		if tell {
			s.backend.Tell(f.err)
		}
		if f.spare <= next {
			s.backend.Stop()
		}
	})
}

// unlocked calls f without mu, which the caller holds. Close waits for it.
func (s *Serial) unlocked(f func()) {
	s.busy++
	s.mu.Unlock()
	f()
	s.mu.Lock()
	s.busy--
	s.waiters.WakeAll()
}

// Failure returns why the first incomplete collective of this rank cannot complete, or nil.
func (s *Serial) Failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault(s.done + 1)
}

// fault returns why collective seq can no longer complete, or nil: the first
// reason, so that the answer stays the same. Called with mu held.
func (s *Serial) fault(seq uint64) error {
	for _, f := range s.faults {
		if seq >= f.spare {
			return f.err
		}
	}
	return nil
}

// Backend returns the argument of NewSerial.
func (s *Serial) Backend() Backend { return s.backend }

// Watch implements [Watcher].
func (s *Serial) Watch(f func(Flight)) (stop func()) { return s.watch.Add(f) }

// Start implements [Issuer].
func (x *serialIssuer) Start(c Call) Work {
	s := (*Serial)(x)
	k, err := s.issue(c)
	if err != nil {
		return Refused(err)
	}
	if !s.begin(k.Seq()) {
		s.call()
	}
	return k
}

// begin lets a backend that can do so begin the collective at once, if it is the next,
// and reports whether the rest can be left to its Wait.
func (s *Serial) begin(seq uint64) (begun bool) {
	b, ok := s.backend.(Beginner)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running || s.closed || s.done+1 != seq || s.fault(seq) != nil {
		return false
	}
	s.running = true
	c := s.task(seq)
	s.mu.Unlock()
	begun = b.Begin(seq, c)
	s.mu.Lock()
	s.running = false
	s.waiters.WakeAll()
	if s.issued > seq { // meanwhile, by another goroutine
		s.call()
	}
	if begun {
		s.later()
	}
	return begun
}

// Perform implements [Issuer].
func (x *serialIssuer) Perform(ctx context.Context, c Call) (uint64, error) {
	s := (*Serial)(x)
	k, err := s.issue(c)
	if err != nil {
		return 0, err
	}
	return k.Seq(), s.await(ctx, k.Seq())
}

// Seq returns the number of a collective of the group, from 1. ok is false if w belongs
// to another group or could not be issued.
func (s *Serial) Seq(w Work) (seq uint64, ok bool) {
	t, ok := w.(*ticket.Ticket)
	if !ok || t.Book().Of != ticket.Awaiter((*serialIssuer)(s)) {
		return 0, false
	}
	return t.Seq(), true
}

// call makes the goroutine of the group look for something to run.
func (s *Serial) call() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// issue records this rank's next collective and returns its ticket.
func (s *Serial) issue(c Call) (*ticket.Ticket, error) {
	invalid := s.check(&c)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch err := s.fault(s.issued + 1); {
	case s.closed:
		return nil, s.errClosed()
	case err != nil:
		s.said = true
		return nil, err
	case invalid != nil:
		s.fail(failure{err: s.Blame(invalid)}, true)
		return nil, s.fault(s.issued + 1)
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
	call := c.Signature()
	s.rec.Issue(s.issued, &call)
	s.watch.Issued(&s.Base, s.issued, &c)
	return s.tickets.Take((*serialIssuer)(s), s.issued), nil
}

// check validates a call of this rank.
func (s *Serial) check(c *Call) error {
	b, ok := s.backend.(DeviceBackend)
	if !ok {
		return c.Check(s.rank, s.size)
	}
	for _, buf := range [...]Buffer{c.Dst, c.Src} {
		if !buf.device {
			continue
		}
		if err := b.Reach(buf); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrInvalid, c.String(), err)
		}
	}
	return c.checkAnywhere(s.rank, s.size)
}

func (s *Serial) task(seq uint64) *Call { return &s.tasks[seq%uint64(len(s.tasks))] }

// Await implements [ticket.Awaiter].
func (x *serialIssuer) Await(ctx context.Context, seq uint64) error {
	return (*Serial)(x).await(ctx, seq)
}

// await runs the issued collectives up to seq, or waits for the goroutine that does, and
// returns when seq is complete or has failed. If ctx ends first, the group fails.
func (s *Serial) await(ctx context.Context, seq uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.done < seq {
		err, inRun := s.fault(seq), s.running && s.done+1 == seq
		switch {
		case err != nil && !inRun:
			s.said = true
			return err
		case err != nil: // the backend may still use its buffers
			s.park(context.Background(), seq)
		case !s.running:
			s.drive(ctx, seq)
		case !s.park(ctx, seq) && s.done < seq && s.fault(seq) == nil:
			s.fail(failure{err: s.gaveUp(s.done+1, context.Cause(ctx))}, true)
		}
	}
	return nil
}

// park waits until collective seq is complete, the group fails or a goroutine must drive,
// or for less. It returns false if ctx ended. Called with mu held; gives mu up.
func (s *Serial) park(ctx context.Context, seq uint64) bool {
	return s.waiters.Park(&s.mu, seq, ctx.Done())
}

// drive runs collectives in order until seq is complete or the group has failed. Called
// with mu held, when no other goroutine drives; gives mu up.
func (s *Serial) drive(ctx context.Context, seq uint64) {
	s.running = true
	for s.done < seq && s.fault(s.done+1) == nil {
		next := s.done + 1
		c := s.task(next)
		s.mu.Unlock()
		s.rec.Start(next)
		s.watch.Began(next)
		err := s.backend.Run(ctx, next, c)
		s.mu.Lock()
		if err != nil {
			err = s.explain(ctx, next, err)
			if s.fault(next) == nil {
				s.fail(failure{err: err}, true)
			}
			break
		}
		s.done = next
		*s.task(next) = Call{}
		s.watch.Done(next)
		s.waiters.Wake(next)
	}
	s.running = false
	s.waiters.WakeAll() // another goroutine may have to drive
	if s.done < s.issued && s.fault(s.done+1) == nil {
		s.call()
	}
	s.owe()
}

// serve runs collectives that no goroutine waits for yet, and sends answers that are owed
// for long enough.
func (s *Serial) serve() {
	for {
		select {
		case <-s.quit:
			return
		case <-s.wake:
		}
		s.mu.Lock()
		b, owes := s.backend.(Confirmer)
		owes = owes && s.owed
		s.owed = false
		switch {
		case s.running: // that goroutine does the rest
		case s.done < s.issued:
			s.drive(context.Background(), s.issued)
		case owes && len(s.faults) == 0:
			s.running = true
			s.unlocked(b.Answer)
			s.running = false
			s.waiters.WakeAll()
			s.owe() // the rest could not be sent yet
		}
		s.mu.Unlock()
	}
}

// Staging implements [Stager] with the backend's Staging, 0 if it has none.
func (s *Serial) Staging(d DType, n int) int {
	if b, ok := s.backend.(Stager); ok {
		return b.Staging(d, n)
	}
	return 0
}

// Failing returns a channel that is closed when the group fails, see the function Failing.
func (s *Serial) Failing() <-chan struct{} { return s.alarm.Bell() }

// Status returns the flight record of this rank, the answer to a Report. It also records
// that a rank has asked: if this rank times out within the next 500 ms, it first waits up
// to a second for the result of that question.
func (s *Serial) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = time.Now()
	return s.rec.Status(s.name, s.rank, s.done)
}

// Report implements [Reporter], if the backend does.
func (s *Serial) Report(ctx context.Context) ([]Status, error) {
	if r, ok := s.backend.(Reporter); ok {
		return r.Report(ctx)
	}
	return nil, fmt.Errorf("comm: group %q: its backend does not implement Reporter, so it cannot ask the other ranks", s.name)
}

// Timeout returns the limit of the backend's operations, see the function Timeout.
func (s *Serial) Timeout() time.Duration {
	if l, ok := s.backend.(limited); ok {
		return l.Timeout()
	}
	return 0
}
