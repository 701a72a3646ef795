package tcp

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// streams is the portable pump: goroutines that read once, or write once, for the goroutine that
// drives it. They see only bytes; the ports belong to the driver.
type streams struct {
	mu      sync.Mutex // guards list, except for reads by the driver, stopped and done
	list    []*stream
	stopped bool
	done    []*job        // finished, and not taken
	bell    chan struct{} // has room for one: see wake, and there are jobs in done
	moved   atomic.Uint64 // bytes, by all of them
	seen    uint64        // of moved, at the last wait
	timer   *time.Timer
	running sync.WaitGroup
}

// stream is a port and its connection.
type stream struct {
	*port
	lanes        []mesh.Lane
	reads, sends turn // of the goroutines
	read, write  job
}

// job is one direction of a stream.
type job struct {
	of   *stream
	do   func(count *atomic.Uint64)
	busy bool // a goroutine carries it out

	// Written with the order.
	bufs  [3][]byte // memory to send, or to fill
	least int       // bytes to read
	// Written with done.
	n   int
	err error
}

func newStreams() *streams { return &streams{bell: make(chan struct{}, 1), timer: time.NewTimer(0)} }

func (s *streams) add(lanes []mesh.Lane, p *port) error {
	t := &stream{port: p, lanes: lanes}
	t.read = job{of: t, do: t.fill}
	t.write = job{of: t, do: t.flush}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, t)
	if s.stopped {
		t.stop()
	}
	return nil
}

// start lets a goroutine carry out a job.
func (s *streams) start(j *job) {
	j.busy = true
	s.running.Go(func() {
		j.do(&s.moved)
		s.mu.Lock()
		s.done = append(s.done, j)
		s.mu.Unlock()
		s.wake()
	})
}

// finished takes the finished jobs.
func (s *streams) finished() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.done
	s.done = nil
	return done
}

// fill reads at least as many bytes as are due.
func (t *stream) fill(count *atomic.Uint64) {
	j := &t.read
	for j.n, j.err = 0, nil; j.n < j.least && j.err == nil; {
		l, b := &t.lanes[t.reads.lane], j.bufs[0][j.n:]
		n, err := l.Read(b[:t.reads.room(len(b), len(t.lanes))])
		t.reads.pass(n, len(t.lanes))
		j.err = over(l.Over, err)
		j.n += n
		count.Add(uint64(n))
	}
	if j.n >= j.least {
		j.err = nil // it will come again
	}
}

// flush writes everything.
func (t *stream) flush(count *atomic.Uint64) {
	j := &t.write
	j.n, j.err = 0, nil
	for _, b := range j.bufs {
		for len(b) > 0 && j.err == nil {
			l := &t.lanes[t.sends.lane]
			n, err := l.Write(b[:t.sends.room(min(len(b), 64<<10), len(t.lanes))])
			t.sends.pass(n, len(t.lanes))
			j.err = over(l.Over, err)
			b = b[n:]
			j.n += n
			count.Add(uint64(n))
		}
	}
}

// portion bounds one order, so that received blocks are used while others come.
const portion = 256 << 10

func (s *streams) push(arrived func(*port) error) (moved bool, err error) {
	for _, j := range s.finished() {
		moved = true
		failed := j.finish(arrived)
		if err == nil {
			err = failed
		}
	}
	if err != nil {
		return true, err
	}
	for _, t := range s.list {
		if err := s.order(t, arrived); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// finish records the bytes that j has moved.
func (j *job) finish(arrived func(*port) error) error {
	t := j.of
	j.busy = false
	j.bufs = [3][]byte{} // the caller's
	if j.n > 0 {
		if j == &t.write {
			t.sent(j.n)
		} else if err := t.received(j.n, arrived); err != nil {
			return err
		}
	}
	switch {
	case errors.Is(j.err, io.EOF):
		return t.lost(transport.ErrEnded)
	case j.err != nil && (j == &t.read || !t.unheard()):
		return t.lost(j.err)
	}
	return nil
}

// order begins the possible transfers over a stream.
func (s *streams) order(t *stream, arrived func(*port) error) error {
	if !t.write.busy {
		if head, body, tail := t.outgoing(portion); len(head)+len(body)+len(tail) > 0 {
			t.write.bufs = [3][]byte{head, body, tail}
			s.start(&t.write)
		}
	}
	if !t.read.busy && !t.in.done() {
		if err := t.absorb(arrived); err != nil {
			return err
		}
		if t.in.done() {
			return nil
		}
		b, least := t.incoming()
		t.read.bufs[0], t.read.least = b[:min(len(b), portion)], min(least, portion)
		s.start(&t.read)
	}
	return nil
}

// wait waits for a job to be finished.
func (s *streams) wait(d time.Duration) (moved bool, err error) {
	s.timer.Reset(d)
	select {
	case <-s.bell:
	case <-s.timer.C:
	}
	s.timer.Stop()
	total := s.moved.Load()
	moved = total != s.seen
	s.seen = total
	return moved, nil
}

func (s *streams) wake() {
	select {
	case s.bell <- struct{}{}:
	default:
	}
}

func (s *streams) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, t := range s.list {
		t.stop()
	}
	s.wake()
}

func (t *stream) stop() {
	for _, l := range t.lanes {
		if c, ok := plain(l.Conn).(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite() // the other side may have ended it
		}
		_ = l.SetDeadline(time.Unix(1, 0)) // long ago: readers and writers return
	}
}

func (s *streams) silent() error {
	for _, t := range s.list {
		for _, l := range t.lanes {
			if dead := false; len(t.lanes) > 1 && control(plain(l.Conn), func(fd int) { dead = unanswered(fd) }) && dead {
				return t.lost(over(l.Over, errSilent))
			}
		}
	}
	return nil
}

// plain returns the connection under TLS.
func plain(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}

func (s *streams) quit() {
	s.stop()
	for _, t := range s.list {
		for t.read.busy || t.write.busy {
			<-s.bell
			for _, j := range s.finished() {
				j.busy = false
				j.bufs = [3][]byte{}
			}
		}
	}
}

func (s *streams) close(deadline time.Time) {
	s.quit()
	var ended sync.WaitGroup
	for _, t := range s.list {
		for _, l := range t.lanes {
			ended.Go(func() { end(plain(l.Conn), deadline) })
		}
	}
	ended.Wait()
	s.running.Wait()
	s.timer.Stop()
}

// end closes a connection when all sent data has arrived. Closing a connection on which unread
// bytes have come would discard that data. So if there is no other way to know, end reads on until
// the other side ends as well.
func end(c net.Conn, deadline time.Time) {
	var rest [4 << 10]byte
	for err := error(nil); !arrived(c) && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) && time.Now().Before(deadline); {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond)) // if it fails Read does
		_, err = c.Read(rest[:])
	}
	_ = c.Close()
}

// arrived reports whether the other side is known to have all sent data.
func arrived(c net.Conn) (yes bool) {
	_, ok := c.(syscall.Conn)
	return ok && (!control(c, func(fd int) { yes = delivered(fd) }) || yes)
}
