package mesh

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// Size limits in bytes.
const (
	MaxMessage = 64 << 10 // a control message
	MaxJob     = 128      // the name of a job, of which store keys are made
	MaxNote    = 384      // a note to the other ranks
)

const linger = time.Second // for the others to answer goodbye

var (
	// ErrClosed is wrapped by errors of a mesh that this process has closed.
	ErrClosed = errors.New("this process has left the job")
	// ErrGone is wrapped by errors of calls that need a rank that has closed its mesh.
	ErrGone = errors.New("has left the job")
)

// Config configures how the processes of a job find and trust each other.
type Config struct {
	Rank, Size int
	Store      store.Store  // where ranks publish their addresses, needed until Join returns; the caller closes it
	Job        string       // names the job and its attempt: processes of another are refused, and no name serves twice in a store
	Secret     []byte       // shared by all ranks, at least auth.MinSecret bytes
	TLS        bool         // encrypt every TCP connection, see auth.TLS
	Listen     string       // name, address or network of the interface to listen on, several with commas between; "" for loopback
	Host       string       // identity of this host, "" to detect it: ranks with the same one pass files to each other
	Log        *slog.Logger // unrelated processes and refusals; nil for none
	Handler    Handler
	Note       string // of at most MaxNote bytes, for the other ranks: see Mesh.Note
	// Joining, if not nil, is called when joining begins. missing returns the ranks that have still
	// to come.
	Joining func(missing func() []int)
}

// Handler gets the messages of the other ranks. Its methods are called from one goroutine per peer,
// in the order of events, and must not block. They are called when all ranks have joined, possibly
// just before Join returns, and not after Close has begun, except for a call in progress, which
// Close waits for.
type Handler interface {
	// Message is called with a control message; msg is only valid during the call.
	Message(from int, msg []byte)
	// Gone is called once when a rank has closed its mesh, after its last message.
	Gone(rank int)
	// Lost is called once, instead of Gone, when the process of a rank has died
	// or can no longer be reached.
	Lost(rank int, err error)
}

// check fills in defaults, or returns an error.
func (c Config) check() (Config, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size:
		return c, fmt.Errorf("rank %d is not one of %d ranks", c.Rank, c.Size)
	case c.Store == nil || c.Handler == nil:
		return c, errors.New("a Store and a Handler are needed")
	case len(c.Job) > MaxJob:
		return c, fmt.Errorf("the name of a job has at most %d bytes, not %d", MaxJob, len(c.Job))
	case len(c.Note) > MaxNote || !utf8.ValidString(c.Note):
		return c, fmt.Errorf("the note %q is not valid UTF-8 of at most %d bytes", c.Note, MaxNote)
	case !utf8.ValidString(c.Host):
		return c, fmt.Errorf("the host %q is not valid UTF-8", c.Host)
	}
	return c, auth.Check(c.Secret)
}

// Mesh is one process's connections to others: a control connection to each, or to some if there
// are many, and data connections on demand. Its methods may be called from any goroutine.
type Mesh struct {
	cfg       Config
	self      record
	server    *tls.Config // both nil without TLS
	client    *tls.Config
	network   store.Network // nil for this machine's
	listeners []net.Listener
	places    auth.Places // of connections that are being checked
	near      []int       // ranks to which there is a control connection, see "Many ranks"
	sparse    bool        // near does not have all ranks

	broken   chan error    // holds the first reason why joining is impossible
	complete chan struct{} // closed when all ranks have joined
	closing  chan struct{} // closed when Close begins

	mu       sync.Mutex
	peers    map[int]*peer         // by rank, those near that have joined; not changed any more when all have
	ready    map[int]struct{}      // ranks that are connected to all others
	trouble  map[int]error         // why a rank could not be reached when time was up
	checking map[net.Conn]struct{} // connections that are being checked
	linked   bool                  // all near ones are connected
	roll     roll                  // of a mesh of many; not changed any more when it is complete
	heard    map[int]record        // by rank, at the root, until all are there
	upward   [][]byte              // records for the parent
	asked    bool                  // it may be had from a neighbour, see missRoll
	closed   bool
	running  sync.WaitGroup // everything that Close ends; grows only while !closed

	conns mailbox[Lane]     // accepted data connections, by rank, channel and lane
	files mailbox[*os.File] // received files, by rank and tag
	relay relay
}

