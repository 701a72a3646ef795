package mesh

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// listenUnix opens an abstract socket: its name is in no file system, so a crash cannot leave it
// behind.
func listenUnix() (net.Listener, string, error) {
	name := "@gofsdp-" + rand.Text()[:16]
	l, err := net.Listen("unix", name)
	return l, name, err
}

// checkUser returns an error if conn does not lead to a process of user self. The kernel reports
// the owner of a Unix socket (SO_PEERCRED, unix(7)), but not the other end of TCP, nor users
// outside of this user namespace.
func checkUser(conn net.Conn, self int) error {
	local, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := local.SyscallConn()
	if err != nil {
		return err
	}
	const unknown = 65534 // /proc/sys/kernel/overflowuid
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if failed != nil {
		return os.NewSyscallError("getsockopt", failed)
	}
	if int(peer.Uid) != self && peer.Uid != unknown {
		return fmt.Errorf("process %d belongs to user %d, this one to user %d", peer.Pid, peer.Uid, self)
	}
	return nil
}

// unixStream is a Unix socket that sends and receives files (SCM_RIGHTS, see unix(7)).
type unixStream struct {
	*net.UnixConn
	came []*os.File // with the bytes read so far
}

var _ filePasser = (*unixStream)(nil)

func withFiles(conn *net.UnixConn) controlConn { return &unixStream{UnixConn: conn} }

// Read reads bytes and keeps the files that are attached to them.
func (s *unixStream) Read(b []byte) (int, error) {
	var oob [64]byte // room for a few: more than one are refused, fewer would be lost
	n, k, flags, _, err := s.ReadMsgUnix(b, oob[:])
	if k > 0 {
		if err := s.keep(oob[:k]); err != nil {
			return 0, err
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		return 0, io.EOF // ReadMsgUnix wraps it
	case err != nil:
		return 0, err // n is negative
	case flags&unix.MSG_CTRUNC != 0:
		return 0, errors.New("passed files were lost: too many files are open (raise ulimit -n), or too many were sent at once")
	}
	return n, nil
}

// keep takes the file out of the control data of one frame. The kernel returns the files of at most
// one frame at once, and has made them close-on-exec.
func (s *unixStream) keep(oob []byte) error {
	before := len(s.came)
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("control data: %w", err)
	}
	for i := range messages {
		descriptors, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fmt.Errorf("control data: %w", err)
		}
		for _, fd := range descriptors {
			s.came = append(s.came, os.NewFile(uintptr(fd), "passed by another process"))
		}
	}
	if n := len(s.came) - before; n != 1 {
		return fmt.Errorf("protocol error: %d files, want one", n)
	}
	return nil
}

func (s *unixStream) arrived() *os.File {
	if len(s.came) == 0 {
		return nil
	}
	f := s.came[0]
	s.came = slices.Delete(s.came, 0, 1)
	return f
}

func (s *unixStream) hold(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var dup int
	var failed error
	if err := raw.Control(func(fd uintptr) { dup, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("fcntl", failed)
	}
	return os.NewFile(uintptr(dup), f.Name()), nil
}

func (s *unixStream) send(frame []byte, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var n int
		if n, _, failed = s.WriteMsgUnix(frame, unix.UnixRights(int(fd)), nil); failed == nil && n < len(frame) {
			failed = io.ErrShortWrite // a frame of a few bytes goes whole or not at all
		}
	})
	return errors.Join(err, failed)
}
