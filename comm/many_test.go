package comm_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/internal/store"
)

// cable is the network of one process, which can be killed: its connections end as a dead one's do.
type cable struct {
	dead atomic.Bool
	mu   sync.Mutex
	open []net.Conn
}

func (c *cable) Listen(_ context.Context, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	return socket{l, c}, err
}

func (c *cable) Dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c.plug(conn), nil
}

func (c *cable) Chance(...uint64) uint64 { return 1 }

func (c *cable) plug(conn net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, conn)
	return strand{conn.(*net.TCPConn), c}
}

// kill ends all connections. Nothing is said on any of them meanwhile.
func (c *cable) kill() {
	c.dead.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		_ = conn.Close()
	}
}

type socket struct {
	net.Listener
	of *cable
}

func (s socket) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.of.plug(conn), nil
}

type strand struct {
	*net.TCPConn
	of *cable
}

func (s strand) Write(b []byte) (int, error) {
	if s.of.dead.Load() {
		return 0, net.ErrClosed
	}
	return s.TCPConn.Write(b)
}

// TestDeathOfOneOfMany kills one of so many ranks that most of the others have no connection to it:
// each of them fails, in all its groups, and names it. A group that does not depend on it goes on.
func TestDeathOfOneOfMany(t *testing.T) {
	const n, victim = 20, 9
	addr := "tcp://" + grouptest.FreeAddr(t)
	cables := make([]cable, n)
	worlds, halves, safe, errs := make([]comm.Group, n), make([]comm.Group, n), make([]comm.Group, n), make([]error, n)
	all := func(f func(r int) error) {
		t.Helper()
		var ranks sync.WaitGroup
		for r := range n {
			ranks.Go(func() { errs[r] = f(r) })
		}
		ranks.Wait()
	}
	ctx := t.Context()
	all(func(r int) (err error) {
		worlds[r], err = comm.Connect(store.WithNetwork(ctx, &cables[r]), comm.Config{
			Rank: r, Size: n, Rendezvous: addr, Job: t.Name(), Secret: secret, JoinTimeout: time.Minute, Listen: "127.0.0.1",
		})
		if err == nil {
			halves[r], err = worlds[r].Split(ctx, r%2, r)
		}
		color := comm.Detached
		if r == victim {
			color = 0
		}
		if err == nil {
			safe[r], err = worlds[r].Split(ctx, color, r)
		}
		return err
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	all(func(r int) error { return halves[r].Barrier(ctx) })
	cables[victim].kill()
	all(func(r int) error {
		if r == victim {
			return nil
		}
		err := halves[r].Barrier(ctx)
		if r%2 == victim%2 {
			require.ErrorIs(t, err, comm.ErrLost)
		}
		return worlds[r].Barrier(ctx)
	})
	for r, err := range errs {
		var blame *comm.RankError
		if r != victim {
			require.ErrorAs(t, err, &blame)
			require.ErrorIs(t, err, comm.ErrLost)
			require.Equal(t, victim, blame.Rank, "%v", err)
		}
	}
	all(func(r int) error {
		if r == victim {
			return nil
		}
		return safe[r].Barrier(ctx)
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	all(func(r int) error { return worlds[r].Close() })
	for _, err := range errs {
		require.NoError(t, err)
	}
}
