package tcp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/limit"
	"github.com/gofsdp/gofsdp/comm/internal/local"
	"github.com/gofsdp/gofsdp/comm/internal/tcp"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/mesh"
	"github.com/gofsdp/gofsdp/internal/simnet"
	"github.com/gofsdp/gofsdp/internal/store"
)

// loopback returns n addresses of this host: different ones on Linux, where all of 127.0.0.0/8 is.
func loopback(n int) (ips []string) {
	for i := range n {
		ip := fmt.Sprintf("127.0.0.%d", i+1)
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			ip = "127.0.0.1"
		} else {
			_ = l.Close()
		}
		ips = append(ips, ip)
	}
	return ips
}

// listening connects ranks on hosts of their own, each of which listens as told.
func listening(t *testing.T, ctx context.Context, listen ...string) ([]transport.Group, []error) {
	addr := grouptest.FreeAddr(t)
	gs, errs := make([]transport.Group, len(listen)), make([]error, len(listen))
	var ranks sync.WaitGroup
	for r := range gs {
		ranks.Go(func() {
			gs[r], errs[r] = comm.Connect(ctx, comm.Config{
				Rank: r, Size: len(gs), Rendezvous: "tcp://" + addr, Job: t.Name(), TrustNetwork: true,
				Listen: listen[r], Host: fmt.Sprint("host ", r), JoinTimeout: time.Minute,
			})
		})
	}
	ranks.Wait()
	return gs, errs
}

// meter counts the bytes of a connection.
type meter struct {
	net.Conn
	read, written atomic.Int64
}

func (m *meter) CloseWrite() error { return m.Conn.(*net.TCPConn).CloseWrite() }

func (m *meter) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	m.read.Add(int64(n))
	return n, err
}

func (m *meter) Write(b []byte) (int, error) {
	n, err := m.Conn.Write(b)
	m.written.Add(int64(n))
	return n, err
}

func ipOf(a net.Addr) string { return netip.MustParseAddrPort(a.String()).Addr().String() }

// TestLanes has one rank on two interfaces and one on three: their connections go from each to each
// in turn, all carry as much, and results have the bits of every group.
func TestLanes(t *testing.T) {
	ips := loopback(3)
	var mu sync.Mutex
	var meters []*meter
	ctx := mesh.WithMiddle(t.Context(), func(_, _ int, conn net.Conn) net.Conn {
		mu.Lock()
		defer mu.Unlock()
		m := &meter{Conn: conn}
		meters = append(meters, m)
		return m
	})
	gs, errs := listening(t, ctx, strings.Join(ips[:2], ","), strings.Join(ips, ","))
	require.Equal(t, make([]error, 2), errs)
	local := local.New(2, limit.Default)
	grouptest.SameBits(t, gs, local, transport.KindAllReduce, transport.Float32, transport.Sum, 1<<18+3)
	grouptest.SameBits(t, gs, local, transport.KindReduceScatter, transport.BFloat16, transport.Avg, 1<<18)
	var ways []string
	meters = slices.DeleteFunc(meters, func(m *meter) bool { return m.written.Load() < tcp.Chunk }) // for control, or given up
	for _, m := range meters {
		ways = append(ways, ipOf(m.LocalAddr())+" "+ipOf(m.RemoteAddr()))
		for _, c := range []struct{ one, other int64 }{{m.read.Load(), meters[0].read.Load()}, {m.written.Load(), meters[0].written.Load()}} {
			require.Greater(t, c.one, int64(2*tcp.Chunk))
			require.InDelta(t, c.other, c.one, tcp.Chunk+1<<10) // their handshakes differ
		}
	}
	slices.Sort(ways)
	require.Equal(t, []string{ips[0] + " " + ips[0], ips[1] + " " + ips[1], ips[2] + " " + ips[0]}, ways)
	grouptest.CloseRanks(t, gs)
}

// TestNoSuchInterface has a rank name what is not there: it says what its host has.
func TestNoSuchInterface(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1,nosuch0":            `"nosuch0": not an address or interface of this host, which has [`,
		"127.0.0.1,255.255.255.255/32": "this host has no address in that network, only [",
		"127.0.0.1,192.0.2.1":          "this host has [",
		"127.0.0.1,":                   `"127.0.0.1,": an empty name; this host has [`,
	} {
		_, errs := listening(t, t.Context(), listen)
		require.ErrorContains(t, errs[0], want)
		require.ErrorContains(t, errs[0], "127.0.0.1/8")
	}
}

// homed is the network of a rank with several interfaces: what is for 10.0.k.x goes by the k-th.
type homed []*simnet.Host

func (h homed) on(address string) *simnet.Host {
	return h[netip.MustParseAddrPort(address).Addr().As4()[2]]
}

func (h homed) Listen(ctx context.Context, address string) (net.Listener, error) {
	return h.on(address).Listen(ctx, address)
}

