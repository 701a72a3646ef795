package simnet

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const latency = 10 * time.Millisecond

// between connects two hosts of a network that carries a byte in a microsecond, in a bubble.
func between(t *testing.T, f func(t *testing.T, n *Net, a, b *Host, near, far *Conn)) {
	synctest.Test(t, func(t *testing.T) {
		n := New(Config{Latency: latency, Bandwidth: 1e6})
		a, b := n.Host("10.0.0.1"), n.Host("10.0.0.2")
		l, err := b.Listen(t.Context(), "10.0.0.2:0")
		require.NoError(t, err)
		begin := time.Now()
		near, err := a.Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		require.Equal(t, 2*latency, time.Since(begin))
		far, err := l.Accept()
		require.NoError(t, err)
		require.Equal(t, near.RemoteAddr().String(), far.LocalAddr().String())
		require.Equal(t, near.LocalAddr().String(), far.RemoteAddr().String())
		f(t, n, a, b, near.(*Conn), far.(*Conn))
		_ = near.Close()
		_ = far.Close()
		_ = l.Close() // its process may have ended
		require.Zero(t, n.Open())
		require.Equal(t, 1, n.Conns())
	})
}

func readAll(c net.Conn, size int) ([]byte, error) {
	b := make([]byte, size)
	n, err := io.ReadFull(c, b)
	return b[:n], err
}

// TestTimes has bytes arrive when the bandwidth and the latency say so, in order, and the end after
// them.
func TestTimes(t *testing.T) {
	between(t, func(t *testing.T, _ *Net, _, _ *Host, near, far *Conn) {
		begin := time.Now()
		for _, text := range []string{"hello, ", "world"} {
			_, err := io.WriteString(near, text)
			require.NoError(t, err)
		}
		require.NoError(t, near.CloseWrite())
		require.Zero(t, time.Since(begin))
		got, err := readAll(far, 7)
		require.NoError(t, err)
		require.Equal(t, "hello, ", string(got))
		require.Equal(t, latency+7*time.Microsecond, time.Since(begin))
		rest, err := io.ReadAll(far)
		require.NoError(t, err)
		require.Equal(t, "world", string(rest))
		require.Equal(t, latency+12*time.Microsecond, time.Since(begin))
		_, err = io.WriteString(near, "more")
		require.ErrorIs(t, err, syscall.EPIPE)
	})
}

// TestWindow has a writer wait for a reader, and a deadline end that.
func TestWindow(t *testing.T) {
	between(t, func(t *testing.T, _ *Net, _, _ *Host, near, far *Conn) {
		require.NoError(t, near.SetWriteDeadline(time.Now().Add(time.Second)))
		n, err := near.Write(make([]byte, Window+1))
		require.Equal(t, Window, n)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, near.SetWriteDeadline(time.Time{}))
		done := make(chan error)
		go func() {
			_, err := near.Write([]byte{1})
			done <- err
		}()
		synctest.Wait()
		_, err = readAll(far, Window+1)
		require.NoError(t, err)
		require.NoError(t, <-done)
	})
}

