package comm

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// Wiring is how the ranks of a test are connected. The zero value is plain TCP.
type Wiring struct {
	TLS      bool
	Portable bool // use the pump of other systems
	PerHost  int  // pretend hosts of so many ranks, 0 for one
	Timeout  time.Duration
	Unsummed bool // payloads have no checksums
}

// sockets is a network of sessions in this process, with data connections over
// loopback.
type sockets struct {
	wires
	*switchboard
}

func (s sockets) Connect(_ context.Context, rank int, channel uint64) (net.Conn, error) {
	return s.plug(s.rank, rank, channel)
}

// switchboard makes connections in pairs, whose second end waits for its owner.
type switchboard struct {
	Wiring
	mu    sync.Mutex
	ready map[string]net.Conn
}

func (b *switchboard) plug(rank, peer int, channel uint64) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := fmt.Sprint(rank, peer, channel)
	if c := b.ready[key]; c != nil {
		delete(b.ready, key)
		return c, nil
	}
	mine, theirs, err := b.pair()
	b.ready[fmt.Sprint(peer, rank, channel)] = theirs
	return mine, err
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

// RemoteGroups returns a group of n ranks over loopback sockets.
func RemoteGroups(t testing.TB, n int, w Wiring) []Group {
	gs, _ := remoteGroups(t, n, w)
	return gs
}

func remoteGroups(t testing.TB, n int, w Wiring) ([]Group, []*session) {
	gs, errs := make([]Group, n), make([]error, n)
	board := &switchboard{Wiring: w, ready: map[string]net.Conn{}}
	sessions := wired(n)
	for r, s := range sessions {
		s.cfg.Timeout = w.Timeout
		if w.Unsummed {
			s.cfg.Checksums = ChecksumsOff
		}
		s.mesh = sockets{wires{r, sessions}, board}
	}
	var ranks sync.WaitGroup
	for r, s := range sessions {
		ranks.Go(func() { gs[r], errs[r] = newRemote(context.Background(), s.world()) })
	}
	ranks.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	if per := w.PerHost; per > 1 && n%per == 0 && n > per {
		for lo := 0; lo < n; lo += per {
			for i, local := range Local(per) {
				remoteOf(gs[lo+i]).hosts = &hosts{local: local, count: n / per, host: lo / per, index: i}
			}
		}
	}
	return gs, sessions
}

func remoteOf(g Group) *remote { return g.(*Serial).backend.(*remote) }