func newMesh(cfg Config) *Mesh {
	m := &Mesh{
		cfg:      cfg,
		near:     neighbours(cfg.Rank, cfg.Size),
		sparse:   cfg.Size > fullSize,
		relay:    newRelay(),
		broken:   make(chan error, 1),
		complete: make(chan struct{}),
		closing:  make(chan struct{}),
		peers:    map[int]*peer{},
		ready:    map[int]struct{}{},
		trouble:  map[int]error{},
		checking: map[net.Conn]struct{}{},
	}
	if m.sparse && cfg.Rank == 0 {
		m.heard = map[int]record{}
	}
	return m
}

// SameHost reports whether rank runs on this host, so that files can be passed to it.
func (m *Mesh) SameHost(rank int) bool {
	if m.indirect(rank) {
		return m.roll.field(rank, fieldHost) == m.self.Host && m.roll.field(rank, fieldUnix) != "" && m.self.Unix != ""
	}
	p, err := m.peer(rank)
	return rank == m.cfg.Rank || err == nil && p.files != nil
}

// Host returns the identity of the host of rank, "" if there is no such rank.
func (m *Mesh) Host(rank int) string {
	switch {
	case rank == m.cfg.Rank:
		return m.self.Host
	case m.sparse && rank >= 0 && rank < m.cfg.Size:
		return m.roll.field(rank, fieldHost)
	}
	p, err := m.peer(rank)
	if err != nil {
		return ""
	}
	return p.who.Host
}

// Note returns the note of rank, "" if there is no such rank.
func (m *Mesh) Note(rank int) string {
	switch {
	case rank == m.cfg.Rank:
		return m.self.Note
	case m.sparse && rank >= 0 && rank < m.cfg.Size:
		return m.roll.field(rank, fieldNote)
	}
	p, err := m.peer(rank)
	if err != nil {
		return ""
	}
	return p.who.Note
}

// indirect reports whether a rank is another one without a control connection to this one.
func (m *Mesh) indirect(rank int) bool {
	_, near := slices.BinarySearch(m.near, rank)
	return rank >= 0 && rank < m.cfg.Size && rank != m.cfg.Rank && !near
}

// peer returns the other rank, which must be near and have joined.
func (m *Mesh) peer(rank int) (*peer, error) {
	if rank < 0 || rank >= m.cfg.Size || rank == m.cfg.Rank {
		return nil, fmt.Errorf("mesh: rank %d is not a peer of rank %d of %d", rank, m.cfg.Rank, m.cfg.Size)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.peers[rank]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("mesh: rank %d has not joined", rank)
}

// Send queues a control message of at most MaxMessage bytes; it never blocks. An error says that
// the message will not arrive. That is so once the Handler has got the end of the rank. Without an
// error it arrives unless the other process ends before.
func (m *Mesh) Send(to int, msg []byte) error {
	if len(msg) > MaxMessage {
		return fmt.Errorf("mesh: message of %d bytes to rank %d, the limit is %d", len(msg), to, MaxMessage)
	}
	far := m.indirect(to)
	m.relay.mu.Lock()
	err := m.relay.ended(to) // news of a neighbour's end may come before the end of its connection
	if err == nil && far {
		m.route(m.cfg.Rank, to, msg)
	}
	m.relay.mu.Unlock()
	if err != nil || far {
		return err
	}
	p, err := m.peer(to)
	if err != nil {
		return err
	}
	return p.post(frameMessage, msg, nil)
}

// Close leaves in good order and closes all connections within about a second, except for the data
// connections that Connect has returned. Messages sent before arrive.
func (m *Mesh) Close() error {
	m.end(frameGoodbye, nil)
	return nil
}

// end sends the given last frame, and waits for all goroutines of the mesh.
func (m *Mesh) end(last frameKind, body []byte) {
	m.mu.Lock()
	if !m.closed {
		if m.sparse && last == frameGoodbye {
			m.relay.mu.Lock()
			m.flood(&news{kind: newsGone, about: m.cfg.Rank})
			m.relay.mu.Unlock()
		}
		m.closed = true
		close(m.closing)
		for _, l := range m.listeners {
			_ = l.Close() // it fails only if it is closed
		}
		for conn := range m.checking {
			_ = conn.Close() // its check notices it
		}
		for _, p := range m.peers {
			if p != nil {
				p.farewell(last, body)
			}
		}
	}
	m.mu.Unlock()
	m.running.Wait()
	m.conns.close()
	m.files.close()
}

// start runs f until Close, which waits for it. It reports false, and does nothing, when Close has
// begun.
func (m *Mesh) start(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.running.Go(f)
	}
	return !m.closed
}
