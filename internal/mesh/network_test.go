package mesh

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/gofsdp/gofsdp/internal/store"
)

// counted is a network of connections that are no sockets as far as the mesh can see.
type counted struct{ listens, dials, told atomic.Int64 }

func (c *counted) Listen(_ context.Context, address string) (net.Listener, error) {
	c.listens.Add(1)
	l, err := net.Listen("tcp", address)
	return modelled{l, c}, err
}

func (c *counted) Dial(ctx context.Context, address string) (net.Conn, error) {
	c.dials.Add(1)
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return end{conn.(*net.TCPConn), c}, nil
}

func (c *counted) Chance(...uint64) uint64 { return 1 }

type modelled struct {
	net.Listener
	net *counted
}

func (m modelled) Accept() (net.Conn, error) {
	conn, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return end{conn.(*net.TCPConn), m.net}, nil
}

type tcp interface {
	net.Conn
	CloseWrite() error
}

type end struct {
	tcp
	net *counted
}

func (e end) Unanswered(time.Duration) { e.net.told.Add(1) }

// TestNetworkOfContext has ranks of one host meet on a network that their contexts name, encrypted
// or not: no connection takes another way, and those for control hear when a host is lost.
func TestNetworkOfContext(t *testing.T) {
	const size = 3
	for _, encrypt := range []bool{false, true} {
		n := new(counted)
		ctx := store.WithNetwork(timeout(t, patience), n)
		j := newJob(t, size, func(c *Config) { c.TLS, c.Listen = encrypt, "127.0.0.1" })
		meshes := make(chan *Mesh, size)
		for rank := range size {
			go func() {
				m, _, err := j.join(ctx, rank)
				if err != nil {
					t.Error(err)
				}
				meshes <- m
			}()
		}
		byRank := make([]*Mesh, size)
		for range size {
			m := <-meshes
			require.NotNil(t, m)
			defer m.Close()
			byRank[m.cfg.Rank] = m
		}
		require.False(t, byRank[0].SameHost(1), "no file passes such a network")
		dialed := make(chan error, 1)
		go func() {
			conn, err := byRank[0].one(timeout(t, patience), 2, 9)
			if err == nil {
				err = conn.Close()
			}
			dialed <- err
		}()
		conn, err := byRank[2].one(timeout(t, patience), 0, 9)
		require.NoError(t, err)
		require.NoError(t, <-dialed)
		require.NoError(t, conn.Close())
		require.EqualValues(t, size, n.listens.Load())
		require.EqualValues(t, 3+1, n.dials.Load(), "one for a pair, one for data")
		require.EqualValues(t, 2*3, n.told.Load(), "both ends of control connections")
	}
}

// TestLeaverIsWaitedFor has a rank say goodbye while a connection that it has accepted is still on
// its way here: another connection, which may be slower.
func TestLeaverIsWaitedFor(t *testing.T) {
	for _, why := range []error{ErrGone, errDied} {
		synctest.Test(t, func(t *testing.T) {
			m := newMesh(Config{Size: 2})
			end := &fate{over: make(chan struct{}), ended: why}
			ctx, done := m.withPeer(t.Context(), end)
			defer done()
			begin := time.Now()
			close(end.over)
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), why)
			require.Equal(t, why == ErrGone, time.Since(begin) == linger)
		})
	}
}

// mute is a network on which everybody accepts and nobody says anything.
type mute struct{ store.Network }

func (mute) Chance(...uint64) uint64 { return 0 }

func (mute) Dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }() // until the other end is closed
	return near, nil
}

// TestGivesUpOnLeaver has a rank say goodbye and then nothing more, as on a host that is cut off:
// who connects to it goes on for the time of a handshake, but not when the caller has given up.
func TestGivesUpOnLeaver(t *testing.T) {
	for _, asked := range []time.Duration{2 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			m := newMesh(Config{Size: 2, Rank: 1, Secret: bytes.Repeat([]byte{1}, auth.MinSecret)})
			m.network = mute{}
			caller, cancel := context.WithTimeout(t.Context(), asked)
			defer cancel()
			end := &fate{over: make(chan struct{}), ended: ErrGone}
			close(end.over)
			ctx, done := m.withPeer(caller, end)
			defer done()
			begin := time.Now()
			_, err := m.dial(caller, ctx, dialTarget{network: "tcp", address: "10.0.0.1:1"}, 0, auth.Hello{Purpose: purposeData}, visit{})
			require.ErrorContains(t, err, "dialing rank 0 at 10.0.0.1:1 did not finish")
			require.ErrorIs(t, err, ErrGone)
			require.Equal(t, min(asked, dialTime), time.Since(begin))
		})
	}
}

