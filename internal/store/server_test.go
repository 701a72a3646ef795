package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
	"github.com/stretchr/testify/require"
)

var config = Config{Job: "gpt", Size: 8, Secret: secret}

// memory is a network of pipes with one listener, for tests in fake time.
type memory struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newMemory() *memory { return &memory{conns: make(chan net.Conn), done: make(chan struct{})} }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error { m.once.Do(func() { close(m.done) }); return nil }

type memoryAddr struct{}

func (memoryAddr) Network() string { return "pipe" }
func (memoryAddr) String() string  { return "memory" }

func (m *memory) Addr() net.Addr { return memoryAddr{} }

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connect: connection refused")}

func (m *memory) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case m.conns <- b:
		return a, nil
	case <-m.done:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// journal collects what is logged.
type journal struct {
	mu   sync.Mutex
	errs []error
}

func (j *journal) log(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.errs = append(j.errs, err)
}

func (j *journal) all() []error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.errs
}

// bubble runs a test in fake time with a server and a way to dial it.
func bubble(t *testing.T, test func(t *testing.T, s *Server, m *memory, j *journal)) {
	synctest.Test(t, func(t *testing.T) {
		m, j := newMemory(), &journal{}
		cfg := config
		cfg.Log = j.log
		s, err := Serve(m, cfg)
		require.NoError(t, err)
		defer s.Close() // when the test fails
		test(t, s, m, j)
		require.NoError(t, s.Close())
		require.Zero(t, s.vacancies(), "a Get that nobody waits for is left")
	})
}

// vacancies returns the number of keys that are waited for.
func (s *Server) vacancies() int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return len(s.table.waiting)
}

func join(t *testing.T, m *memory) *client {
	c, err := dial(t.Context(), "memory:1", config, m.dial)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c.(*client)
}

func TestServerLostWhileWaiting(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, m *memory, _ *journal) {
		c := join(t, m)
		start := time.Now()
		failed := make(chan error, 3)
		for range 3 {
			go func() { _, err := c.Get(t.Context(), "never"); failed <- err }()
		}
		synctest.Wait()
		require.NoError(t, s.Close())
		require.NoError(t, s.Close(), "twice")
		for range 3 {
			err := <-failed
			require.ErrorIs(t, err, ErrLost)
			require.ErrorContains(t, err, `store of rank 0 at memory:1: get "never": connection to the store lost: the server has closed the connection`)
		}
		require.ErrorIs(t, set(t.Context(), c, "k", nil), ErrLost)
		require.Zero(t, time.Since(start))
	})
}

func TestAbandonedGetLeavesTheServer(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, m *memory, _ *journal) {
		c := join(t, m)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var gets sync.WaitGroup
		for i := range 100 {
			gets.Go(func() {
				_, err := c.Get(ctx, fmt.Sprint(i%10))
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "no rank has set it")
			})
		}
		synctest.Wait()
		require.Equal(t, 10, s.vacancies())
		gets.Wait()
		synctest.Wait()
		require.Zero(t, s.vacancies())
		c.mu.Lock()
		defer c.mu.Unlock()
		require.Empty(t, c.calls)
	})
}

func TestTooManyGets(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, m *memory, _ *journal) {
		c := join(t, m)
		ctx, cancel := context.WithCancel(t.Context())
		var gets sync.WaitGroup
		for range maxWaiting {
			gets.Go(func() { _, _ = c.Get(ctx, "never") })
		}
		synctest.Wait()
		_, err := c.Get(ctx, "never")
		require.ErrorIs(t, err, ErrLimit)
		require.ErrorContains(t, err, "4096 Gets of this client are already waiting")
		require.NoError(t, set(ctx, c, "k", nil))
		_, err = join(t, m).Get(ctx, "k")
		require.NoError(t, err)
		cancel()
		gets.Wait()
	})
}

