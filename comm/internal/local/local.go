// Package local is the transport of ranks that are goroutines of one process.
package local

import (
	"context"
	"fmt"
	"github.com/gofsdp/gofsdp/comm/transport"
	"runtime"
	"sync/atomic"
	"time"
)

// A waiter of a local group spins, yields and then parks on a channel. It counts by itself: a look
// is a load of a nanosecond, and calls of a Waiter of package backoff between two looks made small
// collectives a sixth slower.
const (
	spinsFree    = 200 // looks, when there is a processor for every rank
	spinsCrowded = 20  // looks, when ranks share processors
	localYields  = 100
)

// New returns the handles of a new group of n ranks inside this process, none if n is
// not positive. A collective fails if it makes no progress for the timeout.
func New(n int, timeout time.Duration) []transport.Group {
	if n < 1 {
		return nil
	}
	t := newTeam(transport.WorldName, n, timeout)
	groups := make([]transport.Group, n)
	for r, l := range t.members {
		groups[r] = l
	}
	return groups
}

func newTeam(name string, n int, timeout time.Duration) *team {
	t := &team{name: name, timeout: timeout, children: map[*local]struct{}{}, splits: map[splitKey]*splitTeam{}}
	switch procs := runtime.GOMAXPROCS(0); {
	case procs >= n && procs > 1:
		t.spins = spinsFree
	case procs > 1:
		t.spins = spinsCrowded
	}
	for r := range n {
		l := &local{team: t}
		l.Base = transport.NewBase(l, name, r, n)
		t.members = append(t.members, l)
	}
	return t
}

// local is one rank's handle of an in-process group.
type local struct {
	transport.Base
	team    *team
	parent  *local                            // the handle it was split from, nil for the world
	reducer atomic.Pointer[transport.Reducer] // taken by a goroutine that reduces for this rank

	// Guarded by team.mu.
	issued uint64 // number of collectives this rank has issued
	works  sheet[handle]
	closed bool

	watch transport.Flights
}

// Watch implements [Watcher].
func (l *local) Watch(f func(transport.Flight)) (stop func()) {
	l.team.mu.Lock()
	l.team.watched = true
	l.team.mu.Unlock()
	return l.watch.Add(f)
}

// Failing returns a channel that is closed when the group fails, see the function Failing.
func (l *local) Failing() <-chan struct{} { return l.team.alarm.Bell() }

// AbortWith implements [transport.Issuer].
func (l *local) AbortWith(err error) {
	l.team.mu.Lock()
	defer l.team.mu.Unlock()
	l.team.fail(err)
}

func (l *local) Close() error {
	t := l.team
	t.mu.Lock()
	if l.closed {
		t.mu.Unlock()
		return nil
	}
	l.closed = true
	var due []handle // this rank's buffers are in all operations that are ready
	for _, o := range t.live {
		if s := o.state.Load(); phase(s&transport.ValueMask) == ready {
			due = append(due, handle{l, o, s >> transport.TagShift})
		}
	}
	t.leave(l.Blame(transport.ErrClosed))
	var split []*local
	for child := range t.children {
		if child.parent == l {
			split = append(split, child)
		}
	}
	t.mu.Unlock()
	for _, h := range due {
		if err := h.Wait(context.Background()); err != nil {
			return err
		}
	}
	for _, child := range split {
		if err := child.Close(); err != nil {
			return err
		}
	}
	if l.parent != nil {
		l.parent.forget(l)
	}
	return nil
}

// forget drops a closed handle that was split from l.
func (l *local) forget(child *local) {
	l.team.mu.Lock()
	defer l.team.mu.Unlock()
	delete(l.team.children, child)
}

// Start implements [transport.Issuer].
func (l *local) Start(c transport.Call) transport.Work {
	invalid := c.Check(l.Rank(), l.Size())
	l.team.mu.Lock()
	defer l.team.mu.Unlock()
	h, err := l.enter(c, invalid)
	if err != nil {
		return transport.Refused(err)
	}
	w := l.works.next()
	*w = h
	return w
}

// Perform implements [transport.Issuer].
func (l *local) Perform(ctx context.Context, c transport.Call) (uint64, error) {
	h, err := l.issue(c)
	if err == nil {
		err = h.Wait(ctx)
	}
	return h.seq, err
}

// issue records this rank's part of its next collective.
func (l *local) issue(c transport.Call) (handle, error) {
	invalid := c.Check(l.Rank(), l.Size())
	l.team.mu.Lock()
	defer l.team.mu.Unlock()
	return l.enter(c, invalid)
}

