//go:build linux

package mesh

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStoppedProcess stops a process. It is not lost, and does not hold up the others' Close.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"", "far"} {
		j := newJob(t, 2, nil)
		stopped := j.spawn(t, 1, host)
		ranks := j.try(t, 0)
		require.NoError(t, ranks[0].err)
		ranks[0].ear.first(t, 1, 1)
		require.NoError(t, stopped.Process.Signal(syscall.SIGSTOP))
		var status unix.WaitStatus
		_, err := unix.Wait4(stopped.Process.Pid, &status, unix.WUNTRACED, nil)
		require.NoError(t, err)
		require.True(t, status.Stopped())
		require.NoError(t, ranks[0].Send(1, []byte("it does not read this")))
		start := time.Now()
		require.NoError(t, ranks[0].Close())
		took := time.Since(start)
		require.GreaterOrEqual(t, took, linger)
		require.Less(t, took, patience/4)
		ranks[0].ear.first(t, 1, 1)
	}
}

// file returns an open file with some content.
func file(t *testing.T, text string) *os.File {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	_, err = f.WriteString(text)
	require.NoError(t, err)
	return f
}

func content(t *testing.T, f *os.File) string {
	b := make([]byte, 100)
	n, err := f.ReadAt(b, 0)
	require.ErrorIs(t, err, io.EOF)
	return string(b[:n])
}

// TestFiles passes files between all pairs, in between messages, and asks for them in another
// order.
func TestFiles(t *testing.T) {
	const size, count = 4, 20
	ranks := newJob(t, size, nil).open(t)
	var all sync.WaitGroup
	for r, l := range ranks {
		for q := range size {
			if q == r {
				continue
			}
			all.Go(func() {
				for i := range count {
					f := file(t, fmt.Sprint(r, " to ", q, " ", i))
					if err := l.SendFile(q, uint64(i/2), f); err != nil {
						t.Error(err)
					}
					_ = f.Close() // at once
					if err := l.Send(q, []byte("between")); err != nil {
						t.Error(err)
					}
				}
			})
			all.Go(func() {
				for i := count - 2; i >= 0; i -= 2 {
					for k := range 2 { // two under one tag
						f, err := l.File(timeout(t, patience), q, uint64(i/2))
						if err != nil {
							t.Error(err)
							return
						}
						if got := content(t, f); got != fmt.Sprint(q, " to ", r, " ", i+k) {
							t.Errorf("rank %d got %q", r, got)
						}
						flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
						if err != nil || flags&unix.FD_CLOEXEC == 0 {
							t.Errorf("flags %#x, %v", flags, err)
						}
						_ = f.Close()
					}
				}
			})
		}
	}
	all.Wait()
	for r, l := range ranks {
		for q := range size {
			if q != r {
				l.ear.first(t, q, count)
			}
		}
	}
}

// TestFilesEnd checks what becomes of files that nobody asked for, and of those who ask in vain.
func TestFilesEnd(t *testing.T) {
	ranks := newJob(t, 2, nil).open(t)
	f := file(t, "kept")
	defer f.Close()
	for tag := range uint64(2) {
		require.NoError(t, ranks[1].SendFile(0, tag, f))
	}
	_, err := ranks[0].File(timeout(t, time.Millisecond), 1, 99)
	require.ErrorContains(t, err, "mesh: file 0x63 from rank 1: ")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, ranks[1].Close())
	ranks[0].ear.first(t, 1, 1)
	_, err = ranks[0].File(timeout(t, patience), 1, 99)
	require.ErrorIs(t, err, ErrGone)
	got, err := ranks[0].File(timeout(t, patience), 1, 0)
	require.NoError(t, err, "it has arrived before")
	require.Equal(t, "kept", content(t, got))
	require.NoError(t, got.Close())

	left := ranks[0].files.things[label{rank: 1, id: 1}][0]
	require.NoError(t, ranks[0].Close())
	require.ErrorIs(t, left.Close(), os.ErrClosed)
	_, err = ranks[0].File(timeout(t, patience), 1, 1)
	require.Error(t, err)
}

// TestTooManyFiles floods a rank with files that it does not ask for.
func TestTooManyFiles(t *testing.T) {
	ranks := newJob(t, 2, nil).open(t)
	f := file(t, "one of many")
	defer f.Close()
	for range maxWaiting + 1 {
		if ranks[1].SendFile(0, 1, f) != nil {
			break // they are sent faster than they are read
		}
	}
	lost := ranks[0].ear.first(t, 1, 1)[0]
	require.Equal(t, "lost", lost.what)
}