// TestManyRanksWait has thousands of ranks wait for as many keys as joining takes of each. A rank
// costs the server the goroutine of its connection, however many Gets wait.
func TestManyRanksWait(t *testing.T) {
	const ranks, gets = 2000, 12
	bubble(t, func(t *testing.T, s *Server, m *memory, _ *journal) {
		clients := make([]net.Conn, ranks)
		for i := range clients {
			clients[i] = raw(t, m)
			for k := range uint64(gets) {
				_, err := clients[i].Write(frame{id: k, code: askGet, key: fmt.Sprint((uint64(i) + 1<<k) % ranks)}.encode())
				require.NoError(t, err)
			}
		}
		synctest.Wait()
		require.Equal(t, ranks, s.vacancies())
		require.Less(t, runtime.NumGoroutine(), ranks+100)
		setter := join(t, m)
		for i := range ranks {
			require.NoError(t, set(t.Context(), setter, fmt.Sprint(i), []byte("v")))
		}
		for _, c := range clients {
			r := bufio.NewReader(c)
			for range gets {
				f, err := readFrame(r)
				require.NoError(t, err)
				require.Equal(t, "v", string(f.value))
			}
			require.NoError(t, c.Close())
		}
		synctest.Wait()
	})
}

func TestServerIsFull(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, m *memory, _ *journal) {
		c := join(t, m)
		ctx := t.Context()
		s.table.bytes = MaxTotal - 10
		require.NoError(t, set(ctx, c, "12345", []byte("12345")))
		require.NoError(t, set(ctx, c, "12345", []byte("12345")), "nothing grows")
		_, err := c.Claim(ctx, "x", nil)
		require.ErrorIs(t, err, ErrLimit)
		require.ErrorContains(t, err, "it holds 67108864 bytes")
	})
}

// TestStuckServer has a server that knows the secret and then neither reads nor writes.
func TestStuckServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		go func() {
			conn, err := m.Accept()
			if err == nil {
				_, err = auth.Server(conn, secret, func(auth.Hello) (auth.Hello, error) { return config.hello(), nil }, time.Time{})
			}
			require.NoError(t, err)
		}()
		c := join(t, m)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			require.ErrorIs(t, set(ctx, c, "k", nil), context.DeadlineExceeded)
			_, err := c.Get(ctx, "k")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, time.Second, time.Since(start))
			cancel()
		}
		require.NoError(t, c.Close())
		require.ErrorIs(t, set(t.Context(), c, "k", nil), ErrClosed)
	})
}

// raw connects and proves itself, and leaves what follows to the test.
func raw(t *testing.T, m *memory) net.Conn {
	c, err := m.dial(t.Context(), "", "")
	require.NoError(t, err)
	_, err = auth.Client(c, secret, config.hello(), time.Time{})
	require.NoError(t, err)
	return c
}

// TestDeafClient has a client that asks and does not listen to the answers.
func TestDeafClient(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, m *memory, _ *journal) {
		deaf, c := raw(t, m), join(t, m)
		for id := range uint64(3) {
			_, err := deaf.Write(frame{id: id, code: askGet, key: "k"}.encode())
			require.NoError(t, err)
		}
		require.NoError(t, set(t.Context(), c, "k", []byte("v")))
		v, err := c.Get(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "v", string(v))
		_, err = io.ReadFull(deaf, make([]byte, 1)) // of the first answer; the rest of it and the others are stuck
		require.NoError(t, err)
		require.NoError(t, set(t.Context(), c, "other", nil))
	})
}

