package mesh

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMessages sends messages of all sizes between all pairs at once.
func TestMessages(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", MaxMessage-8)
	text := func(from, to, i int) string {
		switch i % 10 {
		case 3:
			return ""
		case 7:
			return fmt.Sprintf("%d%d %3d %s", from, to, i, big[:len(big)-i])
		}
		return fmt.Sprintf("%d to %d: %d", from, to, i)
	}
	const count = 60
	eachWay(t, func(t *testing.T, change func(*Config)) {
		for size := 1; size <= 5; size++ {
			ranks := newJob(t, size, change).open(t)
			var senders sync.WaitGroup
			for from, l := range ranks {
				for to := range size {
					if to == from {
						continue
					}
					senders.Go(func() {
						for i := range count {
							if err := l.Send(to, []byte(text(from, to, i))); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			senders.Wait()
			for to, l := range ranks {
				for from := range size {
					if from == to {
						continue
					}
					for i, h := range l.ear.first(t, from, count) {
						require.Equal(t, heard{"message", from, text(from, to, i)}, h)
					}
				}
			}
			closeAll(ranks)
		}
	})
}

func TestSendRefuses(t *testing.T) {
	ranks := newJob(t, 2, nil).open(t)
	require.ErrorContains(t, ranks[0].Send(0, nil), "rank 0 is not a peer of rank 0 of 2")
	require.ErrorContains(t, ranks[0].Send(2, nil), "rank 2 is not a peer of rank 0 of 2")
	require.ErrorContains(t, ranks[0].Send(-1, nil), "rank -1 is not a peer of rank 0 of 2")
	require.ErrorContains(t, ranks[0].Send(1, make([]byte, MaxMessage+1)), "the limit is 65536")
	require.NoError(t, ranks[0].Send(1, []byte("last")))
	require.NoError(t, ranks[0].Close())
	require.NoError(t, ranks[0].Close(), "again")
	require.ErrorIs(t, ranks[0].Send(1, nil), ErrClosed)
	require.Equal(t, []heard{{"message", 0, "last"}, {"gone", 0, ""}}, ranks[1].ear.first(t, 0, 2))
}

// TestClose checks that a rank can leave at once, that the others learn of it after its last
// message, and that they go on.
func TestClose(t *testing.T) {
	eachWay(t, func(t *testing.T, change func(*Config)) {
		ranks := newJob(t, 3, change).open(t)
		for range 10 {
			require.NoError(t, ranks[1].Send(0, make([]byte, MaxMessage)))
		}
		require.NoError(t, ranks[1].Close())
		require.Equal(t, "gone", ranks[0].ear.first(t, 1, 11)[10].what)
		ranks[2].ear.first(t, 1, 1)
		require.ErrorIs(t, ranks[0].Send(1, nil), ErrGone)
		require.ErrorContains(t, ranks[0].Send(1, nil), "rank 1 has left")
		ranks[1].ear.none(t)

		require.NoError(t, ranks[0].Send(2, []byte("still here")))
		require.Equal(t, "still here", ranks[2].ear.first(t, 0, 1)[0].text)
	})
}

// TestCloseIsFast checks that the others answer goodbye. That takes microseconds, but on a busy
// machine.
func TestCloseIsFast(t *testing.T) {
	eachWay(t, func(t *testing.T, change func(*Config)) {
		best := patience
		for attempt := 0; attempt < 5 && best >= linger/4; attempt++ {
			ranks := newJob(t, 3, change).open(t)
			start := time.Now()
			require.NoError(t, ranks[1].Close())
			best = min(best, time.Since(start))
			closeAll(ranks)
		}
		require.Less(t, best, linger)
	})
}

// TestCloseAtOnce closes all ranks as soon as they have joined: nobody may take that for a failure
// to join.
func TestCloseAtOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, change func(*Config)) {
		for range 5 {
			j := newJob(t, 4, change)
			var all sync.WaitGroup
			for rank := range j.size {
				all.Go(func() {
					m, _, err := j.join(context.Background(), rank)
					if err != nil {
						t.Error(err)
						return
					}
					_ = m.Close()
				})
			}
			all.Wait()
		}
	})
}

// TestLost cuts a connection as a dead process does, in the middle of messages.
func TestLost(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, change func(*Config)) {
		ranks := newJob(t, 3, change).open(t)
		require.NoError(t, ranks[1].Send(0, []byte("before")))
		ranks[0].ear.first(t, 1, 1)
		require.NoError(t, ranks[1].peers[0].conn.Close())
		for r, other := range []int{1, 0} {
			list := ranks[r].ear.first(t, other, 2-r)
			lost := list[len(list)-1]
			require.Equal(t, "lost", lost.what)
			require.Regexp(t, fmt.Sprintf(`^rank %d on host \S+ pid \d+: the connection ended unexpectedly: has the process died\?$`, other), lost.text)
			require.ErrorContains(t, ranks[r].Send(other, nil), "the connection ended unexpectedly")
			require.NotErrorIs(t, ranks[r].Send(other, nil), ErrGone)
		}
		ranks[2].ear.none(t)
		_, err := ranks[0].one(context.Background(), 1, 1)
		require.ErrorContains(t, err, "the connection ended unexpectedly")
	})
}

