package mesh

import (
	"context"
	"net"
)

// A Middle is given every TCP connection that rank self has dialed to rank peer, before anything is
// said on it, and returns what to use in its place: somebody in the middle.
type Middle func(self, peer int, conn net.Conn) net.Conn

type middleKey struct{}

// WithMiddle returns a context under which [Join] and [Mesh.Connect] have middle between ranks. It
// is how tests damage what ranks say; comm passes the contexts of its callers on.
func WithMiddle(ctx context.Context, middle Middle) context.Context {
	return context.WithValue(ctx, middleKey{}, middle)
}