func (h homed) Dial(ctx context.Context, address string) (net.Conn, error) {
	return h.on(address).Dial(ctx, address)
}

func (h homed) Chance(of ...uint64) uint64 { return h[0].Chance(of...) }

// TestDeadInterface has the second interface of rank 1 die before the ranks have joined, or later:
// all ranks fail soon, and say which it is.
func TestDeadInterface(t *testing.T) {
	for _, early := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const n = 3
			network := simnet.New(simnet.Config{Latency: time.Millisecond, Jitter: time.Millisecond})
			die := func() { network.Host("10.0.1.2").Isolate(time.Hour) }
			if early {
				die()
			}
			begin := time.Now()
			errs := make([]error, n)
			var ranks, joined sync.WaitGroup
			joined.Add(n)
			for r := range n {
				first, second := fmt.Sprintf("10.0.0.%d", r+1), fmt.Sprintf("10.0.1.%d", r+1)
				ctx := store.WithNetwork(t.Context(), homed{network.Host(first), network.Host(second)})
				ranks.Go(func() {
					g, err := comm.Connect(ctx, comm.Config{
						Rank: r, Size: n, Rendezvous: "tcp://10.0.0.1:29500", Job: "j", TrustNetwork: true,
						Listen: first + "," + second, Host: first,
					})
					joined.Done()
					if err != nil {
						errs[r] = err
						return
					}
					err = g.AllReduce(transport.Of(make([]float32, 1<<17)), transport.Sum).Wait(ctx)
					for err == nil {
						if joined.Wait(); r == 1 {
							die()
						}
						err = g.AllReduce(transport.Of(make([]float32, 1<<17)), transport.Sum).Wait(ctx)
					}
					errs[r] = err
					require.NoError(t, g.Close())
				})
			}
			ranks.Wait()
			for _, err := range errs {
				require.ErrorContains(t, err, "over 10.0.1.")
				require.ErrorContains(t, err, "10.0.1.2")
				var blame *transport.RankError
				require.ErrorAs(t, err, &blame)
				require.ErrorIs(t, err, transport.ErrLost)
			}
			require.Less(t, time.Since(begin), 2*mesh.Unanswered)
		})
	}
}

// crammed is the network of a rank that may open no more files as soon as full is set.
type crammed struct {
	homed
	full *atomic.Bool
}

func (c crammed) Listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := c.homed.Listen(ctx, address)
	return crammedListener{l, c.full}, err
}

type crammedListener struct {
	net.Listener
	full *atomic.Bool
}

func (c crammedListener) Accept() (net.Conn, error) {
	if c.full.Load() {
		return nil, syscall.EMFILE
	}
	conn, err := c.Listener.Accept()
	if err == nil && c.full.Load() {
		return nil, errors.Join(syscall.EMFILE, conn.Close())
	}
	return conn, err
}

// TestLackOfFiles has rank 1 unable to accept connections: from the beginning, so that it cannot join,
// or once all have joined, when a new group needs connections. All ranks fail soon, and say why and
// which it is.
func TestLackOfFiles(t *testing.T) {
	for _, early := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			const n = 3
			network := simnet.New(simnet.Config{Latency: time.Millisecond})
			var full atomic.Bool
			full.Store(early)
			begin := time.Now()
			errs := make([]error, n)
			var ranks, joined sync.WaitGroup
			joined.Add(n)
			for r := range n {
				address := fmt.Sprintf("10.0.0.%d", r+1)
				here := homed{network.Host(address)}
				ctx := store.WithNetwork(t.Context(), here)
				if r == 1 {
					ctx = store.WithNetwork(t.Context(), crammed{here, &full})
				}
				ranks.Go(func() {
					g, err := comm.Connect(ctx, comm.Config{
						Rank: r, Size: n, Rendezvous: "tcp://10.0.0.1:29500", Job: "j", TrustNetwork: true,
						Listen: address, Host: address, Logger: slog.New(slog.DiscardHandler),
					})
					joined.Done()
					if err != nil {
						errs[r] = err
						return
					}
					joined.Wait()
					full.Store(true)
					split, err := g.Split(ctx, 0, r)
					if err == nil {
						err = split.AllReduce(transport.Of(make([]float32, 1<<17)), transport.Sum).Wait(ctx)
						require.NoError(t, split.Close())
					}
					errs[r] = err
					require.NoError(t, g.Close())
				})
			}
			ranks.Wait()
			for r, err := range errs {
				require.ErrorContains(t, err, "rank 1 cannot accept connections: ", "rank %d", r)
				require.ErrorContains(t, err, "too many open files", "rank %d", r)
				require.ErrorContains(t, err, "raise it with ulimit -n", "rank %d", r)
			}
			require.Less(t, time.Since(begin), 10*time.Second)
		})
	}
}