func TestMalformedRequests(t *testing.T) {
	whole := frame{id: 1, code: askClaim, key: "k", value: []byte("v")}.encode()
	for name, b := range map[string][]byte{
		"giant":        {0xff, 0xff, 0xff, 0xff},
		"tiny":         {0, 0, 0, 1, 0},
		"no such code": frame{id: 1, code: 99, key: "k"}.encode(),
		"reply":        frame{id: 1, code: replyOK, key: "k"}.encode(),
		"no key":       frame{id: 1, code: askClaim}.encode(),
		"key length":   append(append([]byte{}, whole[:13]...), 0xff, 0xff, 'k', 'v'),
		"value":        frame{id: 1, code: askClaim, key: "k", value: make([]byte, MaxValue+1)}.encode(),
		"twice":        bytes.Repeat(frame{id: 1, code: askGet, key: "k"}.encode(), 2),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *Server, m *memory, j *journal) {
				bad := raw(t, m)
				go func() { _, _ = bad.Write(b) }()
				answer, err := io.ReadAll(bad)
				require.NoError(t, err)
				require.Empty(t, answer)
				synctest.Wait()
				require.Len(t, j.all(), 1)
				require.ErrorIs(t, j.all()[0], errFrame)
				require.ErrorContains(t, j.all()[0], "store: rank 0 at pipe")
				require.NoError(t, set(t.Context(), join(t, m), "k", nil), "others do not notice")
			})
		})
	}
}

// TestReusedNumber cancels Gets and uses their number again at once, which our client never does.
// Every Get must still end with the connection.
func TestReusedNumber(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, m *memory, _ *journal) {
		get := frame{id: 1, code: askGet, key: "k"}.encode()
		both := append(get, frame{id: 1, code: askCancel}.encode()...)
		c := raw(t, m)
		_, err := c.Write(append(bytes.Repeat(both, 100), get...))
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, s.vacancies())
		require.NoError(t, c.Close())
		synctest.Wait()
		require.Zero(t, s.vacancies())
	})
}

