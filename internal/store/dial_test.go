package store

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/auth"
)

// TestContextEndsInHandshake has a context that has ended while a handshake fails. What closes the
// connection then runs only after the attempt has returned: on one processor, as soon as the test
// lets others run.
func TestContextEndsInHandshake(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	conn := &countingConn{closed: make(chan struct{}, 2)}
	_, _, err := attempt(ctx, "host:1", Config{Secret: make([]byte, auth.MinSecret)}, auth.Hello{}, func(context.Context, string, string) (net.Conn, error) { return conn, nil })
	require.ErrorIs(t, err, net.ErrClosed)
	<-conn.closed
	<-conn.closed // the attempt, and what the context has started
}

// countingConn is a connection that has failed.
type countingConn struct {
	net.Conn
	closed chan struct{}
}

func (c *countingConn) Close() error {
	c.closed <- struct{}{}
	return nil
}

func (c *countingConn) LocalAddr() net.Addr         { return nil }
func (c *countingConn) RemoteAddr() net.Addr        { return &net.TCPAddr{Port: 2} }
func (c *countingConn) SetDeadline(time.Time) error { return net.ErrClosed }
