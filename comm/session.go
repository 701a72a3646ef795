package comm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	ended  map[uint64]struct{} // ids of groups that this rank has left
	early  map[uint64][]news   // about groups that this rank has still to make
	gone   map[int]error       // world ranks whose process has ended, and how
	asked  map[uint64]chan<- answer
	asking uint64
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
	maxEarly   = 1 << 10 // messages kept for groups that do not exist here yet
)

func newSession(cfg Config) *session {
	return &session{
		cfg: cfg, links: map[uint64]*link{}, ended: map[uint64]struct{}{}, early: map[uint64][]news{},
		gone: map[int]error{}, asked: map[uint64]chan<- answer{},
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
	if _, ended := s.ended[id]; l == nil && !ended && len(s.early) < maxEarly && len(s.early[id]) < maxEarly {
		s.early[id] = append(s.early[id], n)
	}
	s.mu.Unlock()
	if l != nil {
		l.hear(n)
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
	links := make([]*link, 0, len(s.links))
	for _, l := range s.links {
		links = append(links, l)
	}
	s.mu.Unlock()
	for _, l := range links {
		l.ended(rank, err)
	}
}

// send tells a world rank something about a group. That the rank is gone is
// nothing to report here: whoever needs it learns so by itself.
func (s *session) send(to int, what byte, id uint64, body []byte) {
	msg := make([]byte, newsHeader, newsHeader+len(body))
	msg[0] = what
	binary.LittleEndian.PutUint64(msg[1:], id)
	_ = s.mesh.Send(to, append(msg, body...))
}

// remove forgets a group that this rank has left. The last one ends the session.
func (s *session) remove(l *link) error {
	s.mu.Lock()
	delete(s.links, l.id)
	s.ended[l.id] = struct{}{}
	last := len(s.links) == 0
	s.mu.Unlock()
	if !last {
		return nil
	}
	var err error
	if s.domain != nil {
		err = s.domain.close()
	}
	return errors.Join(err, s.mesh.Close())
}

// member is a group as the control side sees it. The methods are called from
// goroutines of the mesh and, but for Close, must not block.
type member interface {
	failed(err error)           // another rank says that the group has failed
	left(rank int, last uint64) // a rank has left after completing collective last
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
	return l.derive(fmt.Sprintf("%s/%d", l.name, color), hashText(fmt.Sprintf("%x/%d/%d", l.id, seq, color)), world)
}

// derive makes the link of a group of some of l's ranks, given by world rank,
// that ends with l.
func (l *link) derive(name string, id uint64, world []int) *link {
	return &link{
		session: l.session, id: id, name: name, ranks: world, rank: slices.Index(world, l.ranks[l.rank]),
		parent: l, children: map[*link]struct{}{}, leavers: map[int]struct{}{},
	}
}

// attach lets m hear what the other ranks say, and have said already.
func (l *link) attach(m member) {
	l.mu.Lock()
	l.member = m
	l.mu.Unlock()
	if p := l.parent; p != nil {
		p.mu.Lock()
		p.children[l] = struct{}{}
		fault := p.fault
		p.mu.Unlock()
		if fault != nil {
			l.spread(fault)
		}
	}
	s := l.session
	s.mu.Lock()
	s.links[l.id] = l
	early := s.early[l.id]
	delete(s.early, l.id)
	gone := make(map[int]error, len(s.gone))
	for r, err := range s.gone {
		gone[r] = err
	}
	s.mu.Unlock()
	for _, n := range early {
		l.hear(n)
	}
	for r, err := range gone {
		l.ended(r, err)
	}
}

// fail tells all other ranks that the group has failed on this one, and lets
// this rank's children fail.
func (l *link) fail(err error) {
	body := MarshalError(l.name, l.rank, err)
	for r, world := range l.ranks {
		if r != l.rank {
			l.session.send(world, newsFailed, l.id, body)
		}
	}
	l.spread(err)
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
		m.failed(err)
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
	var errs []error
	for _, m := range members {
		errs = append(errs, m.Close())
	}
	body := binary.LittleEndian.AppendUint64(nil, last)
	for r, world := range l.ranks {
		if r != l.rank {
			l.session.send(world, newsLeft, l.id, body)
		}
	}
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
		m := l.member
		l.mu.Unlock()
		m.left(rank, binary.LittleEndian.Uint64(n.body))
	case newsAsk:
		l.answer(n)
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
	l.mu.Unlock()
	switch blame := (&RankError{Group: l.name, Rank: rank, Err: err}); {
	case left:
	case errors.Is(err, ErrLost):
		l.fail(blame) // others may not have seen it yet, behind a cut link
	default:
		l.spread(blame)
	}
}
