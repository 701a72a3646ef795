package simnet

import (
	"net"
	"sync"
	"time"
)

// listener accepts connections of a host.
type listener struct {
	host *Host
	port uint16
	came chan struct{} // holds one signal: there are connections
	done chan struct{} // closed by Close

	mu     sync.Mutex
	queue  []*Conn
	closed bool
}

func (l *listener) offer(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.queue = append(l.queue, c)
	signal(l.came)
	return true
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	for {
		if wait := time.Until(l.host.awake()); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-l.done:
				timer.Stop()
			}
		}
		l.mu.Lock()
		closed := l.closed
		var next *Conn
		if len(l.queue) > 0 {
			next, l.queue = l.queue[0], l.queue[1:]
		}
		l.mu.Unlock()
		switch {
		case closed:
			return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
		case next != nil:
			return next, nil
		}
		select {
		case <-l.came:
		case <-l.done:
		}
	}
}

// Close implements [net.Listener]. Connections that were not accepted are reset.
func (l *listener) Close() error {
	l.mu.Lock()
	closed, queue := l.closed, l.queue
	l.closed, l.queue = true, nil
	l.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	close(l.done)
	l.host.mu.Lock()
	if l.host.listeners[l.port] == l {
		delete(l.host.listeners, l.port)
	}
	l.host.mu.Unlock()
	for _, c := range queue {
		c.die()
	}
	return nil
}

// Addr implements [net.Listener].
func (l *listener) Addr() net.Addr { return l.host.address(l.port) }
