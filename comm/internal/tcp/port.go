package tcp

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/internal/checksum"
)

// block is how many bytes of a payload are summed or passed on while the next part arrives: they
// stay in the inner caches.
const block = 256 << 10

// port is one rank's end of the connection to another: the data to send and the memory for data to
// receive, in order. It does no input or output itself; a pump does.
type port struct {
	peer    int
	in, out queue
	waits   atomic.Bool // there are pieces that must be received
	absent  atomic.Bool // there is no connection yet

	// Bytes read ahead: a header and the data behind it, up to a page, cost one read. Nil while
	// there are none and nothing is expected: then the memory is spare.
	ahead  []byte
	lo, hi int // of ahead, the bytes not used yet
	spare  *[][]byte
}

// queue is the data of a collective over a connection in one direction.
type queue struct {
	summed bool // a checksum follows every payload
	pieces []piece
	left   int // bytes of the latest message that are in no piece yet
	next   int // pieces moved
	must   int // pieces up to the last one that must move now, see "Late answers"
	old    int // pieces of earlier collectives, all of them late
	moved  int // bytes of the next one, header and trailer included

	head     [frameSize]byte // header that is received
	heads    []byte          // headers that are sent together
	sum      uint32          // of the current payload
	summedTo int             // of the body of the next piece
	tail     [tailSize]byte  // current trailer
}

// tailSize is the bytes of the trailer of a payload, its checksum, little-endian. See [frame].
const tailSize = 4

// piece is a part of a message: its header, if it is the first part, memory to send or to fill, and
// the trailer, if it is the last part and has one. It has moved when all of these have, so the last
// part of a damaged payload is not passed on.
type piece struct {
	of     *frame // of its collective, for the header; nil if it is not the first part
	late   bool   // a message without payload that no rank waits for
	tailed bool
	round  uint16
	length int // bytes of the whole message, for the header
	body   []byte
	known  bool // sum is the checksum of the payload up to the end of body
	sum    uint32
}

// size returns the bytes of p on the wire.
func (p *piece) size() int {
	n := len(p.body)
	if p.of != nil {
		n += frameSize
	}
	if p.tailed {
		n += tailSize
	}
	return n
}

func (q *queue) add(p piece) {
	if p.of != nil {
		q.left = p.length
	}
	q.left -= len(p.body)
	p.tailed = q.summed && q.left == 0 && len(p.body) > 0
	if p.of == nil && len(p.body) == 0 {
		return
	}
	q.pieces = append(q.pieces, p)
	if !p.late {
		q.must = len(q.pieces)
	}
}

// idle reports whether all pieces have moved, and done whether all have that have to.
func (q *queue) idle() bool { return q.next == len(q.pieces) }
func (q *queue) done() bool { return q.next >= q.must }

// heading reports whether the next bytes belong to a header.
func (q *queue) heading() bool { return q.pieces[q.next].of != nil && q.moved < frameSize }

// bodyMoved returns how many bytes of the body of the next piece have moved, or more in its
// trailer.
func (q *queue) bodyMoved() int {
	if q.pieces[q.next].of != nil {
		return q.moved - frameSize
	}
	return q.moved
}

// due returns the memory of the next bytes, up to the end of the header, body or trailer, and
// whether they belong to a body.
func (q *queue) due() (b []byte, body bool) {
	if q.heading() {
		return q.head[q.moved:], false
	}
	at, all := q.bodyMoved(), q.pieces[q.next].body
	if at < len(all) {
		return all[at:], true
	}
	return q.tail[at-len(all):], false
}

// advance notes that n bytes of the next piece have moved.
func (q *queue) advance(n int) {
	q.moved += n
	if p := &q.pieces[q.next]; q.moved == p.size() {
		if p.tailed {
			q.sum = 0
		}
		if len(p.body) > 0 {
			q.summedTo = 0
		}
		q.next++
		q.moved = 0
	}
}

// reset forgets the pieces that have moved. The others are late.
func (q *queue) reset() {
	q.old = copy(q.pieces, q.pieces[q.next:])
	clear(q.pieces[q.old:]) // the memory is the caller's, do not keep it alive
	q.pieces, q.next, q.must = q.pieces[:q.old], 0, 0
}

