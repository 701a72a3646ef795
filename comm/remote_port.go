package comm

import "sync/atomic"

// port is one rank's end of the connection to another: what is to be sent and
// where to put what is received, in order. It does no input or output itself;
// a pump does.
type port struct {
	peer    int
	in, out queue
	waits   atomic.Bool // there are pieces to receive

	// Bytes read ahead: a header and what came with it cost one read.
	ahead  [4 << 10]byte
	lo, hi int // of them, those not used yet
}

// queue is what a collective moves over a connection in one direction.
type queue struct {
	pieces []piece
	next   int             // pieces moved
	moved  int             // bytes of the next one, header included
	head   [frameSize]byte // header under way
}

// piece is a part of a message: its header, if it is the first part, and memory
// to send or to fill.
type piece struct {
	framed bool
	round  uint16
	length int // bytes of the whole message, for the header
	body   []byte
}

// size returns the bytes of p on the wire.
func (p *piece) size() int {
	if p.framed {
		return frameSize + len(p.body)
	}
	return len(p.body)
}

func (q *queue) add(p piece) {
	if p.framed || len(p.body) > 0 {
		q.pieces = append(q.pieces, p)
	}
}

func (q *queue) idle() bool { return q.next == len(q.pieces) }

// advance notes that n bytes of the next piece have moved.
func (q *queue) advance(n int) {
	q.moved += n
	if q.moved == q.pieces[q.next].size() {
		q.next++
		q.moved = 0
	}
}

// reset forgets all pieces.
func (q *queue) reset() {
	clear(q.pieces) // the memory is the caller's, do not keep it alive
	q.pieces, q.next, q.moved = q.pieces[:0], 0, 0
}

// outgoing returns the memory to send next, in two parts; both are empty if
// there is nothing to send. f is the frame of the collective.
func (p *port) outgoing(f *frame) (head, body []byte) {
	q := &p.out
	if q.idle() {
		return nil, nil
	}
	next := &q.pieces[q.next]
	if !next.framed {
		return nil, next.body[q.moved:]
	}
	if q.moved >= frameSize {
		return nil, next.body[q.moved-frameSize:]
	}
	if q.moved == 0 {
		f.round, f.length = next.round, next.length
		f.put(&q.head)
	}
	return q.head[q.moved:], next.body
}

// sent notes that n bytes of outgoing have been sent.
func (p *port) sent(n int) { p.out.advance(n) }

// incoming returns where to put bytes from the connection, of which at least
// least are due; nothing if no piece is. Everything read ahead is used up.
func (p *port) incoming() (b []byte, least int) {
	q := &p.in
	if q.idle() {
		return nil, 0
	}
	next := &q.pieces[q.next]
	if next.framed && q.moved < frameSize {
		p.lo, p.hi = 0, 0
		return p.ahead[:], frameSize - q.moved
	}
	b = next.body[len(next.body)-(next.size()-q.moved):]
	return b, len(b)
}

// received notes that n bytes have been put to incoming. check is called with
// every header, when it is complete and before its payload is.
func (p *port) received(n int, check func(*port) error) error {
	q := &p.in
	if next := &q.pieces[q.next]; next.framed && q.moved < frameSize {
		p.hi = n
		return p.absorb(check)
	}
	p.progress(n)
	return nil
}

// absorb moves bytes that were read ahead to the pieces they belong to.
func (p *port) absorb(check func(*port) error) error {
	q := &p.in
	for p.lo < p.hi && !q.idle() {
		next := &q.pieces[q.next]
		if next.framed && q.moved < frameSize {
			n := copy(q.head[q.moved:], p.ahead[p.lo:p.hi])
			p.lo += n
			if q.moved+n == frameSize {
				if err := check(p); err != nil {
					return err
				}
			}
			p.progress(n)
			continue
		}
		n := copy(next.body[len(next.body)-(next.size()-q.moved):], p.ahead[p.lo:p.hi])
		p.lo += n
		p.progress(n)
	}
	return nil
}

func (p *port) progress(n int) {
	p.in.advance(n)
	if p.in.idle() {
		p.waits.Store(false)
	}
}
