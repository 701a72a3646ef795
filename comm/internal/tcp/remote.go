// Package tcp is the transport between hosts: [New] makes a group over TCP, or TLS. If some hosts have
// several ranks, which share memory, the group sends data to each host once.
package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm/internal/session"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// remote is the Backend of a group whose ranks communicate through sockets: one connection, of one
// lane or several, for every pair that exchanges messages.
//
// It keeps three rules, which make every disagreement an error and ensure that a rank that has
// completed a collective need not come back to it:
//
//   - In every collective a rank sends a frame to its right neighbour before it
//     waits for anything, and receives one from its left neighbour. If not all
//     calls are equal, two neighbours differ, and one of them notices it.
//   - A rank completes a collective only when it has learnt of every other rank, at
//     first or second hand, that it has made the same call.
//   - When a rank completes a collective, it has sent all frames of this rank. It
//     receives exactly the frames that its own call implies.
//
// Small broadcasts and gathers follow the first and the second rule later, and large broadcasts the
// second, see "Late answers".
type remote struct {
	exchange
	name       string
	rank, size int
	link       *session.Link
	broken     error // of the first collective that failed; the state of the streams is unknown
	begun      bool  // Begin has queued the messages of the next collective
	failed     error // of Begin
	reducer    transport.Reducer
	stage      []byte       // for blocks that are received to be summed
	sums       [3]subsums   // in stage, see "Sums in steps"
	route      route        // see "Sums by halving"
	stripe     int          // bytes that are halved at a time
	hosts      *hosts       // nil if the group treats all ranks alike
	crowded    bool         // ranks of some host share its processors
	gone       atomic.Int32 // 1 when Leave has begun

	mu   sync.Mutex
	halt func() // ends the current work: joining the others, then moving bytes
}

// check checks the header or the trailer that has arrived at p.
func (r *remote) check(p *port) error {
	if p.in.heading() {
		return r.checkFrame(p)
	}
	got := binary.LittleEndian.Uint32(p.in.tail[:])
	if got == p.in.sum {
		return nil
	}
	return r.damaged(p.peer, "payload", fmt.Errorf("its checksum is %08x, but the received bytes have %08x", got, p.in.sum))
}

// damaged returns the error for data from rank peer that has changed on its way to this one.
func (r *remote) damaged(peer int, what string, err error) error {
	during := "before its first collective"
	if call, perr := transport.ParseSignature(r.frame.call[:]); perr == nil {
		during = fmt.Sprintf("in collective #%d, %v,", r.frame.seq, call)
	}
	return &transport.RankError{Group: r.name, Rank: peer, Err: fmt.Errorf("%s to rank %d %s was %w: %w", what, r.rank, during, transport.ErrDamaged, err)}
}

// checkFrame checks the header that has arrived at p.
func (r *remote) checkFrame(p *port) error {
	next := &p.in.pieces[p.in.next]
	want, got := *next.of, frame{}
	want.round, want.length = next.round, next.length
	if err := got.parse(&p.in.head); err != nil {
		return &transport.RankError{Group: r.name, Rank: p.peer, Err: fmt.Errorf("broken stream to rank %d: %w", r.rank, err)}
	}
	return want.compare(&got, r.name, r.rank, p.peer)
}

// Run implements [transport.Backend].
func (r *remote) Run(ctx context.Context, seq uint64, c *transport.Call) error {
	if r.broken != nil {
		return r.broken
	}
	var err error
	switch {
	case !r.begun:
		r.head(seq, c)
		err = r.collective(ctx, c)
	case r.failed != nil:
		err = r.failed
	default:
		err = r.finish(ctx, c)
	}
	r.begun = false
	if err == nil {
		return nil
	}
	r.pump.quit()
	r.broken = r.broke(err)
	return r.broken
}

// head makes the frame of the collective.
func (r *remote) head(seq uint64, c *transport.Call) {
	group, summed := r.frame.group, r.frame.summed
	r.frame = &r.frames[seq%keptFrames]
	*r.frame = frame{group: group, seq: seq, summed: summed}
	c.Signature().Put(r.frame.call[:])
	r.age(seq)
}

// broke blames the peer if err is the end of a connection.
func (r *remote) broke(err error) error {
	var lost *lostError
	if !errors.As(err, &lost) {
		return err
	}
	var op *net.OpError
	if errors.As(lost.err, &op) && op.Op == "local error" { // crypto/tls uses this Op for data that it refuses
		return r.damaged(lost.peer, "stream", lost.err)
	}
	lost.self = r.rank
	return &transport.RankError{Group: r.name, Rank: lost.peer, Err: lost}
}

// Missing implements [transport.Backend].
func (r *remote) Missing() (ranks []int) {
	r.listing.Lock()
	defer r.listing.Unlock()
	for _, p := range r.used {
		if p.waits.Load() || p.absent.Load() {
			ranks = append(ranks, p.peer)
		}
	}
	slices.Sort(ranks)
	return ranks
}

// Split implements [transport.Backend].
func (r *remote) Split(ctx context.Context, seq uint64, color int, ranks []int) (transport.Group, error) {
	return r.link.Form(ctx, seq, color, ranks)
}

// Report implements [transport.Reporter].
func (r *remote) Report(ctx context.Context) ([]transport.Status, error) { return r.link.Report(ctx) }

// Tell implements [transport.Backend].
func (r *remote) Tell(err error) { r.link.Fail(err) }

// Stop implements [transport.Backend].
func (r *remote) Stop() {
	if r.gone.Load() == 0 && r.stopped.CompareAndSwap(false, true) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.halt()
	}
}

// interrupt stops the transfers of a rank that has joined.
func (r *remote) interrupt() {
	r.pump.stop()
	if r.hosts != nil {
		r.hosts.stop()
	}
}

// Leave implements [transport.Backend].
func (r *remote) Leave(last uint64) error {
	r.gone.Store(1)
	deadline := time.Now().Add(transport.Grace)
	err := r.link.Leave(last)
	r.wires.end()
	r.link.Session.Mesh.Forget(r.link.ID) // other ranks may have connected for a collective that has failed
	if r.pump != nil {                    // else it has never been connected
		r.pump.close(deadline)
	}
	for _, p := range r.used { // failed pieces may still refer to the caller's memory
		p.in, p.out = queue{}, queue{}
	}
	return err
}

// Timeout implements limited.
func (r *remote) Timeout() time.Duration { return r.timeout }
