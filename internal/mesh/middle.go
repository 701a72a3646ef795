package mesh

import (
	"context"
	"net"
)

// A Middle gets every TCP connection that rank self has dialed to rank peer, before any data is
// sent on it, and returns the connection to use in its place: it is in the middle.
type Middle func(self, peer int, conn net.Conn) net.Conn

type middleKey struct{}

// WithMiddle returns a context under which [Join] and [Mesh.Connect] put middle between ranks.
// Tests use it to damage the data between ranks; comm passes the contexts of its callers on.
func WithMiddle(ctx context.Context, middle Middle) context.Context {
	return context.WithValue(ctx, middleKey{}, middle)
}
