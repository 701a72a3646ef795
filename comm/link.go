package comm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/text"
)

// member is a group as the control side sees it. Goroutines of the mesh call the methods, which
// must not block, except for Close.
type member interface {
	Failed(err error)           // another rank reports that the group has failed
	Left(rank int, last uint64) // a rank has left after completing collective last
	Status() Status
	Failure() error // error of the next collective: also that a rank, or this one, has left; or nil
	Close() error
}

// link is the control side of one rank's handle of a group.
type link struct {
	session *session
	id      uint64
	name    string
	rank    int   // of this process in the group
	ranks   []int // world rank of every rank

	mu       sync.Mutex
	member   member // nil until attached
	parent   *link
	children map[*link]struct{}
	fault    error         // of the group, if it has failed
	leavers  map[int]error // ranks that have left, and why: see leave
	closed   bool
	detached bool // it does not fail with its parent
}

// worldID is the id of the group that all ranks are in.
const worldID = 1

// world makes the link of the group of all ranks.
func (s *session) world() *link {
	ranks := make([]int, s.cfg.Size)
	for r := range ranks {
		ranks[r] = r
	}
	return &link{
		session: s, id: worldID, name: transport.WorldName, rank: s.cfg.Rank, ranks: ranks,
		children: map[*link]struct{}{}, leavers: map[int]error{},
	}
}

// split makes the link of the group that collective seq of l has formed under
// color, of the given ranks of l.
func (l *link) split(seq uint64, color int, ranks []int) *link {
	world := make([]int, len(ranks))
	for i, r := range ranks {
		world[i] = l.ranks[r]
	}
	child := l.derive(transport.ChildName(l.name, color), text.Hash(fmt.Sprintf("%x/%d/%d", l.id, seq, color)), world)
	child.detached = color == Detached
	return child
}

// form makes the group that collective seq of l has formed under color.
func (l *link) form(ctx context.Context, seq uint64, color int, ranks []int) (Group, error) {
	return l.session.newGroup(ctx, l.split(seq, color, ranks))
}

// derive makes the link of a group of some of l's ranks, given by world rank,
// that ends with l.
func (l *link) derive(name string, id uint64, world []int) *link {
	return &link{
		session: l.session, id: id, name: name, ranks: world, rank: slices.Index(world, l.ranks[l.rank]),
		parent: l, children: map[*link]struct{}{}, leavers: map[int]error{},
	}
}

// attach lets m receive the messages of the other ranks, including earlier ones. A group whose
// parent has been closed meanwhile fails with that.
func (l *link) attach(m member) {
	l.mu.Lock()
	l.member = m
	l.mu.Unlock()
	if p := l.parent; p != nil {
		p.mu.Lock()
		closed, fault := p.closed, p.fault
		if l.detached {
			fault = nil
		}
		if !closed {
			p.children[l] = struct{}{}
		}
		p.mu.Unlock()
		if closed && fault == nil {
			fault = &RankError{Group: p.name, Rank: p.rank, Err: ErrClosed}
		}
		if fault != nil {
			l.spread(fault)
		}
		if closed {
			return // it would not be closed with its parent
		}
	}
	early, gone := l.session.register(l)
	for ; len(early) > 0; early, gone = l.session.register(l) {
		for _, n := range early {
			l.hear(n)
		}
	}
	for r, err := range gone {
		l.ended(r, err)
	}
	if p := l.parent; p != nil {
		p.mu.Lock()
		leavers := maps.Clone(p.leavers)
		p.mu.Unlock()
		for r, why := range leavers {
			l.peerLeftParent(p.ranks[r], why)
		}
	}
}

// fail reports to all other ranks that the group has failed on this one, with err or with its
// earlier failure, and makes this rank's children fail.
func (l *link) fail(err error) {
	l.tell(newsFailed, transport.MarshalError(l.name, l.rank, l.blame(err)))
	l.spread(err)
}

// blame makes err the failure of the group unless it has failed before, and returns the failure. So
// a rank reports the same failure to all: others leave because of a failure, and their connections
// end.
func (l *link) blame(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil {
		l.fault = err
	}
	return l.fault
}

// failed reports whether the group has failed for another reason than that a rank left.
func (l *link) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault != nil
}