// enter is issue with mu held; invalid is the error in c, if any.
func (l *local) enter(c transport.Call, invalid error) (handle, error) {
	t := l.team
	if l.closed {
		return handle{}, l.Blame(transport.ErrClosed)
	}
	if invalid != nil {
		err := l.Blame(invalid)
		t.fail(err)
		return handle{}, err
	}
	if err := t.failure(); err != nil {
		return handle{}, err
	}
	seq := l.issued + 1
	o := t.operation(seq)
	if o.arrived == 0 {
		o.first = l.Rank()
	} else if ref := &o.Calls[o.first]; !c.Matches(ref) {
		err := mismatch(t.name, seq, o.first, ref, l.Rank(), &c)
		t.fail(err)
		return handle{}, err
	}
	l.issued = seq
	l.watch.Issued(&l.Base, seq, &c)
	o.Calls[l.Rank()] = c
	if o.arrived++; o.arrived == len(t.members) {
		t.start(o)
	}
	return handle{l, o, seq}, nil
}

// mismatch returns the error for ranks a and b, which made different calls.
func mismatch(group string, seq uint64, a int, ca *transport.Call, b int, cb *transport.Call) error {
	if a > b {
		a, ca, b, cb = b, cb, a, ca
	}
	return &transport.MismatchError{Group: group, Seq: seq, Ranks: [2]int{a, b}, Calls: [2]string{ca.String(), cb.String()}}
}

// handle is one rank's Work: collective seq, whose record is or was o.
type handle struct {
	l   *local
	o   *operation
	seq uint64
}

func (h handle) Wait(ctx context.Context) error {
	for tries := 0; ; tries++ {
		switch h.o.phase(h.seq) {
		case done:
			return nil
		case ready:
			if h.help() {
				tries = 0
				continue
			}
		case pending:
			// Phases change only in a group that has not failed, so the phase read after the
			// failure is final.
			if err := h.l.team.failure(); err != nil && h.o.phase(h.seq) == pending {
				return err
			}
		}
		switch {
		case tries < h.l.team.spins:
		case tries < h.l.team.spins+localYields:
			runtime.Gosched()
		default:
			if err := h.park(ctx); err != nil {
				return err
			}
		}
	}
}

// help executes parts until none is left to claim, this rank's own lane first,
// and reports whether it did any.
func (h handle) help() (worked bool) {
	o, n := h.o, len(h.l.team.members)
	r := h.l.reducer.Swap(nil)
	if r == nil {
		r = new(transport.Reducer) // first use, or another goroutine waits for this rank as well
	}
	for k := range n {
		i := (h.l.Rank() + k) % n
		for {
			part, ok := o.claim(i, h.seq)
			if !ok {
				break
			}
			worked = true
			o.execute(i, part, r)
			if o.left.Add(-1) == 0 {
				h.l.team.mu.Lock()
				h.l.team.retire(o)
				h.l.team.mu.Unlock()
			}
		}
	}
	h.l.reducer.Store(r)
	return worked
}

// park blocks until the operation changes phase or the group fails; it returns nil if it may have.
// If ctx ends while the operation is pending, park returns an error, with which the group fails
// too. It does not block while there is unclaimed work: the other ranks may never come to wait for
// it.
func (h handle) park(ctx context.Context) error {
	t := h.l.team
	t.mu.Lock()
	defer t.mu.Unlock()
	phase := h.o.phase(h.seq)
	switch {
	case phase == done, phase == pending && t.failure() != nil, phase == ready && h.o.claimable(h.seq):
		return nil
	}
	quit := ctx.Done()
	if phase == ready {
		quit = nil // other ranks use our buffers, and are about to finish
	} else {
		t.observe()
	}
	if h.o.waiters.Park(&t.mu, h.seq, quit) || h.o.phase(h.seq) != pending || t.failure() != nil {
		return nil
	}
	err := h.l.Blame(fmt.Errorf("waiting for ranks %v in %s: %w",
		t.absent(h.seq), h.o.Calls[h.l.Rank()].Numbered(h.seq), context.Cause(ctx)))
	t.fail(err)
	return err
}

// Timeout implements limited.
func (l *local) Timeout() time.Duration { return l.team.timeout }

// sheet allocates values by the hundred. It is for values that a caller may keep for ever, such as
// a Work: they cannot be reused, but an operation needs no separate allocation.
type sheet[T any] struct{ blank []T }

// next returns a new zero value. It is not safe for concurrent use.
func (s *sheet[T]) next() *T {
	if len(s.blank) == 0 {
		s.blank = make([]T, 128)
	}
	v := &s.blank[0]
	s.blank = s.blank[1:]
	return v
}
