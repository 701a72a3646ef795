package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// client is a Store on a server. One goroutine writes requests and one reads replies, so that any
// number of calls share the connection and none waits for another.
type client struct {
	addr string
	conn net.Conn
	raw  net.Conn // below TLS: closing it does not wait for the server

	out    chan []byte   // encoded requests
	cancel chan struct{} // there are abandoned Gets; holds one token
	done   chan struct{} // closed when err is set
	tasks  sync.WaitGroup

	mu        sync.Mutex
	err       error // why there is no connection any more
	last      uint64
	calls     map[uint64]*call // sent and not answered
	abandoned []uint64         // Gets that the server need not answer any more
}

// call is a request that waits for its reply.
type call struct {
	reply frame
	done  chan struct{} // closed when reply is there
}

func newClient(addr string, conn, raw net.Conn) *client {
	c := &client{
		addr: addr, conn: conn, raw: raw,
		out: make(chan []byte), cancel: make(chan struct{}, 1), done: make(chan struct{}),
		calls: make(map[uint64]*call),
	}
	c.tasks.Go(c.read)
	c.tasks.Go(c.write)
	return c
}

func (c *client) Get(ctx context.Context, key string) ([]byte, error) {
	return c.do(ctx, "get", frame{code: askGet, key: key})
}

func (c *client) Claim(ctx context.Context, key string, value []byte) ([]byte, error) {
	return c.do(ctx, "claim", frame{code: askClaim, key: key, value: value})
}

// Close ends the connection.
func (c *client) Close() error {
	c.fail(ErrClosed)
	c.tasks.Wait()
	return nil
}

// do sends a request and waits for its reply.
func (c *client) do(ctx context.Context, op string, f frame) ([]byte, error) {
	call, err := c.roundTrip(ctx, f)
	if err == nil && call.reply.code == replyLimit {
		err = fmt.Errorf("%w: %s", ErrLimit, call.reply.value)
	}
	if err != nil {
		return nil, fmt.Errorf("store of rank 0 at %s: %s %q: %w", c.addr, op, f.key, err)
	}
	return call.reply.value, nil
}

func (c *client) roundTrip(ctx context.Context, f frame) (*call, error) {
	if err := check(f.key, f.value); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	id, call, err := c.register()
	if err != nil {
		return nil, err
	}
	f.id = id
	select {
	case c.out <- f.encode():
	case <-ctx.Done():
		c.forget(id, false)
		return nil, context.Cause(ctx)
	case <-c.done:
		return nil, c.err
	}
	select {
	case <-call.done:
		return call, nil
	case <-ctx.Done():
		c.forget(id, f.code == askGet)
		if f.code == askGet {
			return nil, fmt.Errorf("no rank has set it: %w", context.Cause(ctx))
		}
		return nil, fmt.Errorf("no answer: %w", context.Cause(ctx))
	case <-c.done:
	}
	select {
	case <-call.done: // it came just before the connection ended
		return call, nil
	default:
		return nil, c.err
	}
}

// register makes room for a reply.
func (c *client) register() (uint64, *call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, nil, c.err
	}
	c.last++
	call := &call{done: make(chan struct{})}
	c.calls[c.last] = call
	return c.last, call, nil
}

// forget gives up a call. If tell is set, it asks the server to give it up, too.
func (c *client) forget(id uint64, tell bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
	if !tell {
		return
	}
	c.abandoned = append(c.abandoned, id)
	select {
	case c.cancel <- struct{}{}:
	default: // the writer handles this one, too
	}
}

// fail ends the connection for the reason err, if it has not ended yet.
func (c *client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	c.calls = nil
	close(c.done)
	_ = c.raw.Close()
}

// write sends the requests of the calls. It only writes whole frames, whichever calls are given up
// meanwhile.
func (c *client) write() {
	for {
		var b []byte
		select {
		case b = <-c.out:
		case <-c.cancel:
			c.mu.Lock()
			for _, id := range c.abandoned {
				b = append(b, frame{id: id, code: askCancel}.encode()...)
			}
			c.abandoned = nil
			c.mu.Unlock()
		case <-c.done:
			return
		}
		if _, err := c.conn.Write(b); err != nil {
			c.fail(fmt.Errorf("%w: %w", ErrLost, err))
			return
		}
	}
}

// read passes replies to the calls that wait for them.
func (c *client) read() {
	r := bufio.NewReader(c.conn)
	for {
		f, err := readFrame(r)
		if err == nil {
			err = c.deliver(f)
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("the server has closed the connection")
		}
		if err != nil {
			c.fail(fmt.Errorf("%w: %w", ErrLost, err))
			return
		}
	}
}

// deliver passes one frame to its call, unless that has been given up.
func (c *client) deliver(f frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[f.id]
	switch {
	case f.code != replyOK && f.code != replyLimit:
		return fmt.Errorf("%w: unknown reply %d", errFrame, f.code)
	case call == nil:
	default:
		call.reply = f
		delete(c.calls, f.id)
		close(call.done)
	}
	return nil
}