// TestSilentStrangers joins while strangers hold more connections than there are places, and renew
// those that are taken from them: a rank that comes after them all is in within a second.
func TestSilentStrangers(t *testing.T) {
	const strangers = 500
	bubble(t, func(t *testing.T, s *Server, m *memory, j *journal) {
		var held sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		for range strangers {
			held.Go(func() {
				for c, err := m.dial(ctx, "", ""); err == nil; c, err = m.dial(ctx, "", "") {
					_, _ = c.Read(make([]byte, 1)) // until it is thrown out
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		join(t, m)
		require.Less(t, time.Since(start), time.Second)
		synctest.Wait() // for the server to say whom it turned away
		require.NotEmpty(t, j.all())
		require.ErrorContains(t, j.all()[0], "connection refused: auth: pipe: the connection had not proved the secret yet, and was closed for a newer one")
		stop()
		require.NoError(t, s.Close())
		held.Wait()
	})
	bubble(t, func(t *testing.T, s *Server, m *memory, j *journal) {
		start := time.Now()
		c, err := m.dial(t.Context(), "", "")
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, auth.Timeout, time.Since(start))
		synctest.Wait()
		require.ErrorContains(t, j.all()[0], "connection refused: auth: pipe: waiting for the greeting: ")
	})
}

func TestCloseDuringHandshake(t *testing.T) {
	bubble(t, func(t *testing.T, s *Server, m *memory, j *journal) {
		start := time.Now()
		c, err := m.dial(t.Context(), "", "")
		require.NoError(t, err)
		synctest.Wait()
		require.NoError(t, s.Close())
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Zero(t, time.Since(start))
		require.Empty(t, j.all(), "closing is not worth a word")
	})
}

func TestTurnedAway(t *testing.T) {
	for text, change := range map[string]func(*Config){
		"the other side has a different secret":                               func(c *Config) { c.Secret = []byte("another sixteen bytes") },
		`this is the store of job "gpt", not of job "gpt/2"`:                  func(c *Config) { c.Job = "gpt/2" },
		"this job has 8 ranks, but rank 3 was started with a world size of 4": func(c *Config) { c.Size = 4 },
		"the secret is too weak: it has 5 bytes, at least":                    func(c *Config) { c.Secret = []byte("short") },
	} {
		bubble(t, func(t *testing.T, s *Server, m *memory, j *journal) {
			start := time.Now()
			cfg := config
			cfg.Rank = 3
			change(&cfg)
			_, err := dial(t.Context(), "memory:1", cfg, m.dial)
			require.ErrorContains(t, err, text)
			require.ErrorContains(t, err, "store: rank 0 at memory:1: ")
			require.Zero(t, time.Since(start), "it does not try again")
			synctest.Wait()
			if text != "the secret is too weak: it has 5 bytes, at least" {
				require.ErrorContains(t, j.all()[0], text)
			}
			require.Len(t, j.all(), 1)
		})
	}
	bubble(t, func(t *testing.T, s *Server, m *memory, j *journal) {
		c, err := m.dial(t.Context(), "", "")
		require.NoError(t, err)
		defer c.Close()
		_, err = auth.Client(c, secret, auth.Hello{Job: "gpt", Purpose: "mesh"}, time.Time{})
		require.ErrorContains(t, err, `the client asks for "mesh", but this is a store`)
	})
}

func TestNoSecret(t *testing.T) {
	for _, secret := range []string{"", "short"} {
		_, err := Listen(t.Context(), "127.0.0.1:0", Config{Secret: []byte(secret)})
		require.ErrorIs(t, err, auth.ErrWeak)
		_, err = Dir(t.TempDir(), Config{Secret: []byte(secret)})
		require.ErrorIs(t, err, auth.ErrWeak)
	}
}

// remote is a connection with addresses of the test's choice.
type remote struct {
	net.Conn
	local, remote string
}

func address(s string) net.Addr {
	a, err := net.ResolveTCPAddr("tcp", s)
	if err != nil {
		panic(err)
	}
	return a
}

func (r remote) LocalAddr() net.Addr  { return address(r.local) }
func (r remote) RemoteAddr() net.Addr { return address(r.remote) }

func TestPortInUseAndUsedAgain(t *testing.T) {
	ctx := t.Context()
	s, err := Listen(ctx, "127.0.0.1:0", config)
	require.NoError(t, err)
	addr := s.Addr().String()
	_, err = Listen(ctx, addr, config)
	require.ErrorContains(t, err, addr)
	require.ErrorContains(t, err, "in use: if two processes of this job have RANK=0, give each its own rank; if another job runs here, give this job another MASTER_PORT")
	require.ErrorContains(t, err, "FSDP_JOB")

	c, err := Dial(ctx, addr, config)
	require.NoError(t, err)
	require.NoError(t, s.Close()) // the server hangs up first: its end of the connection lingers in TIME_WAIT
	require.ErrorIs(t, set(ctx, c, "k", nil), ErrLost)
	require.NoError(t, c.Close())
	s, err = Listen(ctx, addr, config)
	require.NoError(t, err, "a restarted job listens at once")
	require.NoError(t, s.Close())
}

// flaky is a listener that fails as one does that has run out of file descriptors.
type flaky struct {
	*memory
	left int
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.left > 0 {
		f.left--
		return nil, syscall.EMFILE
	}
	return f.memory.Accept()
}

func TestAcceptErrorsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, j := newMemory(), &journal{}
		cfg := config
		cfg.Log = j.log
		start := time.Now()
		s, err := Serve(&flaky{m, 10}, cfg)
		require.NoError(t, err)
		join(t, m)
		require.Len(t, j.all(), 10)
		require.Greater(t, time.Since(start), time.Second, "a server without descriptors must not spin")
		require.NoError(t, m.Close())
		synctest.Wait()
		require.Len(t, j.all(), 11)
		require.ErrorIs(t, j.all()[10], net.ErrClosed, "a listener closed behind its back")
		require.NoError(t, s.Close())
	})
}

