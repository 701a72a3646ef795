package comm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

// session is one process's part in a job: the mesh of connections to the other
// processes, and all groups that this process is in.
//
// News travel as control messages of the mesh, addressed to a group by its id:
//
//	byte  0      what
//	bytes 1..9   id of the group, little-endian
//	bytes 9..    newsFailed: the error, see MarshalError
//	             newsLeft:   number of the last completed collective, 8 bytes
//	             newsAsk:    number of the question, 8 bytes
//	             newsAnswer: number of the question, then the Status as JSON
type session struct {
	cfg    Config
	mesh   network
	domain *domain // memory shared with the other ranks of this host, nil if there is none

	mu     sync.Mutex
	links  map[uint64]*link
	ended  map[uint64]map[int]struct{} // groups that this rank has left: world ranks that have not, and may still speak of them
	early  map[uint64][]news           // about groups that this rank has still to make
	held   int                         // bytes in early
	gone   map[int]error               // world ranks whose process has ended, and how
	asked  map[uint64]*question        // by number
	asking uint64                      // the latest number
	over   bool                        // the session has ended, or is about to
}

// network is what a session needs of a [mesh.Mesh].
type network interface {
	SameHost(rank int) bool
	Host(rank int) string
	Send(to int, msg []byte) error
	Connect(ctx context.Context, rank int, channel uint64) (net.Conn, error)
	SendFile(to int, tag uint64, f *os.File) error
	File(ctx context.Context, from int, tag uint64) (*os.File, error)
	Close() error
}

var (
	_ network      = (*mesh.Mesh)(nil)
	_ mesh.Handler = (*session)(nil)
)

// news is a control message about a group.
type news struct {
	what byte
	from int // world rank
	body []byte
}

const (
	newsFailed byte = iota + 1
	newsLeft
	newsAsk
	newsAnswer
)

const (
	newsHeader = 9
	newsCost   = 64       // bytes that a message takes beside its body
	maxEarly   = 16 << 20 // bytes kept for groups that do not exist here yet; what is beyond is lost
)

func newSession(cfg Config) *session {
	return &session{
		cfg: cfg, links: map[uint64]*link{}, ended: map[uint64]map[int]struct{}{}, early: map[uint64][]news{},
		gone: map[int]error{}, asked: map[uint64]*question{},
	}
}

// Message implements [mesh.Handler].
func (s *session) Message(from int, msg []byte) {
	if len(msg) < newsHeader {
		return // no rank of this version says that
	}
	id := binary.LittleEndian.Uint64(msg[1:])
	n := news{msg[0], from, slices.Clone(msg[newsHeader:])}
	if n.what == newsAnswer {
		s.answered(n)
		return
	}
	s.mu.Lock()
	l := s.links[id]
	_, ended := s.ended[id]
	if size := newsCost + len(n.body); l == nil && !ended && n.what != newsAsk && s.held+size <= maxEarly {
		s.early[id] = append(s.early[id], n)
		s.held += size
	}
	s.mu.Unlock()
	switch {
	case l != nil:
		l.hear(n)
	case ended && n.what == newsLeft:
		s.peerLeft(id, n.from)
	case ended && n.what == newsAsk:
		s.reply(id, n, Status{Err: hasLeft})
	case n.what == newsAsk:
		s.reply(id, n, Status{Err: notHere})
	}
}

// peerLeft notes that a world rank will say no more about a group that this rank has left.
func (s *session) peerLeft(id uint64, world int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if others, ok := s.ended[id]; ok {
		if delete(others, world); len(others) == 0 {
			delete(s.ended, id)
		}
	}
}

// Gone implements [mesh.Handler]: a rank ended in good order, so it has left its
// groups, or it is closing what it can no longer tell about.
func (s *session) Gone(rank int) { s.end(rank, ErrClosed) }

// Lost implements [mesh.Handler].
func (s *session) Lost(rank int, err error) {
	if !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	s.end(rank, err)
}

// end notes that the process of a world rank has ended.
func (s *session) end(rank int, err error) {
	s.mu.Lock()
	s.gone[rank] = err
	links := slices.Collect(maps.Values(s.links))
	ended := slices.Collect(maps.Keys(s.ended))
	for _, q := range s.asked {
		q.answer(rank, Status{Err: fmt.Sprintf("does not answer: %v", err)})
	}
	s.mu.Unlock()
	for _, id := range ended {
		s.peerLeft(id, rank)
	}
	for _, l := range links {
		l.ended(rank, err)
	}
}

// send tells a world rank something about a group. Most callers do not mind if
// the rank is gone: whoever needs it learns so by itself.
func (s *session) send(to int, what byte, id uint64, body []byte) error {
	msg := make([]byte, newsHeader, newsHeader+len(body))
	msg[0] = what
	binary.LittleEndian.PutUint64(msg[1:], id)
	return s.mesh.Send(to, append(msg, body...))
}

// register lets messages come to l directly, unless some have come before: these
// are returned, to be heard first. At last it returns which ranks are gone.
func (s *session) register(l *link) (early []news, gone map[int]error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if early = s.takeEarly(l.id); len(early) > 0 {
		return early, nil
	}
	if !l.closed { // by its parent
		s.links[l.id] = l
	}
	return nil, maps.Clone(s.gone)
}

// takeEarly removes what is kept about a group. Called with mu held.
func (s *session) takeEarly(id uint64) []news {
	early := s.early[id]
	delete(s.early, id)
	for _, n := range early {
		s.held -= newsCost + len(n.body)
	}
	return early
}

