package local

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/park"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
)

// team is the state that the handles of an in-process group share.
//
// Ranks issue in order, so operations become ready in order as well. The operations that some rank
// has still to issue are always started+1, started+2, … and are in a ring by number. A ready record
// is only known to its handles and to live.
type team struct {
	name    string
	members []*local
	spins   int                   // looks of a waiter at the state before it yields
	err     atomic.Pointer[error] // the first failure; written once, under mu
	alarm   park.Alarm            // rung when the group fails
	timeout time.Duration

	mu       sync.Mutex
	started  uint64                  // number of collectives that every rank has issued
	ring     []*operation            // pending number s at s mod len, a power of two; or nil
	live     []*operation            // pending or ready, in no order
	free     []*operation            // done
	children map[*local]struct{}     // open handles of groups split from this one
	splits   map[splitKey]*splitTeam // split groups that some member has not fetched yet
	detached bool                    // it does not fail with its parent
	watched  bool                    // some member is, or was

	// See look.
	timer    *time.Timer    // calls look, nil until the first wait
	looking  bool           // timer is set
	waited   backoff.Waiter // for arrivals to grow
	arrivals uint64
}

// splitKey names a group made by a split: the number of the collective and the color.
type splitKey struct {
	seq   uint64
	color int
}

// splitTeam is a group made by a split, as long as some member has not fetched its handle.
type splitTeam struct {
	team    *team
	missing int // members that have not fetched it
}

// operation returns the record of collective seq, which some rank is about to issue,
// making it if that rank is the first. Called with mu held.
func (t *team) operation(seq uint64) *operation {
	if seq-t.started > uint64(len(t.ring)) {
		ring := make([]*operation, max(4, 2*len(t.ring)))
		for s := t.started + 1; s < seq; s++ {
			ring[s%uint64(len(ring))] = t.ring[s%uint64(len(t.ring))]
		}
		t.ring = ring
	}
	slot := &t.ring[seq%uint64(len(t.ring))]
	if *slot == nil {
		*slot = t.record()
		(*slot).setPhase(seq, pending)
	}
	return *slot
}

// record takes an unused record and puts it into live. Called with mu held.
func (t *team) record() *operation {
	var o *operation
	if k := len(t.free); k > 0 {
		o, t.free = t.free[k-1], t.free[:k-1]
	} else {
		o = newOperation(len(t.members))
	}
	o.index, o.arrived = len(t.live), 0
	t.live = append(t.live, o)
	return o
}

// retire ends a ready operation whose parts are all finished. Called with mu held.
func (t *team) retire(o *operation) {
	if t.watched {
		for _, l := range t.members {
			l.watch.Done(o.state.Load() >> transport.TagShift)
		}
	}
	o.state.Store(0)
	o.waiters.WakeAll()
	clear(o.Calls) // the buffers are the ranks' again
	last := t.live[len(t.live)-1]
	t.live[o.index], last.index = last, o.index
	t.live = t.live[:len(t.live)-1]
	t.free = append(t.free, o)
}

// start makes the oldest pending operation, o, ready: every rank has issued it.
// Called with mu held.
func (t *team) start(o *operation) {
	t.started++
	t.ring[t.started%uint64(len(t.ring))] = nil
	if t.watched {
		for _, l := range t.members {
			l.watch.Began(t.started)
		}
	}
	if o.open(t.started) == 0 {
		t.retire(o)
		return
	}
	o.setPhase(t.started, ready)
	o.waiters.WakeAll()
}

// failure returns the error the group has failed with, or nil.
func (t *team) failure() error {
	if err := t.err.Load(); err != nil {
		return *err
	}
	return nil
}

// fail makes err the failure of the group unless it has one, and of every group
// split from it. Called with mu held; locks go from parent to child.
func (t *team) fail(err error) {
	t.leave(err)
	t.alarm.Ring()
	for child := range t.children {
		if child.team.detached {
			continue
		}
		child.team.mu.Lock()
		child.team.fail(err)
		child.team.mu.Unlock()
	}
}

// leave is fail for this group only. Called with mu held.
func (t *team) leave(err error) {
	if t.failure() != nil {
		return
	}
	t.err.Store(&err)
	for _, o := range t.live {
		if phase(o.state.Load()&transport.ValueMask) == pending {
			clear(o.Calls) // never to be executed
			o.waiters.WakeAll()
		}
	}
}

// absent lists the ranks that have not issued collective seq. Called with mu held.
func (t *team) absent(seq uint64) (ranks []int) {
	for r, l := range t.members {
		if l.issued < seq {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// lookEvery is the interval of look.
const lookEvery = time.Second

// observe makes look check a wait that begins. Called with mu held.
func (t *team) observe() {
	if t.looking {
		return
	}
	t.looking = true
	t.waited.Reset()
	every := min(t.timeout, lookEvery)
	if t.timer == nil {
		t.timer = time.AfterFunc(every, t.look)
	} else {
		t.timer.Reset(every)
	}
}

// look is called every second while a goroutine waits for a rank that has not issued its part. It
// fails the group when no rank has issued a part for the timeout. All waits share one
// timer, so a wait costs no more.
func (t *team) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	seq := t.started + 1
	stuck := slices.ContainsFunc(t.live, func(o *operation) bool {
		return phase(o.state.Load()&transport.ValueMask) == pending && o.waiters.Waiting()
	})
	if t.looking = stuck && t.failure() == nil; !t.looking {
		return
	}
	o := t.operation(seq) // pending: a rank that waits has issued it
	if arrivals := seq*uint64(len(t.members)) + uint64(o.arrived); arrivals != t.arrivals {
		t.arrivals = arrivals
		t.waited.Reset()
	}
	if t.waited.Idle() < t.timeout {
		t.timer.Reset(min(t.timeout, lookEvery))
		return
	}
	waiter := slices.IndexFunc(t.members, func(l *local) bool { return l.issued >= seq })
	missing := t.absent(seq)
	last := slices.MinFunc(missing, func(a, b int) int { return cmp.Compare(t.members[a].issued, t.members[b].issued) })
	err := fmt.Errorf("rank %d waited for ranks %v in %s: %w; rank %d has issued %d collectives",
		waiter, missing, o.Calls[waiter].Numbered(seq), transport.NoProgress(t.timeout), last, t.members[last].issued)
	t.fail(&transport.RankError{Group: t.name, Rank: last, Err: err})
}

// Form implements [transport.Issuer]: the first rank to ask makes the group for all of them.
func (l *local) Form(_ context.Context, seq uint64, color int, ranks []int) (transport.Group, error) {
	t := l.team
	t.mu.Lock()
	defer t.mu.Unlock()
	key := splitKey{seq, color}
	s := t.splits[key]
	if s == nil {
		s = &splitTeam{newTeam(transport.ChildName(t.name, color), len(ranks), t.timeout), len(ranks)}
		s.team.detached = color == transport.Detached
		t.splits[key] = s
	}
	if s.missing--; s.missing == 0 {
		delete(t.splits, key)
	}
	if l.closed { // this rank will never be in the group, and the others may wait for it there
		s.team.mu.Lock()
		s.team.fail(l.Blame(transport.ErrClosed))
		s.team.mu.Unlock()
		return nil, l.Blame(transport.ErrClosed)
	}
	child := s.team.members[slices.Index(ranks, l.Rank())]
	child.parent = l
	t.children[child] = struct{}{}
	if err := t.failure(); err != nil && color != transport.Detached { // it may have failed before the group was known to it
		s.team.mu.Lock()
		s.team.fail(err)
		s.team.mu.Unlock()
	}
	return child, nil
}