// TestProtocolErrors lets a peer say what it must not.
func TestProtocolErrors(t *testing.T) {
	for name, c := range map[string]struct{ says, want string }{
		"kind":    {"\x09\x00\x00\x00\x00sum.", "protocol error: frame of kind 9 with 0 bytes"},
		"length":  {"\x02\x00\x01\x00\x01sum.", "protocol error: frame of kind 2 with 65537 bytes"},
		"garbage": {"GET / HTTP/1.1\r\n\r\n", "protocol error: frame of kind 71"},
		"damage":  {"\x02\x00\x00\x00\x01sum.!", "protocol error: frame of kind 2 with 1 bytes was damaged on the way"},
		"turn":    {string(appendFrame(nil, frameReady, nil)), "protocol error: frame of kind 1 out of turn"},
		"file":    {string(appendFrame(nil, frameFile, []byte("abcdefgh"))), "protocol error: "},
		"abort":   {string(appendFrame(nil, frameAbort, []byte("!"))), "malformed mesh.setback"},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, change func(*Config)) {
				ranks := newJob(t, 2, change).open(t)
				_, err := ranks[1].peers[0].conn.Write([]byte(c.says))
				require.NoError(t, err)
				lost := ranks[0].ear.first(t, 1, 1)[0]
				require.Equal(t, "lost", lost.what)
				require.Contains(t, lost.text, c.want)
				require.Equal(t, "lost", ranks[1].ear.first(t, 0, 1)[0].what)
			})
		})
	}
}

// stuck is a Handler that does not come back until it is released.
type stuck struct {
	*ear
	release chan struct{}
}

func (s stuck) Message(int, []byte) { <-s.release }

// newStuckJob is a job of two ranks, of which rank 1 does not read until release is closed.
func newStuckJob(t *testing.T, change func(*Config)) (ranks []joined, release chan struct{}) {
	release = make(chan struct{})
	return newJob(t, 2, func(c *Config) {
		if change != nil {
			change(c)
		}
		if c.Rank == 1 {
			c.Handler = stuck{c.Handler.(*ear), release}
		}
	}).open(t), release
}

// TestUnread checks what becomes of a rank that does not read: the others never block, and lose it
// in the end.
func TestUnread(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, change func(*Config)) {
		ranks, release := newStuckJob(t, change)
		var err error
		sent := 0
		for ; err == nil; sent++ {
			require.Less(t, sent, 64<<20/MaxMessage, "nothing is unbounded")
			err = ranks[0].Send(1, make([]byte, MaxMessage))
		}
		require.GreaterOrEqual(t, sent, maxUnsent/MaxMessage-1)
		require.ErrorContains(t, err, "does not read")
		require.Equal(t, "lost", ranks[0].ear.first(t, 1, 1)[0].what)
		close(release)
		require.Equal(t, "lost", ranks[1].ear.first(t, 0, 1)[0].what)
	})
}

// TestCloseStuck closes a mesh that owes much to a rank that does not read.
func TestCloseStuck(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, change func(*Config)) {
		ranks, release := newStuckJob(t, change)
		for range maxUnsent/MaxMessage - 1 {
			require.NoError(t, ranks[0].Send(1, make([]byte, MaxMessage)))
		}
		start := time.Now()
		require.NoError(t, ranks[0].Close())
		require.Less(t, time.Since(start), patience/4)
		close(release)
	})
}