func TestDeadline(t *testing.T) {
	between(t, func(t *testing.T, _ *Net, _, _ *Host, near, _ *Conn) {
		begin := time.Now()
		require.NoError(t, near.SetReadDeadline(begin.Add(time.Minute)))
		_, err := near.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		require.Equal(t, time.Minute, time.Since(begin))
		require.NoError(t, near.SetDeadline(time.Unix(1, 0)))
		_, err = near.Write([]byte{1})
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

// TestKill has a process end: what it has said arrives, then its end; what it still says does not;
// and nobody listens.
func TestKill(t *testing.T) {
	between(t, func(t *testing.T, _ *Net, a, b *Host, near, far *Conn) {
		_, err := io.WriteString(far, "last words")
		require.NoError(t, err)
		b.Kill()
		_, err = io.WriteString(far, "from the grave")
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = b.Dial(t.Context(), "10.0.0.1:1")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = b.Listen(t.Context(), "10.0.0.2:0")
		require.ErrorIs(t, err, syscall.ENETDOWN)
		got, err := io.ReadAll(near)
		require.NoError(t, err)
		require.Equal(t, "last words", string(got))
		_, err = near.Write([]byte{1})
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = a.Dial(t.Context(), near.RemoteAddr().String())
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// TestIsolate cuts a host off: what is sent comes when the way is open again, and a connection that
// is told to ends before.
func TestIsolate(t *testing.T) {
	between(t, func(t *testing.T, n *Net, a, b *Host, near, far *Conn) {
		begin := time.Now()
		b.Isolate(time.Minute)
		_, err := near.Write([]byte{7})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = a.Dial(ctx, near.RemoteAddr().String())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = far.Read(make([]byte, 1))
		require.NoError(t, err)
		require.InDelta(t, time.Minute+resend, time.Since(begin), float64(2*latency))
		near.Unanswered(20 * time.Second)
		begin = time.Now()
		b.Isolate(time.Hour)
		_, err = near.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		require.InDelta(t, 20*time.Second, time.Since(begin), float64(2*latency))
	})
}

// TestStall stops a process, which hears and says nothing meanwhile.
func TestStall(t *testing.T) {
	between(t, func(t *testing.T, _ *Net, _, b *Host, near, far *Conn) {
		begin := time.Now()
		b.Stall(time.Minute)
		b.Stall(time.Second) // no longer than it is stopped already
		_, err := near.Write([]byte{7})
		require.NoError(t, err)
		_, err = far.Read(make([]byte, 1))
		require.NoError(t, err)
		require.InDelta(t, time.Minute, time.Since(begin), float64(2*latency))
	})
	between(t, func(t *testing.T, _ *Net, _, b *Host, near, far *Conn) { // that is killed: it never says that
		_, err := io.WriteString(far, "before")
		require.NoError(t, err)
		b.Stall(time.Minute)
		_, err = io.WriteString(far, "meanwhile")
		require.NoError(t, err)
		require.NoError(t, far.CloseWrite())
		begin := time.Now()
		b.Kill()
		got, err := io.ReadAll(near)
		require.NoError(t, err)
		require.Equal(t, "before", string(got))
		require.Less(t, time.Since(begin), time.Second)
	})
}

// TestPart cuts the connection of two hosts, once as one of them is apart, and not when both are.
func TestPart(t *testing.T) {
	between(t, func(t *testing.T, n *Net, a, b *Host, near, far *Conn) {
		for _, some := range [][]*Host{{b}, {a, b}} {
			n.Part(some, time.Minute)
			begin := time.Now()
			_, err := near.Write([]byte{1})
			require.NoError(t, err)
			_, err = readAll(far, 1)
			require.NoError(t, err)
			require.Equal(t, len(some) == 1, time.Since(begin) >= time.Minute, "%v", time.Since(begin))
		}
	})
}

func TestCutDelayFlip(t *testing.T) {
	between(t, func(t *testing.T, n *Net, a, b *Host, near, far *Conn) {
		n.Delay(a, b, time.Second, time.Minute)
		flipped := n.Flip(a, b)
		begin := time.Now()
		require.Zero(t, flipped.At())
		_, err := near.Write([]byte{0, 0, 0, 0})
		require.NoError(t, err)
		got, err := readAll(far, 4)
		require.NoError(t, err)
		require.Greater(t, time.Since(begin), time.Second)
		ones := 0
		for _, c := range got {
			for ; c != 0; c &= c - 1 {
				ones++
			}
		}
		require.Equal(t, 1, ones)
		require.Equal(t, begin, flipped.At())
		count, met := n.Cut(a, b)
		require.Equal(t, 1, count)
		require.Zero(t, met.At())
		for _, c := range []*Conn{near, far} {
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
			_, err = c.Write(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
		require.Equal(t, time.Now(), met.At())
	})
	between(t, func(t *testing.T, n *Net, a, b *Host, near, _ *Conn) {
		near.Unanswered(time.Second)
		_, met := n.Cut(b, a)
		require.Equal(t, time.Now(), met.At(), "it has to be watched")
	})
}

// TestSeed has times depend on the seed and the hosts, and on nothing else.
func TestSeed(t *testing.T) {
	first := func(seed uint64, ip string) (d time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			n := New(Config{Seed: seed, Latency: latency, Jitter: latency})
			l, err := n.Host("10.0.0.1").Listen(t.Context(), "10.0.0.1:7")
			require.NoError(t, err)
			begin := time.Now()
			c, err := n.Host(ip).Dial(t.Context(), "10.0.0.1:7")
			require.NoError(t, err)
			d = time.Since(begin)
			require.NoError(t, c.Close())
			require.NoError(t, l.Close())
		})
		return d
	}
	require.Equal(t, first(1, "10.0.0.2"), first(1, "10.0.0.2"))
	require.NotEqual(t, first(1, "10.0.0.2"), first(2, "10.0.0.2"))
	require.NotEqual(t, first(1, "10.0.0.2"), first(1, "10.0.0.3"))
	h := New(Config{Seed: 1}).Host("10.0.0.1")
	require.Equal(t, h.Chance(1, 2), h.Chance(1, 2))
	require.NotEqual(t, h.Chance(1, 2), h.Chance(2, 1))
}
