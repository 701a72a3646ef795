package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// poller is the pump of Linux for plain TCP: the goroutine that drives it reads
// and writes all connections itself, without blocking.
//
// It waits for all connections at once without holding a thread (and with it, for milliseconds, a
// processor that computation could use). It has them in its own epoll instance, edge-triggered, and
// waits for that one in Go's poller.
type poller struct {
	lines  []line
	epoll  *os.File
	raw    syscall.RawConn // of epoll
	drain  func(fd uintptr) bool
	events [16]unix.EpollEvent

	woken   atomic.Bool
	mu      sync.Mutex // guards lines, except for the driver, and stop and close
	stopped bool
	closed  bool
}

// line is a port and the descriptors of its lanes, which belong to the poller.
type line struct {
	*port
	fds          []int
	over         []string // see mesh.Lane
	reads, sends turn
	iov          [3]unix.Iovec
}

const (
	burst   = 1 << 20   // approximate bytes that one connection moves while others wait
	longest = 512 << 10 // bytes of a payload that one write sends; with half of it 5 to 10 % slower
)

func newPoller() (pump, error) {
	p := &poller{}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // or Go's poller refuses it
		return nil, errors.Join(err, unix.Close(fd))
	}
	p.epoll = os.NewFile(uintptr(fd), "epoll")
	if p.raw, err = p.epoll.SyscallConn(); err != nil {
		return nil, errors.Join(err, p.epoll.Close())
	}
	p.drain = func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), p.events[:], 0)
		return n > 0 || err != nil && err != unix.EINTR
	}
	return p, nil
}

func (p *poller) add(lanes []mesh.Lane, of *port) error {
	l := line{port: of}
	var errs []error
	for _, lane := range lanes {
		fd, err := takeDescriptor(lane.Conn)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.fds, l.over = append(l.fds, fd), append(l.over, lane.Over)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, l)
	for _, fd := range l.fds {
		if p.stopped {
			_ = unix.Shutdown(fd, unix.SHUT_WR)
		}
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)}
		var err error
		closed := p.raw.Control(func(epoll uintptr) { err = unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, fd, &event) })
		errs = append(errs, closed, err)
	}
	return errors.Join(errs...)
}

