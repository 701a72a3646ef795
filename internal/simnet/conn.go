package simnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// stream is the shared state of the two ends of a connection.
type stream struct{ mu sync.Mutex }

// Conn is one end of a connection. One goroutine may read and one may write. Any goroutine may call
// the other methods.
type Conn struct {
	*stream
	host, far     *Host
	peer          *Conn
	local, remote net.Addr
	key           uint64 // of the bytes sent by this end

	// The following fields are guarded by the stream's mu.
	in         []segment // in transit to this end, or arrived and not read
	held       int       // bytes in it
	sent       uint64    // number of segments that this end has sent
	free       time.Time // time when the last of them was sent
	fault      error     // ends both directions
	met        *Met      // the fault to be noticed by the next read or write, if any
	closed     bool      // by this end
	ended      bool      // this end sends nothing more
	unanswered time.Duration
	read       side
	write      side
}

// segment is the data of one Write.
type segment struct {
	at   time.Time
	data []byte
	last bool      // the other end has closed its direction
	rude bool      // and discards incoming data
	said time.Time // when its process, which is stopped, will send it; zero if it was not stopped
}

// side is one direction of an end.
type side struct {
	deadline time.Time
	changed  chan struct{} // holds one signal; nil until a goroutine waits
}

func (s *side) wake() {
	if s.changed != nil {
		signal(s.changed)
	}
}

// wait releases mu until the side is woken, or until a time if that is not zero.
func (s *side) wait(mu *sync.Mutex, until time.Time) {
	if s.changed == nil {
		s.changed = make(chan struct{}, 1)
	}
	changed := s.changed
	mu.Unlock()
	defer mu.Lock()
	if until.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(time.Until(until))
	select {
	case <-changed:
	case <-timer.C:
	}
	timer.Stop()
}

// apart returns an offset that separates events of this connection from simultaneous events of
// others.
func (c *Conn) apart() time.Duration { return c.host.net.delay(c.key, ^uint64(0)) }

// earlier returns the earlier of two times, where zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// broken returns the error if the connection has failed. Otherwise it returns the time at which to
// check again, if that is known.
func (c *Conn) broken(s *side, now time.Time) (look time.Time, err error) {
	switch {
	case c.closed:
		return look, net.ErrClosed
	case c.fault != nil:
		if c.met != nil {
			c.met.note()
		}
		return look, c.fault
	case c.host.dead.Load():
		return look, os.NewSyscallError("read", syscall.ECONNRESET)
	case !s.deadline.IsZero() && !now.Before(s.deadline):
		return look, os.ErrDeadlineExceeded
	}
	look = s.deadline
	if c.unanswered > 0 {
		if since := silentSince(c.host, c.far, now); !since.IsZero() {
			if lost := since.Add(c.unanswered + c.apart()); now.Before(lost) {
				look = earlier(look, lost)
			} else {
				c.fault = os.NewSyscallError("read", syscall.ETIMEDOUT)
				return look, c.fault
			}
		}
	}
	return look, nil
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		now := time.Now()
		look, err := c.broken(&c.read, now)
		if err != nil {
			return 0, c.failed("read", err)
		}
		if awake := c.host.awake().Add(c.apart()); now.Before(awake) {
			c.read.wait(&c.mu, earlier(look, awake))
			continue
		}
		if len(c.in) > 0 {
			first := &c.in[0]
			at := first.at
			if later := through(c.far, c.host, at); later.After(at) {
				at = later.Add(c.peer.apart())
			}
			switch {
			case now.Before(at):
				look = earlier(look, at)
			case first.rude:
				c.fault = os.NewSyscallError("read", syscall.ECONNRESET)
				return 0, c.failed("read", c.fault)
			case first.last:
				return 0, io.EOF
			default:
				return c.take(b), nil
			}
		}
		if len(b) == 0 {
			return 0, nil
		}
		c.read.wait(&c.mu, look)
	}
}

// take moves bytes of the first segment to b.
func (c *Conn) take(b []byte) int {
	first := &c.in[0]
	n := copy(b, first.data)
	first.data = first.data[n:]
	if len(first.data) == 0 {
		c.in[0] = segment{}
		if c.in = c.in[1:]; len(c.in) == 0 {
			c.in = nil
		}
	}
	if c.held >= Window && c.held-n < Window {
		c.peer.write.wake()
	}
	c.held -= n
	return n
}