// TestLackOfFilesFails has a server or a client that may open no more files: after 2 s the server
// says so to its owner, and the client gives up. Other failures of a client are those of the
// server.
func TestLackOfFilesFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = "too many open files: this process has reached its limit of open files: raise it with ulimit -n"
		failed := make(chan error, 1)
		cfg := config
		cfg.Fail = func(err error) {
			select {
			case failed <- err:
			default:
			}
		}
		m, begin := newMemory(), time.Now()
		s, err := Serve(&flaky{m, 100}, cfg)
		require.NoError(t, err)
		require.EqualError(t, <-failed, "store: "+text)
		require.Less(t, time.Since(begin), 4*time.Second)
		require.NoError(t, s.Close())

		begin = time.Now()
		_, err = dial(t.Context(), "memory:1", config, func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: syscall.EMFILE}
		})
		require.ErrorContains(t, err, text)
		require.ErrorIs(t, err, syscall.EMFILE)
		require.Less(t, time.Since(begin), 4*time.Second)
		require.Equal(t, err, Advise(err), "advice comes once")
		require.ErrorContains(t, Advise(syscall.ENFILE), "fs.file-max")
		require.Equal(t, errRefused, Advise(errRefused))
	})
}

func TestDialWaitsForALateServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, j := newMemory(), &journal{}
		start := time.Now()
		attempts := 0
		late := func(ctx context.Context, network, addr string) (net.Conn, error) {
			attempts++
			if time.Since(start) < time.Minute {
				return nil, errRefused
			}
			return m.dial(ctx, network, addr)
		}
		s, err := Serve(m, config)
		require.NoError(t, err)
		cfg := config
		cfg.Log = j.log
		c, err := dial(t.Context(), "host0:1", cfg, late)
		require.NoError(t, err)
		require.Less(t, time.Since(start), time.Minute+time.Second)
		require.Less(t, attempts, 130)
		require.Len(t, j.all(), 1)
		require.EqualError(t, j.all()[0], "store: waiting for rank 0 at host0:1: connect: connection refused")
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
	})
}

// TestListenWaitsForAName: rank 0 may begin before its host has the name that the others know, and
// while the name leads to the host that had it before.
func TestListenWaitsForAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		old, own := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.0.0.7")
		own6, port := netip.MustParseAddr("fe80::7"), "1"
		var opened []string
		late := listening{
			lookup: func(context.Context, string, string) ([]netip.Addr, error) {
				switch since := time.Since(begin); {
				case since < time.Minute:
					return nil, &net.DNSError{Err: "no such host", Name: "host0", IsNotFound: true}
				case since < 2*time.Minute:
					return []netip.Addr{old}, nil
				}
				return []netip.Addr{old, own, own6}, nil
			},
			open: func(_ context.Context, _, addr string) (net.Listener, error) {
				if addr == net.JoinHostPort(old.String(), port) {
					return nil, &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)}
				}
				opened = append(opened, addr)
				return newMemory(), nil
			},
		}
		cfg, j := config, &journal{}
		cfg.Log = j.log
		list, err := late.wait(t.Context(), "host0:1", cfg)
		require.NoError(t, err)
		require.Less(t, time.Since(begin), 2*time.Minute+time.Second)
		require.Len(t, j.all(), 1)
		require.EqualError(t, j.all()[0], "store: waiting for the name of this host: lookup host0: no such host")
		require.Len(t, list, 2)
		require.Equal(t, []string{"10.0.0.7:1", "[fe80::7]:1"}, opened)

		for _, c := range []struct {
			after time.Duration
			want  string
		}{
			{0, "lookup host0: no such host (enough)"},
			{time.Minute, "host0 is not an address of this host: listen: bind: cannot assign requested address (enough)"},
		} {
			begin = time.Now().Add(-c.after)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("enough"))
			_, err = late.wait(ctx, "host0:1", cfg)
			cancel()
			require.EqualError(t, err, c.want)
		}
		late.open = func(context.Context, string, string) (net.Listener, error) { return nil, syscall.EADDRINUSE }
		_, err = late.wait(t.Context(), "10.0.0.7:1", cfg)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		begin = time.Now().Add(-time.Hour)
		_, err = late.wait(t.Context(), "host0:1", cfg)
		require.ErrorIs(t, err, syscall.EADDRINUSE, "another job has the port of one address")
	})
}

