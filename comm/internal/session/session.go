// Package session is the control side of groups of processes: one [Session] per process, with a
// [Link] for each of its groups. It passes on who has failed and who has left, collects flight
// records, and lets the ranks of a host vote on whether they share memory. The transports over it
// move the data.
package session

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// Session is one process's part in a job: the mesh of connections to the other
// processes, and all groups that this process is in.
//
// News travel as control messages of the mesh, addressed to a group by its id:
//
//	byte  0      what
//	bytes 1..9   id of the group, little-endian
//	bytes 9..    newsFailed: the error, see MarshalError
//	             newsLeft:   number of the last completed collective, 8 bytes; then why, as before
//	             newsDeparted: the same, and the process takes part in no later group
//	             newsAsk:    number of the question, 8 bytes
//	             newsAnswer: number of the question, then the Status as JSON
//	             newsMemory: with a step as the id, why the sender cannot take it, see vote
type Session struct {
	Config Config
	// Set before the first group is made.
	Mesh   Network
	Memory Memory // shared with the other ranks of this host, nil if there is none
	// NewGroup makes the group of l over the transport that suits its ranks.
	NewGroup func(ctx context.Context, l *Link) (transport.Group, error)
	// Leaving, if not nil, is called before this rank leaves the group of all ranks. It reports
	// whether this process takes part in no later group.
	Leaving func() (departs bool, err error)

	mu     sync.Mutex
	links  map[uint64]*Link
	ended  map[uint64]map[int]struct{} // of groups this rank has left: world ranks still in them
	early  map[uint64][]news           // about groups that this rank has not made yet
	held   int                         // bytes in early
	gone   map[int]error               // world ranks whose process has ended, and how
	asked  map[uint64]*question        // by number
	asking uint64                      // the latest number
	votes  map[vote]string             // on shared memory: why not, "" for yes
	voted  chan struct{}               // has room for one: votes or gone have changed
	over   bool                        // the session has ended, or is about to

	departed []int           // world ranks that take part in no later group
	departs  func(world int) // gets them, if not nil
}

// Config is the part of the Config of package comm that a session and the transports over it need.
type Config struct {
	Rank, Size int
	Timeout    time.Duration // of operations, 0 for the default
	Summed     bool          // payloads over sockets have checksums
}

// Memory is the interface of a session to the memory that ranks of a host share.
type Memory interface {
	// Group makes the group of l, all of whose ranks share the memory and call it.
	Group(ctx context.Context, l *Link) (transport.Group, error)
	// Close unmaps it when no group is in use.
	Close() error
}

// Network is the part of a [mesh.Mesh] that a session needs.
type Network interface {
	SameHost(rank int) bool
	Host(rank int) string
	Send(to int, msg []byte) error
	Tell(ranks []int, msg []byte)
	Relays() bool
	Connect(ctx context.Context, rank int, channel uint64) ([]mesh.Lane, error)
	Forget(channel uint64)
	Plain(ctx context.Context) bool
	Modelled() bool
	SendFile(to int, tag uint64, f *os.File) error
	File(ctx context.Context, from int, tag uint64) (*os.File, error)
	Close() error
}

var (
	_ Network      = (*mesh.Mesh)(nil)
	_ mesh.Handler = (*Session)(nil)
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
	newsMemory
	newsDeparted
)

const (
	newsHeader = 9
	newsCost   = 64       // bytes that a message takes in addition to its body
	maxEarly   = 16 << 20 // bytes kept for groups that this rank has not made yet; more are lost
)

// New returns a session without a network.
func New(cfg Config) *Session {
	cfg.Timeout = cmp.Or(cfg.Timeout, limit.Default)
	return &Session{
		Config: cfg, links: map[uint64]*Link{}, ended: map[uint64]map[int]struct{}{}, early: map[uint64][]news{},
		gone: map[int]error{}, asked: map[uint64]*question{}, votes: map[vote]string{}, voted: make(chan struct{}, 1),
	}
}

// Message implements [mesh.Handler].
func (s *Session) Message(from int, msg []byte) {
	if len(msg) < newsHeader {
		return // no rank of this version sends that
	}
	id := binary.LittleEndian.Uint64(msg[1:])
	n := news{msg[0], from, slices.Clone(msg[newsHeader:])}
	switch n.what {
	case newsAnswer:
		s.answered(n)
		return
	case newsMemory:
		s.hearVote(vote{id, from}, string(n.body))
		return
	case newsDeparted:
		s.depart(from)
		n.what = newsLeft
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
		s.reply(id, n, transport.Status{Err: transport.HasLeft})
	case n.what == newsAsk:
		s.reply(id, n, transport.Status{Err: transport.NotHere})
	}
}

// Departed calls f with each world rank whose process takes part in no later group. f must not
// block.
func (s *Session) Departed(f func(rank int)) {
	s.mu.Lock()
	departed := s.departed
	s.departs = f
	s.mu.Unlock()
	for _, rank := range departed {
		f(rank)
	}
}