// TestCloseFull closes a mesh when the queue is full: the goodbye has its place.
func TestCloseFull(t *testing.T) {
	ranks := newJob(t, 2, nil).open(t)
	p := ranks[0].peers[1]
	p.mu.Lock()
	p.unsent += maxUnsent
	p.mu.Unlock()
	require.NoError(t, ranks[0].Close())
	require.Equal(t, "gone", ranks[1].ear.first(t, 0, 1)[0].what)
}

func TestHosts(t *testing.T) {
	ranks := newJob(t, 4, func(c *Config) { c.Host = []string{"a", "b"}[c.Rank/2] }).open(t)
	for r, l := range ranks {
		for q := range ranks {
			require.Equal(t, q == r || r/2 == q/2 && runtime.GOOS == "linux", l.SameHost(q))
			require.Equal(t, []string{"a", "b"}[q/2], l.Host(q))
			require.Equal(t, fmt.Sprint("note ", q), l.Note(q))
		}
		require.False(t, l.SameHost(4))
		require.Empty(t, l.Host(-1))
	}
	ranks = newJob(t, 2, nil).open(t)
	require.Equal(t, runtime.GOOS == "linux", ranks[0].SameHost(1))
	require.Equal(t, ranks[0].Host(0), ranks[0].Host(1))
	require.NotEmpty(t, ranks[0].Host(0))
}

// TestConnect opens data connections between all pairs on several channels at once, and uses them
// both ways.
func TestConnect(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, change func(*Config)) {
		const size, channels, bytesEach = 4, 3, 1 << 20
		ranks := newJob(t, size, change).open(t)
		var all sync.WaitGroup
		for r, l := range ranks {
			for q := range size {
				for c := range uint64(channels) {
					if q == r {
						continue
					}
					all.Go(func() {
						conn, err := l.one(timeout(t, patience), q, c)
						if err != nil {
							t.Error(err)
							return
						}
						defer conn.Close()
						if l.cfg.TLS {
							_ = conn.(*tls.Conn)
						} else {
							_ = conn.(*net.TCPConn)
						}
						mine := bytes.Repeat([]byte{byte(r), byte(q), byte(c), 1}, bytesEach/4)
						theirs := bytes.Repeat([]byte{byte(q), byte(r), byte(c), 1}, bytesEach/4)
						var writer sync.WaitGroup
						writer.Go(func() {
							if _, err := conn.Write(mine); err != nil {
								t.Error(err)
							}
						})
						got := make([]byte, bytesEach)
						if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, theirs) {
							t.Errorf("rank %d from %d on channel %d: other bytes, %v", r, q, c, err)
						}
						writer.Wait()
					})
				}
			}
		}
		all.Wait()
	})
}

// TestConnectionsOutlive checks that data connections are their callers', as long as both processes
// live.
func TestConnectionsOutlive(t *testing.T) {
	ranks := newJob(t, 2, nil).open(t)
	high, err := ranks[1].one(timeout(t, patience), 0, 1)
	require.NoError(t, err, "nobody has asked for the other end yet")
	low, err := ranks[0].one(timeout(t, patience), 1, 1)
	require.NoError(t, err)
	closeAll(ranks)
	_, err = high.Write([]byte("still open"))
	require.NoError(t, err)
	got := make([]byte, 10)
	_, err = io.ReadFull(low, got)
	require.NoError(t, err)
	require.NoError(t, high.Close())
	require.NoError(t, low.Close())
}