// TestListenOnAllAddresses serves on each address of a name, under one port.
func TestListenOnAllAddresses(t *testing.T) {
	l := listenOn(t.Context())
	l.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}, nil
	}
	list, err := l.wait(t.Context(), "host0:0", config)
	if runtime.GOOS != "linux" && err != nil {
		return // only Linux has all of 127.0.0.0/8
	}
	require.NoError(t, err)
	s, err := newServer(list, config, config.admit, nil)
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, ln := range list {
		c, err := Dial(t.Context(), ln.Addr().String(), config)
		require.NoError(t, err)
		holder, err := c.Claim(t.Context(), "key", []byte(ln.Addr().String()))
		require.NoError(t, err)
		require.Equal(t, s.Addr().String(), string(holder), "one store")
		require.NoError(t, c.Close())
	}
	require.NoError(t, s.Close())
}

// TestReason: the error of an attempt that timed out names the missing answer.
func TestReason(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, refused := dialer.DialContext(ctx, "tcp", "192.0.2.1:1")
	require.EqualError(t, reason(refused), "no answer from 192.0.2.1:1: nothing runs at this address, or a firewall drops the packets")
	silent := &net.OpError{Op: "dial", Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}, Err: os.ErrDeadlineExceeded}
	require.EqualError(t, reason(silent), reason(refused).Error())
	_, unnamed := dialer.DialContext(ctx, "tcp", "host0.invalid:1")
	require.EqualError(t, reason(unnamed), "no answer from the name service for host0.invalid")
	require.EqualError(t, reason(errRefused), "connect: connection refused")
}

func TestDialGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nobody := func(context.Context, string, string) (net.Conn, error) { return nil, errRefused }
		silent := func(context.Context, string, string) (net.Conn, error) {
			a, b := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, b); b.Close() }()
			return a, nil
		}
		mirror := func(context.Context, string, string) (net.Conn, error) {
			a, b := net.Pipe()
			b.Close()
			return remote{Conn: a, local: "127.0.0.1:5", remote: "127.0.0.1:5"}, nil
		}
		for text, connect := range map[string]dialFunc{"connection refused": nobody, "i/o timeout": silent, "reached itself": mirror} {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := dial(ctx, "host0:1", config, connect)
			cancel()
			require.ErrorContains(t, err, "store: rank 0 at host0:1 does not answer: ")
			require.ErrorContains(t, err, text)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, time.Minute, time.Since(start))
		}
		ctx, cancel := context.WithCancelCause(t.Context()) // before the handshake would time out
		time.AfterFunc(time.Second, func() { cancel(errors.New("enough")) })
		start := time.Now()
		_, err := dial(ctx, "host0:1", config, silent)
		require.ErrorContains(t, err, "enough")
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestDialRealErrors(t *testing.T) {
	_, err := Dial(t.Context(), "127.0.0.1:99999", config)
	require.ErrorContains(t, err, "invalid port")
	_, err = Dial(t.Context(), "127.0.0.1", config)
	require.ErrorContains(t, err, "missing port")

	const addr = "127.0.0.1:1" // nobody's, while another process may take a port that was just given back
	err = dialOnce(t, addr, config)
	require.EqualError(t, err, "store: rank 0 at "+addr+" does not answer: connect: connection refused (tried)")
}

// dialOnce returns the error of Dial given up after the first attempt.
func dialOnce(t *testing.T, addr string, cfg Config) error {
	ctx, cancel := context.WithCancelCause(t.Context())
	cfg.Log = func(error) { cancel(errors.New("tried")) }
	_, err := Dial(ctx, addr, cfg)
	return err
}

