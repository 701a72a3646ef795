package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// Dial connects to the server at a TCP address. Until ctx ends it waits for a server that is not
// there yet, does not respond or is cut off. A server that is there but unrelated, or that refuses
// this side, is an error at once.
func Dial(ctx context.Context, addr string, cfg Config) (Store, error) {
	return dial(ctx, addr, cfg, connectOn(ctx))
}

func dial(ctx context.Context, addr string, cfg Config, connect dialFunc) (Store, error) {
	conn, raw, err := reach(ctx, "rank 0", addr, cfg, cfg.hello(), connect)
	if err != nil {
		return nil, err
	}
	return newClient(addr, conn, raw), nil
}

// Connect is Dial for a server of Accept. mine is the hello of this side. Errors name the server by
// who. raw is the connection below TLS: closing it does not wait for the server.
func Connect(ctx context.Context, who, addr string, cfg Config, mine auth.Hello) (conn, raw net.Conn, err error) {
	return reach(ctx, who, addr, cfg, mine, connectOn(ctx))
}

// Try is Connect with one attempt.
func Try(ctx context.Context, addr string, cfg Config, mine auth.Hello) (conn, raw net.Conn, err error) {
	return attempt(ctx, addr, cfg, mine, connectOn(ctx))
}

// dialer gives up a silent address, so that the next attempt resolves its name again.
var dialer = &net.Dialer{KeepAliveConfig: keepAlive, Timeout: 10 * time.Second}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// connectOn returns the function that dials on the network of ctx.
func connectOn(ctx context.Context) dialFunc {
	n := NetworkOf(ctx)
	if n == nil {
		return dialer.DialContext
	}
	return func(ctx context.Context, _, addr string) (net.Conn, error) { return n.Dial(ctx, addr) }
}

// spreadOn returns the function that spreads pauses on the network of ctx, nil for this machine's.
func spreadOn(ctx context.Context) func(time.Duration) time.Duration {
	n := NetworkOf(ctx)
	if n == nil {
		return nil
	}
	tries := uint64(0)
	return func(d time.Duration) time.Duration {
		tries++
		return time.Duration(n.Chance(tries) % uint64(d))
	}
}

// reach connects, trying as often as necessary.
func reach(ctx context.Context, who, addr string, cfg Config, mine auth.Hello, connect dialFunc) (conn, raw net.Conn, err error) {
	retry := backoff{20 * time.Millisecond, time.Second, spreadOn(ctx)}
	var last error // except for errors that giving up causes
	var shortage Shortage
	for {
		conn, raw, err := attempt(ctx, addr, cfg, mine, connect)
		if err == nil {
			return conn, raw, nil
		}
		lasting := shortage.NoteFiles(err)
		if lasting != nil {
			err = lasting
		}
		if lasting != nil || final(err) {
			return nil, nil, fmt.Errorf("store: %s at %s: %w", who, addr, err)
		}
		if last == nil {
			cfg.log(fmt.Errorf("store: waiting for %s at %s: %w", who, addr, reason(err)))
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if ctx.Err() != nil || !retry.wait(ctx.Done(), nil) {
			return nil, nil, fmt.Errorf("store: %s at %s does not answer: %w (%w)", who, addr, reason(last), context.Cause(ctx))
		}
	}
}

// attempt makes one connection.
func attempt(ctx context.Context, addr string, cfg Config, mine auth.Hello, connect dialFunc) (conn, raw net.Conn, err error) {
	wire, err := connect(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	abort := context.AfterFunc(ctx, func() { wire.Close() }) // perhaps after attempt has returned
	conn, err = shakeHands(wire, addr, cfg, mine)
	if !abort() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		wire.Close()
		return nil, nil, err
	}
	return conn, wire, nil
}

// shakeHands makes a connection to the server at addr a connection to the store.
func shakeHands(raw net.Conn, addr string, cfg Config, mine auth.Hello) (net.Conn, error) {
	if loop(raw) {
		return nil, errors.New("nothing listens at this address (the connection reached itself)")
	}
	conn := raw
	if cfg.TLS != nil {
		t := cfg.TLS
		if host, _, err := net.SplitHostPort(addr); err == nil && t.ServerName == "" {
			t = t.Clone()
			t.ServerName = host // the name in certificates of the user's own
		}
		conn = tls.Client(raw, t)
	}
	_, err := auth.Client(conn, cfg.Secret, mine, time.Now().Add(auth.Timeout))
	return conn, err
}

// loop reports whether a connection leads to itself: TCP opens one if a port of this host is
// dialled, no process listens, and the kernel happens to choose that very port for the near end.
func loop(c net.Conn) bool {
	local, ok := c.LocalAddr().(*net.TCPAddr)
	return ok && local.String() == c.RemoteAddr().String()
}

// final reports whether trying again is useless.
func final(err error) bool {
	var malformed *net.AddrError
	return auth.Final(err) || errors.As(err, &malformed)
}

// reason returns a network error without the address, which is already in the message. For an
// attempt that timed out it says that there was no answer.
func reason(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" {
		return err
	}
	var lookup *net.DNSError
	waited := op.Timeout() || errors.Is(op, context.Canceled)
	switch {
	case waited && errors.As(err, &lookup):
		return fmt.Errorf("no answer from the name service for %s", lookup.Name)
	case waited && op.Addr != nil:
		return fmt.Errorf("no answer from %v: nothing runs at this address, or a firewall drops the packets", op.Addr)
	}
	return op.Err
}
