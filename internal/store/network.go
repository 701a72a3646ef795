package store

import (
	"context"
	"net"
)

// Network is a network as one process sees it. [Listen], [Dial] and mesh.Join use the Network of
// their context, if there is one, in place of this machine's. So ranks of a simulation meet and
// connect with the code of every job.
//
// Addresses are host:port, with a number for the port. Connections can be half-closed (CloseWrite)
// and end with the errors of system connections: io.EOF, net.ErrClosed, ECONNRESET, ETIMEDOUT. If a
// connection has a method Unanswered(time.Duration), the caller sets with it when a silent host
// counts as lost, as TCP_USER_TIMEOUT does for a socket.
type Network interface {
	Listen(ctx context.Context, address string) (net.Listener, error)
	Dial(ctx context.Context, address string) (net.Conn, error)
	// Chance returns a substitute for a random number, which spreads the retries of ranks in time:
	// the same for the same process and numbers.
	Chance(of ...uint64) uint64
}

type networkKey struct{}

// WithNetwork returns a context under which processes listen and dial on n.
func WithNetwork(ctx context.Context, n Network) context.Context {
	return context.WithValue(ctx, networkKey{}, n)
}

// NetworkOf returns the network of a context, nil for this machine's.
func NetworkOf(ctx context.Context) Network {
	n, _ := ctx.Value(networkKey{}).(Network)
	return n
}
