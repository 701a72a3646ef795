package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// Wiring is how the ranks of a test are connected. The zero value is plain TCP.
type Wiring struct {
	TLS      bool
	Portable bool  // use the pump of other systems
	Lanes    int   // between two ranks; 0 for 1
	Hosts    []int // pretend hosts of so many ranks, one after the other
	Crowded  bool  // pretend that ranks share processors, whatever the machine
	Timeout  time.Duration
	Unsummed bool                      // payloads have no checksums
	Sent     func(from, to, bytes int) // is called by several goroutines, with Portable
}

// sockets is a network of sessions in this process, with data connections over
// loopback.
type sockets struct {
	grouptest.Wires
	*switchboard
}

func (s sockets) Connect(_ context.Context, rank int, channel uint64) (lanes []mesh.Lane, err error) {
	for k := range max(1, s.Lanes) {
		conn, err := s.plug(s.Rank, rank, channel, k)
		lanes = append(lanes, mesh.Lane{Conn: conn})
		if err != nil {
			return lanes, err
		}
	}
	return lanes, nil
}

func (s sockets) Plain(context.Context) bool { return !s.TLS && !s.Portable }

// switchboard makes connections in pairs, whose second end waits for its owner.
type switchboard struct {
	Wiring
	mu    sync.Mutex
	ready map[string]net.Conn
}

func (b *switchboard) plug(rank, peer int, channel uint64, lane int) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := fmt.Sprint(rank, peer, channel, lane)
	if c := b.ready[key]; c != nil {
		delete(b.ready, key)
		return c, nil
	}
	mine, theirs, err := b.pair()
	if b.Sent != nil {
		mine = counted{mine, func(n int) { b.Sent(rank, peer, n) }}
		theirs = counted{theirs, func(n int) { b.Sent(peer, rank, n) }}
	}
	b.ready[fmt.Sprint(peer, rank, channel, lane)] = theirs
	return mine, err
}

// counted tells how many bytes are written.
type counted struct {
	net.Conn
	sent func(n int)
}

func (c counted) NetConn() net.Conn { return plain(c.Conn) }

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent(n)
	return n, err
}

// opaque hides that a connection is TCP.
type opaque struct{ net.Conn }

func (o opaque) NetConn() net.Conn { return o.Conn }

// listener is the same for all: to find a free port takes longer than most tests.
var (
	listener  = sync.OnceValues(func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
	accepting sync.Mutex
)

func (w Wiring) pair() (a, b net.Conn, err error) {
	accepting.Lock()
	defer accepting.Unlock()
	l, err := listener()
	if err != nil {
		return nil, nil, err
	}
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if b, err = l.Accept(); err != nil {
		return nil, nil, err
	}
	switch {
	case w.TLS:
		server, client, err := auth.TLS()
		return tls.Client(a, client), tls.Server(b, server), err
	case w.Portable:
		return opaque{a}, opaque{b}, nil
	}
	return a, b, nil
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDisk = errors.New("disk full")

// Chunk is for tests of package tcp_test.
const Chunk = chunk

// worldID is the id of the group of all ranks.
const worldID = 1

// RemoteGroups returns a group of n ranks over loopback sockets.
func RemoteGroups(t testing.TB, n int, w Wiring) []transport.Group {
	gs, _ := remoteGroups(t, n, w)
	return gs
}

func remoteGroups(t testing.TB, n int, w Wiring) ([]transport.Group, []*session.Session) {
	gs, errs := make([]transport.Group, n), make([]error, n)
	board := &switchboard{Wiring: w, ready: map[string]net.Conn{}}
	sessions := grouptest.Wired(n, func(wires grouptest.Wires) *session.Session {
		s := session.New(session.Config{Rank: wires.Rank, Size: n, Timeout: w.Timeout, Summed: !w.Unsummed})
		s.Mesh = sockets{wires, board}
		s.NewGroup = New
		return s
	})
	var ranks sync.WaitGroup
	for r, s := range sessions {
		ranks.Go(func() { gs[r], errs[r] = New(context.Background(), s.World()) })
	}
	ranks.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	for _, g := range gs {
		remoteOf(g).crowded = w.Crowded
	}
	pretend(gs, w.Hosts)
	return gs, sessions
}

func remoteOf(g transport.Group) *remote { return g.(*transport.Serial).Backend().(*remote) }

// pretend lets gs lie on hosts of so many ranks, if that is of any use.
func pretend(gs []transport.Group, ranks []int) {
	all := hostsOf(len(gs), func(r int) string {
		host := 0
		for host < len(ranks) && r >= ranks[host] {
			r -= ranks[host]
			host++
		}
		return fmt.Sprint(host)
	})
	for _, s := range all {
		for i, local := range local.New(s.Ranks(), limit.Default) {
			h := newHosts("world", s.Lo+i, all)
			h.local = local
			remoteOf(gs[s.Lo+i]).hosts = h
		}
	}
	if all == nil {
		return
	}
	for _, s := range remoteOf(gs[0]).hosts.sums[bySubtree] {
		for i, tree := range local.New(s.Ranks(), limit.Default) {
			remoteOf(gs[s.Lo+i]).hosts.tree = tree
		}
	}
}