func TestTLSIsNotOptional(t *testing.T) {
	server, client, err := auth.TLS()
	require.NoError(t, err)
	secure, plain := config, config
	secure.TLS = server
	logged := make(chan error, 1)
	secure.Log = func(err error) { logged <- err }
	s, err := Listen(t.Context(), "127.0.0.1:0", secure)
	require.NoError(t, err)
	require.ErrorContains(t, dialOnce(t, s.Addr().String(), plain), "does it expect TLS?")
	require.ErrorIs(t, <-logged, auth.ErrStranger) // before Close, which lets nobody be reported any more
	require.NoError(t, s.Close())

	s, err = Listen(t.Context(), "127.0.0.1:0", plain)
	require.NoError(t, err)
	secure.TLS = client
	require.ErrorContains(t, dialOnce(t, s.Addr().String(), secure), "TLS handshake")
	require.NoError(t, s.Close())
}

func FuzzReadFrame(f *testing.F) {
	f.Add(frame{id: 7, code: askClaim, key: "k", value: []byte("v")}.encode())
	f.Add(frame{code: askCancel}.encode())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readFrame(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(got.key), MaxKey)
		require.LessOrEqual(t, len(got.value), MaxValue)
		require.True(t, bytes.HasPrefix(b, got.encode()))
	})
}

// talk runs end on one side of a pipe; the other side says b and hangs up when it has been heard.
func talk(b []byte, end func(net.Conn)) {
	a, c := net.Pipe()
	done := make(chan struct{})
	go func() { end(c); c.Close(); close(done) }()
	go func() { _, _ = io.Copy(io.Discard, a) }()
	_, _ = a.Write(b)
	a.Close()
	<-done
}

// TestAccept talks over a connection about something else than a store.
func TestAccept(t *testing.T) {
	serverTLS, clientTLS, err := auth.TLS()
	require.NoError(t, err)
	admit := func(theirs auth.Hello) (auth.Hello, error) {
		if theirs.Purpose != "echo" {
			return auth.Hello{}, errors.New("here is an echo")
		}
		return auth.Hello{}, nil
	}
	echo := func(conn, _ net.Conn, _ auth.Hello) error {
		_, _ = io.Copy(conn, conn) // until the client hangs up
		return nil
	}
	s, err := Accept(t.Context(), "127.0.0.1:0", Config{Secret: secret, TLS: serverTLS}, admit, echo)
	require.NoError(t, err)
	cfg := Config{Secret: secret, TLS: clientTLS}
	conn, raw, err := Connect(t.Context(), "host 0", s.Addr().String(), cfg, auth.Hello{Purpose: "echo"})
	require.NoError(t, err)
	_, err = conn.Write([]byte("hello"))
	require.NoError(t, err)
	back := make([]byte, 5)
	_, err = io.ReadFull(conn, back)
	require.NoError(t, err)
	require.Equal(t, "hello", string(back))
	require.NoError(t, raw.Close())
	_, _, err = Connect(t.Context(), "host 0", s.Addr().String(), cfg, auth.Hello{Purpose: "store"})
	require.ErrorContains(t, err, "store: host 0 at "+s.Addr().String())
	require.ErrorContains(t, err, "here is an echo")
	require.NoError(t, s.Close())
}

// FuzzServer lets a client that knows the secret say anything.
func FuzzServer(f *testing.F) {
	get := frame{id: 7, code: askGet, key: "k"}.encode()
	f.Add(append(get, frame{id: 7, code: askCancel}.encode()...))
	f.Add(append(get, frame{id: 8, code: askClaim, key: "k", value: []byte("v")}.encode()...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &Server{table: newTable()}
		talk(b, func(c net.Conn) { _ = newSession(s, c, c).run() })
		require.Empty(t, s.table.waiting)
	})
}

// FuzzClient lets a server that knows the secret say anything.
func FuzzClient(f *testing.F) {
	f.Add(frame{id: 1, code: replyOK, value: []byte("v")}.encode())
	f.Add(frame{id: 1, code: replyLimit}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		talk(b, func(conn net.Conn) {
			c := newClient("fuzz", conn, conn)
			_, _ = c.Get(t.Context(), "k") // answered, or the connection ends
			_ = c.Close()
		})
	})
}