// tell sends a message to all other ranks of the group.
func (l *link) tell(what byte, body []byte) {
	l.session.mesh.Tell(l.sorted(), newsOf(what, l.id, body))
}

// sorted returns the world ranks of the group in ascending order.
func (l *link) sorted() []int {
	if slices.IsSorted(l.ranks) {
		return l.ranks
	}
	return slices.Sorted(slices.Values(l.ranks))
}

// spread makes err the failure of this handle and of all handles below it that are not detached. It
// begins with the lowest, so a caller that sees the group fail finds its children failed as well.
func (l *link) spread(err error) {
	err = l.blame(err)
	l.mu.Lock()
	m := l.member
	children := make([]*link, 0, len(l.children))
	for c := range l.children {
		if !c.detached {
			children = append(children, c)
		}
	}
	l.mu.Unlock()
	for _, c := range children {
		c.spread(err)
	}
	if m != nil {
		m.Failed(err)
	}
}

// leave reports to all other ranks that this one has left after collective last, and closes this
// rank's children. The same message says why: a rank that learns of the leaving first, or has
// learnt that the rank to blame left in good order, must not blame this one.
func (l *link) leave(last uint64) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	own := l.member
	var members []member
	for c := range l.children {
		members = append(members, c.member)
	}
	l.mu.Unlock()
	errs := make([]error, len(members))
	var closing sync.WaitGroup
	for i, m := range members {
		closing.Go(func() { errs[i] = m.Close() }) // each may take its time
	}
	closing.Wait()
	body := binary.LittleEndian.AppendUint64(nil, last)
	if why := own.Failure(); why != nil {
		body = append(body, transport.MarshalError(l.name, l.rank, why)...)
	}
	l.tell(newsLeft, body)
	if p := l.parent; p != nil {
		p.mu.Lock()
		delete(p.children, l)
		p.mu.Unlock()
	}
	return errors.Join(append(errs, l.session.remove(l))...)
}

// hear handles a message from another rank.
func (l *link) hear(n news) {
	rank := slices.Index(l.ranks, n.from)
	if rank < 0 {
		return // not of this group
	}
	switch n.what {
	case newsFailed:
		if failure, err := transport.UnmarshalError(n.body); err == nil {
			l.spread(failure)
		} else {
			l.spread(&RankError{Group: l.name, Rank: rank, Err: err})
		}
	case newsLeft:
		if len(n.body) < 8 {
			return
		}
		why, err := transport.UnmarshalError(n.body[8:])
		if err != nil { // the message does not say
			why = &RankError{Group: l.name, Rank: rank, Err: ErrClosed}
		}
		l.mu.Lock()
		l.leavers[rank] = why
		closed := l.closed
		children := slices.Collect(maps.Keys(l.children))
		l.mu.Unlock()
		if closed {
			l.session.peerLeft(l.id, n.from)
		}
		for _, c := range children {
			c.peerLeftParent(n.from, why)
		}
		if first, left := transport.WhoLeft(l.name, why); left {
			l.member.Left(first, binary.LittleEndian.Uint64(n.body))
		} else {
			l.spread(why)
		}
	case newsAsk:
		l.session.reply(l.id, n, l.member.Status())
	}
}

// peerLeftParent fails the group if a world rank has left its parent, but not the group. A rank
// leaves the groups that it has split from a group first, so that rank has not made this group and
// never will.
func (l *link) peerLeftParent(world int, why error) {
	rank := slices.Index(l.ranks, world)
	l.mu.Lock()
	_, left := l.leavers[rank]
	l.mu.Unlock()
	if rank >= 0 && !left {
		l.spread(why)
	}
}

// ended handles the end of the process of a world rank.
func (l *link) ended(world int, err error) {
	rank := slices.Index(l.ranks, world)
	if rank < 0 {
		return
	}
	l.mu.Lock()
	_, left := l.leavers[rank]
	left = left || l.closed
	l.mu.Unlock()
	switch blame := (&RankError{Group: l.name, Rank: rank, Err: err}); {
	case left: // the rank was not needed any more, or this one needs no other
	case errors.Is(err, ErrLost) && !l.session.mesh.Relays():
		l.fail(blame) // others may not have noticed it yet, behind a cut link
	default:
		l.spread(blame)
	}
}