// headers returns the headers of the next piece and of the pieces behind it, up to the first with a
// payload, and the index of the piece that the last header belongs to.
func (q *queue) headers() (b []byte, last int) {
	b, last = q.heads[:0], q.next
	for i := q.next; i < len(q.pieces) && q.pieces[i].of != nil; i++ {
		p := &q.pieces[i]
		f := *p.of
		f.round, f.length = p.round, p.length
		b = append(b, make([]byte, frameSize)...)
		f.put((*[frameSize]byte)(b[len(b)-frameSize:]))
		last = i
		if len(p.body) > 0 {
			break
		}
	}
	q.heads = b
	return b[q.moved:], last
}

// outgoing returns the memory to send next, in three parts. body has at most this many bytes. All
// are empty if nothing has to be sent.
func (p *port) outgoing(most int) (head, body, tail []byte) {
	q := &p.out
	if q.done() {
		return nil, nil, nil
	}
	at, last := max(0, q.bodyMoved()), q.next
	if q.heading() {
		head, last = q.headers()
	}
	next := &q.pieces[last]
	lo := min(at, len(next.body))
	hi := min(lo+most, len(next.body))
	switch {
	case !q.summed || hi <= q.summedTo: // bytes that were not taken are summed already
	case next.known:
		q.sum, q.summedTo = next.sum, len(next.body)
	default:
		q.sum, q.summedTo = checksum.Update(q.sum, next.body[q.summedTo:hi]), hi
	}
	if next.tailed && hi == len(next.body) {
		binary.LittleEndian.PutUint32(q.tail[:], q.sum)
		tail = q.tail[at-lo:]
	}
	return head, next.body[lo:hi], tail
}

// sent notes that n bytes of outgoing have been sent.
func (p *port) sent(n int) {
	for q := &p.out; n > 0; {
		some := min(n, q.pieces[q.next].size()-q.moved)
		q.advance(some)
		n -= some
	}
}

// incoming returns memory for bytes from the connection, of which at least least are due. There is
// a piece to receive, and everything read ahead is used up.
func (p *port) incoming() (b []byte, least int) {
	b, body := p.in.due()
	if !body {
		return p.readAhead(), len(b)
	}
	return b, len(b)
}

// trails reports whether the trailer follows the next n bytes, which are due.
func (q *queue) trails(n int) bool {
	next := &q.pieces[q.next]
	return next.tailed && !q.heading() && q.bodyMoved()+n == len(next.body)
}

// readAhead returns memory for bytes that may follow the due ones: some small messages that others
// have sent since this rank last read.
func (p *port) readAhead() []byte {
	p.lo, p.hi = 0, 0
	if free := *p.spare; p.ahead == nil && len(free) > 0 {
		p.ahead, *p.spare = free[len(free)-1], free[:len(free)-1]
	} else if p.ahead == nil {
		p.ahead = make([]byte, 4*(frameSize+4<<10+tailSize))
	}
	return p.ahead
}

// rest releases memory when nothing is expected.
func (p *port) rest() {
	if p.lo == p.hi && p.ahead != nil {
		*p.spare = append(*p.spare, p.ahead)
		p.ahead = nil
	}
}

// received records that n bytes have been put to incoming, and the rest to readAhead. It calls
// arrived with every header and trailer, when it is complete and before the next byte is taken.
func (p *port) received(n int, arrived func(*port) error) error {
	if b, body := p.in.due(); body {
		own := min(n, len(b))
		if err := p.take(own, arrived); err != nil {
			return err
		}
		n -= own
	}
	p.hi = n
	return p.absorb(arrived)
}

// absorb moves bytes that were read ahead to the pieces they belong to.
func (p *port) absorb(arrived func(*port) error) error {
	for p.lo < p.hi && !p.in.idle() {
		b, _ := p.in.due()
		n := copy(b, p.ahead[p.lo:p.hi])
		p.lo += n
		if err := p.take(n, arrived); err != nil {
			return err
		}
	}
	return nil
}

// take records that n of the due bytes have arrived.
func (p *port) take(n int, arrived func(*port) error) error {
	q := &p.in
	switch b, body := q.due(); {
	case body && q.summed:
		q.sum = checksum.Update(q.sum, b[:n])
		if n == len(b) {
			next := &q.pieces[q.next]
			next.known, next.sum = true, q.sum // a rank that passes it on need not compute it again
		}
	case !body && n == len(b):
		if err := arrived(p); err != nil {
			return err
		}
	}
	q.advance(n)
	if q.done() {
		p.waits.Store(false)
	}
	return nil
}