// backwards is a context that tells of its end whoever has asked last first, which a context may.
type backwards struct {
	context.Context
	over  chan struct{}
	asked []func()
}

func (b *backwards) Done() <-chan struct{} { return b.over }

func (b *backwards) Err() error {
	select {
	case <-b.over:
		return context.Canceled
	default:
		return nil
	}
}

func (b *backwards) AfterFunc(f func()) (stop func() bool) {
	b.asked = append(b.asked, f)
	return func() bool { return true }
}

// TestSaysThatCallerGaveUp has a caller give up during a handshake: that is the error, and not the
// end of the connection that it brings about.
func TestSaysThatCallerGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(Config{Size: 2, Rank: 1, Secret: bytes.Repeat([]byte{1}, auth.MinSecret)})
		m.network = mute{}
		caller := &backwards{Context: t.Context(), over: make(chan struct{})}
		ctx, done := m.withPeer(caller, &fate{over: make(chan struct{})})
		defer done()
		failed := make(chan error, 1)
		go func() {
			_, err := m.dial(caller, ctx, dialTarget{network: "tcp", address: "10.0.0.1:1"}, 0, auth.Hello{Purpose: purposeData}, visit{})
			failed <- err
		}()
		synctest.Wait()
		close(caller.over)
		for _, tell := range slices.Backward(slices.Clone(caller.asked)) {
			tell()
			synctest.Wait()
		}
		require.ErrorIs(t, <-failed, context.Canceled)
	})
}

// deaf is a network on which nobody answers. In the first dial the process is stopped for a time.
type deaf struct {
	counted
	stopped time.Duration
}

func (d *deaf) Dial(ctx context.Context, _ string) (net.Conn, error) {
	if d.dials.Add(1) == 1 {
		<-time.After(d.stopped)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestGivesUpInterface dials an interface that does not answer: that is over soon, but not because
// the dialing process was stopped.
func TestGivesUpInterface(t *testing.T) {
	for _, stopped := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			m, n, begin := newMesh(Config{Rank: 1, Size: 2}), &deaf{stopped: stopped}, time.Now()
			m.network = n
			_, err := m.dial(t.Context(), t.Context(), dialTarget{network: "tcp", address: "10.0.1.1:1"}, 0, auth.Hello{}, visit{Over: "eth1"})
			require.ErrorContains(t, err, "dialing rank 0 over eth1: ")
			require.EqualValues(t, Unanswered/checkTime, n.dials.Load())
			require.GreaterOrEqual(t, time.Since(begin), Unanswered)
			require.Less(t, time.Since(begin), stopped+Unanswered+time.Second)
		})
	}
}

// full is a listener of a process that may open no more files.
type full struct{ net.Listener }

func (full) Accept() (net.Conn, error) { return nil, syscall.EMFILE }

// filled is the network of such a process.
type filled struct{ counted }

func (*filled) Dial(context.Context, string) (net.Conn, error) { return nil, syscall.EMFILE }

// TestLackOfFilesFails has a rank that may open no more files. After 2 s joining fails, and
// whatever waits for a connection, unless that is here and only has to be checked. Later calls wait
// as before.
func TestLackOfFilesFails(t *testing.T) {
	const text = "too many open files: this process has reached its limit of open files: raise it with ulimit -n"
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(Config{Rank: 1, Size: 3, Log: slog.New(slog.DiscardHandler)})
		begin := time.Now()
		m.start(func() { m.accept(full{}) })
		coming := label{rank: 2, id: 8}
		require.NoError(t, m.conns.reserve(coming))
		arrived := make(chan error, 1)
		go func() {
			_, err := m.conns.take(t.Context(), coming)
			arrived <- err
		}()
		_, err := m.takeLanes(t.Context(), 2, 7)
		require.EqualError(t, err, "rank 1 cannot accept connections: "+text)
		require.Less(t, time.Since(begin), 3*time.Second)
		require.Equal(t, err, <-m.broken, "joining fails, too")
		require.NoError(t, m.conns.put(coming, Lane{}))
		require.NoError(t, <-arrived)
		require.NoError(t, m.Close())
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(errLate)
		_, err = m.conns.take(ended, label{rank: 2, id: 9})
		require.Equal(t, errLate, err)

		m.network, begin = new(filled), time.Now()
		_, err = m.dial(t.Context(), t.Context(), dialTarget{network: "tcp", address: "10.0.0.1:1"}, 0, auth.Hello{Purpose: purposeData}, visit{})
		require.EqualError(t, err, "dialing rank 0: "+text)
		require.Less(t, time.Since(begin), 4*time.Second)
	})
}