// depart records such a rank.
func (s *Session) depart(world int) {
	s.mu.Lock()
	s.departed = append(s.departed, world)
	f := s.departs
	s.mu.Unlock()
	if f != nil {
		f(world)
	}
}

// peerLeft records that a world rank will send no more about a group that this rank has left.
func (s *Session) peerLeft(id uint64, world int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if others, ok := s.ended[id]; ok {
		if delete(others, world); len(others) == 0 {
			delete(s.ended, id)
		}
	}
}

// Gone implements [mesh.Handler]: a rank ended in good order, so it has left its groups, or it is
// closing groups that it can no longer report on.
func (s *Session) Gone(rank int) { s.end(rank, transport.ErrClosed) }

// Lost implements [mesh.Handler].
func (s *Session) Lost(rank int, err error) {
	if !errors.Is(err, transport.ErrLost) {
		err = fmt.Errorf("%w: %w", transport.ErrLost, err)
	}
	s.end(rank, err)
}

// end notes that the process of a world rank has ended.
func (s *Session) end(rank int, err error) {
	s.mu.Lock()
	s.gone[rank] = err
	links := slices.Collect(maps.Values(s.links))
	ended := slices.Collect(maps.Keys(s.ended))
	for _, q := range s.asked {
		q.answer(rank, transport.Status{Err: fmt.Sprintf("does not answer: %v", err)})
	}
	s.mu.Unlock()
	s.ringVotes()
	for _, id := range ended {
		s.peerLeft(id, rank)
	}
	for _, l := range links {
		l.ended(rank, err)
	}
}

// send sends a world rank a message about a group. It reports no error: most callers need none if
// the rank is gone, and the others find out that it is.
func (s *Session) send(to int, what byte, id uint64, body []byte) error {
	return s.Mesh.Send(to, newsOf(what, id, body))
}

// newsOf returns a control message about a group.
func newsOf(what byte, id uint64, body []byte) []byte {
	msg := make([]byte, newsHeader, newsHeader+len(body))
	msg[0] = what
	binary.LittleEndian.PutUint64(msg[1:], id)
	return append(msg, body...)
}

// register lets messages go to l directly, unless some have arrived before: these are returned, to
// be handled first. In the end it returns which ranks are gone.
func (s *Session) register(l *Link) (early []news, gone map[int]error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if early = s.takeEarly(l.ID); len(early) > 0 {
		return early, nil
	}
	if !l.closed { // by its parent
		s.links[l.ID] = l
	}
	return nil, maps.Clone(s.gone)
}

// takeEarly removes and returns the messages kept for a group. Called with mu held.
func (s *Session) takeEarly(id uint64) []news {
	early := s.early[id]
	delete(s.early, id)
	for _, n := range early {
		s.held -= newsCost + len(n.body)
	}
	return early
}

// remove forgets a group that this rank has left. The last one ends the session.
func (s *Session) remove(l *Link) error {
	l.mu.Lock()
	s.mu.Lock()
	delete(s.links, l.ID)
	s.takeEarly(l.ID)
	others := map[int]struct{}{}
	for r, world := range l.Ranks {
		_, left := l.leavers[r]
		if _, gone := s.gone[world]; r != l.Rank && !left && !gone {
			others[world] = struct{}{}
		}
	}
	if len(others) > 0 {
		s.ended[l.ID] = others
	}
	last := len(s.links) == 0
	s.mu.Unlock()
	l.mu.Unlock()
	if !last {
		return nil
	}
	return s.close()
}

// Abandon ends the session of a rank that has no world group because of err, and returns the
// reason: err, or the failure that another rank has reported before.
func (s *Session) Abandon(err error) error {
	w := s.World()
	s.mu.Lock()
	for _, n := range s.takeEarly(w.ID) {
		if first, uerr := transport.UnmarshalError(n.body); n.what == newsFailed && uerr == nil {
			err = first
			break
		}
	}
	s.mu.Unlock()
	w.Fail(err)
	return errors.Join(err, s.close())
}

// Shares reports whether all of the given world ranks share memory with this one.
func (s *Session) Shares(world []int) bool {
	if s.Memory == nil {
		return false
	}
	for _, r := range world {
		if r != s.Config.Rank && !s.Mesh.SameHost(r) {
			return false
		}
	}
	return true
}

// close ends this process's part in the job.
func (s *Session) close() error {
	s.mu.Lock()
	over := s.over
	s.over = true
	s.mu.Unlock()
	if over {
		return nil
	}
	var err error
	if s.Memory != nil {
		err = s.Memory.Close()
	}
	err = errors.Join(err, s.Mesh.Close())
	for r := range s.Config.Size { // no more messages of theirs are handled
		s.end(r, transport.ErrClosed)
	}
	return err
}