// remove forgets a group that this rank has left. The last one ends the session.
func (s *session) remove(l *link) error {
	l.mu.Lock()
	s.mu.Lock()
	delete(s.links, l.id)
	s.takeEarly(l.id)
	others := map[int]struct{}{}
	for r, world := range l.ranks {
		_, left := l.leavers[r]
		if _, gone := s.gone[world]; r != l.rank && !left && !gone {
			others[world] = struct{}{}
		}
	}
	if len(others) > 0 {
		s.ended[l.id] = others
	}
	last := len(s.links) == 0
	s.mu.Unlock()
	l.mu.Unlock()
	if !last {
		return nil
	}
	return s.close()
}

// close ends this process's part in the job.
func (s *session) close() error {
	s.mu.Lock()
	over := s.over
	s.over = true
	s.mu.Unlock()
	if over {
		return nil
	}
	var err error
	if s.domain != nil {
		err = s.domain.close()
	}
	err = errors.Join(err, s.mesh.Close())
	for r := range s.cfg.Size { // nothing more is heard of them
		s.end(r, ErrClosed)
	}
	return err
}

// member is a group as the control side sees it. The methods are called from
// goroutines of the mesh and, but for Close, must not block.
type member interface {
	Failed(err error)           // another rank says that the group has failed
	Left(rank int, last uint64) // a rank has left after completing collective last
	status() Status
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
	fault    error // of the group, if it has failed
	leavers  map[int]struct{}
	closed   bool
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
		session: s, id: worldID, name: worldName, rank: s.cfg.Rank, ranks: ranks,
		children: map[*link]struct{}{}, leavers: map[int]struct{}{},
	}
}

// split makes the link of the group that collective seq of l has formed under
// color, of the given ranks of l.
func (l *link) split(seq uint64, color int, ranks []int) *link {
	world := make([]int, len(ranks))
	for i, r := range ranks {
		world[i] = l.ranks[r]
	}
	return l.derive(childName(l.name, color), hashText(fmt.Sprintf("%x/%d/%d", l.id, seq, color)), world)
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
		parent: l, children: map[*link]struct{}{}, leavers: map[int]struct{}{},
	}
}

// attach lets m hear what the other ranks say, and have said already. A group
// whose parent has been closed meanwhile fails with that.
func (l *link) attach(m member) {
	l.mu.Lock()
	l.member = m
	l.mu.Unlock()
	if p := l.parent; p != nil {
		p.mu.Lock()
		closed, fault := p.closed, p.fault
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
			return // nobody would close it with its parent
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
		leavers := slices.Collect(maps.Keys(p.leavers))
		p.mu.Unlock()
		for _, r := range leavers {
			l.peerLeftParent(p.ranks[r])
		}
	}
}

// fail tells all other ranks that the group has failed on this one, and lets
// this rank's children fail.
func (l *link) fail(err error) {
	l.tell(newsFailed, MarshalError(l.name, l.rank, err))
	l.spread(err)
}

// failed reports whether the group has failed otherwise than by a rank's leaving.
func (l *link) failed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault != nil
}

// tell tells all other ranks of the group.
func (l *link) tell(what byte, body []byte) {
	for r, world := range l.ranks {
		if r != l.rank {
			_ = l.session.send(world, what, l.id, body)
		}
	}
}

// spread makes err the failure of this handle and of all below it, from below, so
// that whoever sees the group fail finds its children failed as well.
func (l *link) spread(err error) {
	l.mu.Lock()
	if l.fault == nil {
		l.fault = err
	}
	m := l.member
	children := make([]*link, 0, len(l.children))
	for c := range l.children {
		children = append(children, c)
	}
	l.mu.Unlock()
	for _, c := range children {
		c.spread(err)
	}
	if m != nil {
		m.Failed(err)
	}
}

// leave tells all other ranks that this one has left after collective last, and
// closes this rank's children.
func (l *link) leave(last uint64) error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
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
	l.mu.Lock()
	fault := l.fault
	l.mu.Unlock()
	if fault != nil { // a rank that has not heard of it must not take it that this one has ended the group
		l.tell(newsFailed, MarshalError(l.name, l.rank, fault))
	}
	l.tell(newsLeft, binary.LittleEndian.AppendUint64(nil, last))
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
		if failure, err := UnmarshalError(n.body); err == nil {
			l.spread(failure)
		} else {
			l.spread(&RankError{Group: l.name, Rank: rank, Err: err})
		}
	case newsLeft:
		if len(n.body) != 8 {
			return
		}
		l.mu.Lock()
		l.leavers[rank] = struct{}{}
		closed := l.closed
		children := slices.Collect(maps.Keys(l.children))
		l.mu.Unlock()
		if closed {
			l.session.peerLeft(l.id, n.from)
		}
		for _, c := range children {
			c.peerLeftParent(n.from)
		}
		l.member.Left(rank, binary.LittleEndian.Uint64(n.body))
	case newsAsk:
		l.session.reply(l.id, n, l.member.status())
	}
}

// peerLeftParent makes the group fail if a world rank that has left its parent was never
// in it: a rank leaves a group after those that it has split from it.
func (l *link) peerLeftParent(world int) {
	rank := slices.Index(l.ranks, world)
	l.mu.Lock()
	_, left := l.leavers[rank]
	l.mu.Unlock()
	if rank >= 0 && !left {
		l.spread(&RankError{Group: l.parent.name, Rank: slices.Index(l.parent.ranks, world), Err: ErrClosed})
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
	case left: // it was not needed any more, or this rank needs nobody
	case errors.Is(err, ErrLost):
		l.fail(blame) // others may not have seen it yet, behind a cut link
	default:
		l.spread(blame)
	}
}
