package tcp

import (
	"fmt"
	"net"
	"syscall"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

// Lanes
//
// Two ranks have one connection or, if one of them listens on several network interfaces, one over
// each pair of these: lanes. Their data is one stream. One chunk of it goes over the first lane,
// the next over the second, and so on, around. The kernel keeps many chunks of every lane in flight
// while one end writes and the other reads in this order, so all carry bytes at the same time. A
// slower lane slows down all. A lane that carries nothing any more ends the stream with an error
// that names it.

// chunk is how many bytes go over one of several lanes before the next one's turn.
const chunk = 64 << 10

// turn is the position in one direction of a stream: moved bytes of the chunk on this lane.
type turn struct{ lane, moved int }

// room returns how many of n bytes may go over the current lane.
func (t *turn) room(n, lanes int) int {
	if lanes > 1 {
		n = min(n, chunk-t.moved)
	}
	return n
}

// pass records that n bytes have gone over the current lane, at most as many as there is room for.
func (t *turn) pass(n, lanes int) {
	if lanes == 1 {
		return
	}
	if t.moved += n; t.moved == chunk {
		t.lane, t.moved = (t.lane+1)%lanes, 0
	}
}

// over names the interfaces in an error of a lane.
func over(l string, err error) error {
	if l == "" || err == nil {
		return err
	}
	return fmt.Errorf("over %s: %w", l, err)
}

// errSilent is the error of a lane whose other end does not answer, while its rank lives.
var errSilent = fmt.Errorf("no answer for %v: is the interface or the link down?", mesh.Unanswered)

// control calls f with the descriptor of a connection, if it has one.
func control(c net.Conn, f func(fd int)) (ok bool) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	return err == nil && raw.Control(func(fd uintptr) { f(int(fd)) }) == nil
}