// takeDescriptor takes the connection from Go's poller, which would wake a thread at every packet.
// The connection is closed, even if that fails.
func takeDescriptor(conn net.Conn) (fd int, err error) {
	c, ok := conn.(*net.TCPConn)
	if !ok {
		return 0, errors.Join(fmt.Errorf("%T is not plain TCP", conn), conn.Close())
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, errors.Join(err, c.Close())
	}
	var dup error
	err = raw.Control(func(old uintptr) {
		if dup = unix.SetNonblock(int(old), true); dup == nil { // as it is; see call
			fd, dup = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err = errors.Join(err, dup); err != nil {
		return 0, errors.Join(err, c.Close())
	}
	if err := c.Close(); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func (p *poller) push(arrived func(*port) error) (moved bool, err error) {
	for i := range p.lines {
		l := &p.lines[i]
		sent, err := l.write()
		if err != nil {
			return moved, err
		}
		got, err := l.read(arrived)
		if err != nil {
			return moved, err
		}
		moved = moved || sent || got
	}
	return moved, nil
}

// read receives available bytes, for at most a burst.
func (l *line) read(arrived func(*port) error) (moved bool, err error) {
	if l.in.done() {
		return false, nil
	}
	if l.lo < l.hi {
		moved = true
		if err := l.absorb(arrived); err != nil {
			return true, err
		}
	}
	for total := 0; total < burst && !l.in.done(); {
		b, _ := l.incoming()
		room := l.reads.room(2*block, len(l.fds))
		b = b[:min(len(b), block, room)] // its sum is computed in the inner caches
		var ahead []byte
		if l.in.trails(len(b)) && room > len(b) {
			ahead = l.readAhead()
			ahead = ahead[:min(len(ahead), room-len(b))]
		}
		n, err := l.call(unix.SYS_READV, l.fds[l.reads.lane], b, ahead, nil)
		switch {
		case err == unix.EAGAIN:
			return moved, nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return moved, l.lost(over(l.over[l.reads.lane], err))
		case n == 0:
			return moved, l.lost(transport.ErrEnded)
		}
		moved = true
		total += n
		l.reads.pass(n, len(l.fds))
		if err := l.received(n, arrived); err != nil {
			return true, err
		}
		if n < len(b) {
			break // there was no more
		}
	}
	return moved, nil
}

// write sends as much as the connection takes, for at most a burst.
func (l *line) write() (moved bool, err error) {
	for total := 0; total < burst; {
		room := l.sends.room(longest, len(l.fds))
		head, body, tail := l.outgoing(room)
		if len(head)+len(body)+len(tail) == 0 {
			break
		}
		if len(l.fds) > 1 {
			head = head[:min(len(head), room)]
			body = body[:min(len(body), room-len(head))]
			tail = tail[:min(len(tail), room-len(head)-len(body))]
		}
		n, err := l.call(unix.SYS_WRITEV, l.fds[l.sends.lane], head, body, tail)
		switch {
		case err == unix.EAGAIN:
			return moved, nil
		case err == unix.EINTR:
			continue
		case err != nil && l.unheard():
			return moved, nil
		case err != nil:
			return moved, l.lost(over(l.over[l.sends.lane], err))
		}
		moved = true
		total += n
		l.sends.pass(n, len(l.fds))
		l.sent(n)
	}
	return moved, nil
}

// call makes the kernel fill bufs from a socket, SYS_READV, or send them, SYS_WRITEV. It does not
// notify the scheduler: the scheduler would take the processor away from a goroutine whose call
// takes more than 20 µs, as copying half a megabyte does, and getting it back costs up to a third
// of all time. The socket never blocks, so a call takes no longer than copying, about 60 µs. A
// garbage collection may have to wait that long for it. Memory that is not present yet, or in a
// file, takes longer to touch, as in any other code.
func (l *line) call(trap uintptr, fd int, bufs ...[]byte) (n int, err error) {
	if raceDetector { // it sees accesses through package unix
		if trap == unix.SYS_READV {
			return unix.Readv(fd, bufs)
		}
		return unix.Writev(fd, bufs)
	}
	count := 0
	for _, b := range bufs {
		if len(b) > 0 {
			l.iov[count].Base = unsafe.SliceData(b)
			l.iov[count].SetLen(len(b))
			count++
		}
	}
	moved, _, failure := unix.RawSyscall(trap, uintptr(fd), uintptr(unsafe.Pointer(&l.iov)), uintptr(count))
	l.iov = [3]unix.Iovec{} // the memory is the caller's, do not keep it alive
	if failure != 0 {
		return 0, failure
	}
	return int(moved), nil
}

func (p *poller) wait(d time.Duration) (moved bool, err error) {
	if err := p.epoll.SetReadDeadline(time.Now().Add(d)); err != nil || p.woken.Swap(false) {
		return false, err
	}
	if err := p.raw.Read(p.drain); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return false, err
	}
	return false, nil
}

func (p *poller) wake() {
	p.woken.Store(true)
	_ = p.epoll.SetReadDeadline(time.Unix(1, 0)) // it fails when the poller is closed
}

func (p *poller) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.stopped = true
	p.wake()
	for i := range p.lines {
		for _, fd := range p.lines[i].fds {
			_ = unix.Shutdown(fd, unix.SHUT_WR) // it fails if the other side has ended the connection
		}
	}
}

func (p *poller) quit() {}

func (p *poller) close(deadline time.Time) {
	for p.undelivered() && time.Now().Before(deadline) {
		_, _ = p.wait(time.Millisecond) // an error costs time, no more
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for i := range p.lines {
		for _, fd := range p.lines[i].fds {
			_ = unix.Close(fd) // nothing is left to flush
		}
	}
	_ = p.epoll.Close()
}

// undelivered reports whether the other side's kernel has not acknowledged some of the data.
// Closing a connection on which unread bytes have arrived would discard it.
func (p *poller) undelivered() bool {
	return slices.ContainsFunc(p.lines, func(l line) bool {
		return slices.ContainsFunc(l.fds, func(fd int) bool { return !delivered(fd) })
	})
}

func (p *poller) silent() error {
	for i := range p.lines {
		l := &p.lines[i]
		if k := slices.IndexFunc(l.fds, unanswered); k >= 0 && len(l.fds) > 1 {
			return l.lost(over(l.over[k], errSilent))
		}
	}
	return nil
}

// unanswered reports whether the other side's kernel has not answered for [mesh.Unanswered]
// although data was sent to it, and sent again. A kernel whose process does not read still answers.
func unanswered(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.Unacked > 0 && info.Retransmits > 0 && int64(info.Last_ack_recv) >= mesh.Unanswered.Milliseconds()
}

// delivered reports whether the other side's kernel has all that was sent, or will never have it.
func delivered(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil || n == 0 {
		return true
	}
	// A connection that was reset delivers nothing more, though the kernel still counts its bytes.
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || info.State == unix.BPF_TCP_CLOSE
}