func TestFilesBetweenHosts(t *testing.T) {
	ranks := newJob(t, 2, apart).open(t)
	require.ErrorContains(t, ranks[0].SendFile(1, 1, os.Stdin), "cannot pass a file to rank 1 on host")
	_, err := ranks[0].File(context.Background(), 1, 1)
	require.ErrorContains(t, err, "cannot pass a file from rank 1 on host")
	require.ErrorContains(t, ranks[0].SendFile(0, 1, os.Stdin), "rank 0 is not a peer of rank 0")
	ranks = newJob(t, 2, nil).open(t)
	closed := file(t, "")
	require.NoError(t, closed.Close())
	require.ErrorContains(t, ranks[0].SendFile(1, 1, closed), "file for rank 1: ")
}

// TestSeveralFilesAtOnce lets a peer attach more files than a frame has.
func TestSeveralFilesAtOnce(t *testing.T) {
	for _, n := range []int{2, 40} {
		ranks := newJob(t, 2, nil).open(t)
		fds := make([]int, n)
		for i := range fds {
			fds[i] = int(os.Stdin.Fd())
		}
		conn := ranks[1].peers[0].conn.(*unixStream)
		_, _, err := conn.WriteMsgUnix(appendFrame(nil, frameFile, make([]byte, 8)), unix.UnixRights(fds...), nil)
		require.NoError(t, err)
		lost := ranks[0].ear.first(t, 1, 1)[0]
		require.Equal(t, "lost", lost.what)
		require.Contains(t, lost.text, "file")
	}
}

// TestFileAfterFile has two files come at once, the frame of the first in two reads: the second of
// these brings the other file.
func TestFileAfterFile(t *testing.T) {
	l, name, err := listenUnix()
	require.NoError(t, err)
	defer l.Close()
	there, err := net.Dial("unix", name)
	require.NoError(t, err)
	defer there.Close()
	here, err := l.Accept()
	require.NoError(t, err)
	defer here.Close()
	to, from := there.(*net.UnixConn), withFiles(here.(*net.UnixConn)).(*unixStream)
	first := appendFrame(nil, frameMessage, make([]byte, keptBody-frameHeader-5))
	_, err = to.Write(first)
	require.NoError(t, err)
	sender := &unixStream{UnixConn: to}
	for i := range uint64(2) {
		f := file(t, fmt.Sprint(i))
		require.NoError(t, sender.send(appendFrame(nil, frameFile, binary.BigEndian.AppendUint64(nil, i)), f))
		require.NoError(t, f.Close())
	}
	m, in := newMesh(Config{Size: 2}), newFrameReader(from)
	kind, _, err := in.next()
	require.NoError(t, err)
	require.Equal(t, frameMessage, kind)
	for i := range uint64(2) {
		_, body, err := in.next()
		require.NoError(t, err)
		require.NoError(t, m.receiveFile(1, from, binary.BigEndian.Uint64(body)))
		got, err := m.files.take(t.Context(), label{rank: 1, id: i})
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), content(t, got))
		require.NoError(t, got.Close())
	}
	require.Nil(t, from.arrived())
}

// TestSockets checks the options of connections.
func TestSockets(t *testing.T) {
	option := func(conn net.Conn, get func(fd int)) {
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		control(conn.(*net.TCPConn), get)
	}
	for _, change := range []func(*Config){apart, encryptedApart} {
		ranks := newJob(t, 2, change).open(t)
		var conns [2]net.Conn
		var all sync.WaitGroup
		for r, l := range ranks {
			all.Go(func() {
				var err error
				if conns[r], err = l.one(timeout(t, patience), 1-r, 1); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for r, conn := range conns {
			option(conn, func(fd int) {
				name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
				require.NoError(t, err)
				require.Contains(t, []string{"reno", "cubic"}, name, "rank %d", r)
				for _, b := range buffers() {
					n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, b)
					require.NoError(t, err)
					require.GreaterOrEqual(t, n, bufferSize)
				}
				n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY)
				require.NoError(t, err)
				require.NotZero(t, n)
			})
			require.NoError(t, conn.Close())
			below := ranks[r].peers[1-r].conn
			if secure, ok := below.(encrypted); ok {
				below = secure.tcp
			}
			option(below, func(fd int) {
				n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
				require.NoError(t, err)
				require.EqualValues(t, Unanswered.Milliseconds(), n)
				n, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
				require.NoError(t, err)
				require.NotZero(t, n)
			})
		}
	}
}

// TestOtherUsers asks the kernel whose the two ends of a connection are.
func TestOtherUsers(t *testing.T) {
	unixListener, _, err := listenUnix()
	require.NoError(t, err)
	tcpListener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	for _, l := range []net.Listener{unixListener, tcpListener} {
		there, err := net.Dial(l.Addr().Network(), l.Addr().String())
		require.NoError(t, err)
		here, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, checkUser(here, os.Geteuid()))
		if l == unixListener {
			require.EqualError(t, checkUser(here, os.Geteuid()+1),
				fmt.Sprintf("process %d belongs to user %d, this one to user %d", os.Getpid(), os.Geteuid(), os.Geteuid()+1))
		}
		require.NoError(t, errors.Join(here.Close(), there.Close(), l.Close()))
	}
}