// Write implements [net.Conn].
func (c *Conn) Write(b []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		now := time.Now()
		look, err := c.broken(&c.write, now)
		switch {
		case err != nil:
			return n, c.failed("write", err)
		case c.ended:
			return n, c.failed("write", syscall.EPIPE)
		case n == len(b):
			return n, nil
		}
		if room := Window - c.peer.held; room > 0 {
			part := b[n:min(len(b), n+room)]
			c.send(segment{data: append([]byte(nil), part...)})
			n += len(part)
			continue
		}
		c.write.wait(&c.mu, look)
	}
}

// send sends a segment.
func (c *Conn) send(s segment) {
	now, data := time.Now(), s.data
	slow, flip := time.Duration(0), false
	if len(data) > 0 {
		slow, flip = c.host.net.troubles(c.host, c.far, now)
	}
	if flip {
		where := mix(c.key, ^c.sent)
		data[where/8%uint64(len(data))] ^= 1 << (where % 8)
	}
	if awake := c.host.awake().Add(c.apart()); now.Before(awake) {
		now, s.said = awake, awake
	}
	if now.After(c.free) {
		c.free = now
	}
	if w := c.host.net.cfg.Bandwidth; w > 0 {
		c.free = c.free.Add(time.Duration(float64(len(data)) / w * 1e9))
	}
	at := c.free.Add(slow + c.host.net.delay(c.key, c.sent))
	c.sent++
	if k := len(c.peer.in); k > 0 && at.Before(c.peer.in[k-1].at) {
		at = c.peer.in[k-1].at
	}
	s.at = at
	c.peer.in = append(c.peer.in, s)
	c.peer.held += len(data)
	c.peer.read.wake()
	if gone := c.peer.closed || c.peer.fault != nil; gone && len(data) > 0 && silentSince(c.host, c.far, now).IsZero() {
		// The kernel of the other host answers that no process reads the data.
		c.fault = os.NewSyscallError("write", syscall.ECONNRESET)
		c.wakeLocked()
	}
}

// CloseWrite closes the direction from this end.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.fault != nil {
		return c.failed("close", net.ErrClosed)
	}
	c.finish(false)
	return nil
}

func (c *Conn) finish(rude bool) {
	if !c.ended || rude {
		c.ended = true
		c.send(segment{last: true, rude: rude})
	}
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.failed("close", net.ErrClosed)
	}
	c.shut()
	c.closed = true
	c.wakeLocked()
	c.mu.Unlock()
	c.host.drop(c)
	return nil
}

// shut closes the connection for the other end. It is rude if data has arrived that will not be
// read.
func (c *Conn) shut() {
	if c.fault == nil {
		c.finish(c.unread())
	}
	c.in, c.held = nil, 0
}

// unread reports whether data has arrived and was not read.
func (c *Conn) unread() bool {
	return len(c.in) > 0 && !c.in[0].last && !time.Now().Before(through(c.far, c.host, c.in[0].at))
}

// die closes the connection as the kernel does when a process has ended.
func (c *Conn) die() {
	c.mu.Lock()
	if !c.closed {
		c.unsay()
		c.shut()
		if c.fault == nil {
			c.fault = os.NewSyscallError("read", syscall.ECONNRESET)
		}
		c.wakeLocked()
	}
	c.mu.Unlock()
	c.host.drop(c)
}

// cut resets both ends.
func (c *Conn) cut(met *Met) {
	c.mu.Lock()
	if c.unanswered > 0 || c.peer.unanswered > 0 {
		met.note()
	}
	c.met, c.peer.met = met, met
	c.mu.Unlock()
	c.reset(syscall.ECONNRESET)
	c.peer.reset(syscall.ECONNRESET)
}

// unsay discards data that a stopped process had still to send: the process has ended.
func (c *Conn) unsay() {
	now, in := time.Now(), c.peer.in
	for k := len(in) - 1; k >= 0 && in[k].said.After(now); k-- {
		c.peer.held -= len(in[k].data)
		c.peer.in, c.free, c.ended = in[:k], now, false
	}
}

// reset sets the error of this end.
func (c *Conn) reset(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault == nil {
		c.fault = os.NewSyscallError("read", err)
	}
	c.in, c.held = nil, 0
	c.wakeLocked()
}

func (c *Conn) wakeLocked() {
	c.read.wake()
	c.write.wake()
}

func (c *Conn) wakeBoth() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked()
}

// Unanswered sets the time after which a host that is cut off counts as lost.
func (c *Conn) Unanswered(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unanswered = d
	c.wakeLocked()
}

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error { return c.limit(t, &c.read, &c.write) }

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error { return c.limit(t, &c.read) }

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.limit(t, &c.write) }

func (c *Conn) limit(t time.Time, sides ...*side) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.failed("set", net.ErrClosed)
	}
	for _, s := range sides {
		s.deadline = t
		s.wake()
	}
	return nil
}

func (c *Conn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}