// TestConnectEnds ends Connect while nobody answers, in every way there is.
func TestConnectEnds(t *testing.T) {
	_, err := newJob(t, 1, nil).open(t)[0].one(context.Background(), 0, 1)
	require.ErrorContains(t, err, "rank 0 is not a peer of rank 0 of 1")

	why := fmt.Errorf("enough")
	for name, c := range map[string]struct {
		end  func(ranks []joined, cancel context.CancelCauseFunc)
		want string
	}{
		"context": {func(_ []joined, cancel context.CancelCauseFunc) { cancel(why) }, "enough"},
		"closed":  {func(ranks []joined, _ context.CancelCauseFunc) { _ = ranks[0].Close() }, "this process has left the job"},
		"gone":    {func(ranks []joined, _ context.CancelCauseFunc) { _ = ranks[1].Close() }, "rank 1 has left the job"},
		"lost":    {func(ranks []joined, _ context.CancelCauseFunc) { _ = ranks[1].peers[0].conn.Close() }, "the connection ended unexpectedly"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := newJob(t, 2, nil).open(t)
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			failed := make(chan error)
			go func() {
				_, err := ranks[0].one(ctx, 1, 0xabc)
				failed <- err
			}()
			c.end(ranks, cancel)
			err := <-failed
			require.ErrorContains(t, err, "mesh: data connection of rank 0 to rank 1 on channel 0xabc: ")
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestConnectTwice checks that one connection at a time waits on a channel, and a limited number
// altogether.
func TestConnectTwice(t *testing.T) {
	ranks := newJob(t, 2, nil).open(t)
	first, err := ranks[1].one(timeout(t, patience), 0, 5)
	require.NoError(t, err)
	defer first.Close()
	_, err = ranks[1].one(timeout(t, patience), 0, 5)
	require.ErrorContains(t, err, "refused by the other side: rank 0, channel 0x5: an earlier one with the same number has not been used yet")

	low, err := ranks[0].one(timeout(t, patience), 1, 5)
	require.NoError(t, err)
	defer low.Close()
	again, err := ranks[1].one(timeout(t, patience), 0, 5)
	require.NoError(t, err, "the first has been asked for")
	defer again.Close()

	for c := range uint64(maxWaiting - 1) {
		require.NoError(t, ranks[0].conns.put(label{rank: 1, id: 100 + c}, Lane{Conn: nopConn{}}))
	}
	_, err = ranks[1].one(timeout(t, patience), 0, 6)
	require.ErrorContains(t, err, "rank 0, channel 0x6: 256 from rank 1 have not been used yet")
}

type nopConn struct{ net.Conn }

func (nopConn) Close() error { return nil }

// TestLeftBehind: a connection of a rank that has left since is had all the same, though the
// goodbye is heard before the end of the handshake. The rank may have said all that it had to say.
func TestLeftBehind(t *testing.T) {
	t.Run("accepted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, arrives := range []bool{true, false} {
				var b mailbox[net.Conn]
				require.NoError(t, b.reserve(label{rank: 1, id: 5}))
				ctx, cancel := context.WithCancelCause(t.Context())
				taken := make(chan error, 1)
				go func() { _, err := b.take(ctx, label{rank: 1, id: 5}); taken <- err }()
				cancel(fmt.Errorf("rank 1 %w", ErrGone))
				synctest.Wait()
				require.Empty(t, taken)
				if arrives {
					require.NoError(t, b.put(label{rank: 1, id: 5}, Lane{Conn: nopConn{}}))
					require.NoError(t, <-taken)
				} else {
					b.release(label{rank: 1, id: 5})
					require.ErrorIs(t, <-taken, ErrGone)
				}
			}
		})
	})
	t.Run("dialed", func(t *testing.T) {
		ranks := newJob(t, 2, nil).open(t)
		gone := make(chan struct{})
		ctx := WithMiddle(timeout(t, patience), func(_, _ int, conn net.Conn) net.Conn { return &slowEnd{Conn: conn, until: gone} })
		dialed := make(chan error, 1)
		go func() {
			conn, err := ranks[1].one(ctx, 0, 5)
			if err == nil {
				_, err = io.ReadFull(conn, make([]byte, 4))
				_ = conn.Close()
			}
			dialed <- err
		}()
		conn, err := ranks[0].one(ctx, 1, 5)
		require.NoError(t, err)
		_, err = conn.Write([]byte("last"))
		require.NoError(t, err)
		require.NoError(t, ranks[0].Close())
		require.Equal(t, "gone", ranks[1].ear.first(t, 0, 1)[0].what)
		close(gone)
		require.NoError(t, <-dialed)
		require.NoError(t, conn.Close())
	})
}

// slowEnd reads the end of a handshake late.
type slowEnd struct {
	net.Conn
	said  int // the greeting, then the hello
	until chan struct{}
}

func (c *slowEnd) Write(b []byte) (int, error) {
	c.said++
	return c.Conn.Write(b)
}

func (c *slowEnd) Read(b []byte) (int, error) {
	if c.said == 2 {
		<-c.until
	}
	return c.Conn.Read(b)
}

// TestForget has a rank close a channel on which another connects: what was opened before ends, and
// what comes later is refused.
func TestForget(t *testing.T) {
	ranks := newJob(t, 2, nil).open(t)
	ctx := timeout(t, patience)
	conn, err := ranks[1].one(ctx, 0, 7)
	require.NoError(t, err)
	defer conn.Close()
	ranks[0].Forget(7)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = ranks[1].one(ctx, 0, 7)
	require.ErrorContains(t, err, "it arrived after its use had ended")
}
