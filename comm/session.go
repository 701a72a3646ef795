package comm

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

// session is one process's part in a job: the mesh of connections to the other
// processes, and all groups that this process is in.
//
// News travel as control messages of the mesh, addressed to a group by its id:
//
//	byte  0      what
//	bytes 1..9   id of the group, little-endian
//	bytes 9..    newsFailed: the error, see MarshalError
//	             newsLeft:   number of the last completed collective, 8 bytes; then why, as before
//	             newsAsk:    number of the question, 8 bytes
//	             newsAnswer: number of the question, then the Status as JSON
//	             newsMemory: with a step as the id, why the sender cannot take it, see vote
type session struct {
	cfg      sessionConfig
	mesh     network
	memory   memory                                            // shared with the other ranks of this host, nil if there is none
	newGroup func(ctx context.Context, l *link) (Group, error) // makes the group of l over the transport that suits its ranks

	mu     sync.Mutex
	links  map[uint64]*link
	ended  map[uint64]map[int]struct{} // of groups this rank has left: world ranks still in them
	early  map[uint64][]news           // about groups that this rank has not made yet
	held   int                         // bytes in early
	gone   map[int]error               // world ranks whose process has ended, and how
	asked  map[uint64]*question        // by number
	asking uint64                      // the latest number
	votes  map[vote]string             // on shared memory: why not, "" for yes
	voted  chan struct{}               // has room for one: votes or gone have changed
	over   bool                        // the session has ended, or is about to
}

// sessionConfig is the part of a [Config] that a session and the transports over it need.
type sessionConfig struct {
	Rank, Size int
	Timeout    time.Duration // of operations, 0 for the default
	Summed     bool          // payloads over sockets have checksums
}

// memory is the interface of a session to the memory that ranks of a host share.
type memory interface {
	// group makes the group of l, all of whose ranks share the memory and call it.
	group(ctx context.Context, l *link) (Group, error)
	// close unmaps it when no group is in use.
	close() error
}

// network is the part of a [mesh.Mesh] that a session needs.
type network interface {
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
	newsMemory
)

const (
	newsHeader = 9
	newsCost   = 64       // bytes that a message takes in addition to its body
	maxEarly   = 16 << 20 // bytes kept for groups that this rank has not made yet; more are lost
)

func newSession(cfg sessionConfig) *session {
	cfg.Timeout = cmp.Or(cfg.Timeout, limit.Default)
	return &session{
		cfg: cfg, links: map[uint64]*link{}, ended: map[uint64]map[int]struct{}{}, early: map[uint64][]news{},
		gone: map[int]error{}, asked: map[uint64]*question{}, votes: map[vote]string{}, voted: make(chan struct{}, 1),
	}
}

// Message implements [mesh.Handler].
func (s *session) Message(from int, msg []byte) {
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
		s.reply(id, n, Status{Err: transport.HasLeft})
	case n.what == newsAsk:
		s.reply(id, n, Status{Err: transport.NotHere})
	}
}

// peerLeft records that a world rank will send no more about a group that this rank has left.
func (s *session) peerLeft(id uint64, world int) {
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
	s.ringVotes()
	for _, id := range ended {
		s.peerLeft(id, rank)
	}
	for _, l := range links {
		l.ended(rank, err)
	}
}

// send sends a world rank a message about a group. Most callers do not mind if the rank is gone: a
// caller that needs it learns so by itself.
func (s *session) send(to int, what byte, id uint64, body []byte) error {
	return s.mesh.Send(to, newsOf(what, id, body))
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

// takeEarly removes and returns the messages kept for a group. Called with mu held.
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

// abandon ends the session of a rank that has no world group because of err, and returns the
// reason: err, or the failure that another rank has reported before.
func (s *session) abandon(err error) error {
	w := s.world()
	s.mu.Lock()
	for _, n := range s.takeEarly(w.id) {
		if first, uerr := transport.UnmarshalError(n.body); n.what == newsFailed && uerr == nil {
			err = first
			break
		}
	}
	s.mu.Unlock()
	w.fail(err)
	return errors.Join(err, s.close())
}

// shares reports whether all of the given world ranks share memory with this one.
func (s *session) shares(world []int) bool {
	if s.memory == nil {
		return false
	}
	for _, r := range world {
		if r != s.cfg.Rank && !s.mesh.SameHost(r) {
			return false
		}
	}
	return true
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
	if s.memory != nil {
		err = s.memory.close()
	}
	err = errors.Join(err, s.mesh.Close())
	for r := range s.cfg.Size { // no more messages of theirs are handled
		s.end(r, ErrClosed)
	}
	return err
}
