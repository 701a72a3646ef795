package tcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/backoff"
	"github.com/gofsdp/gofsdp/internal/mesh"
)

// pump moves bytes between the ports of a rank and their connections. One
// goroutine at a time drives it; stop may be called by any.
type pump interface {
	// push moves everything that can be moved without waiting, and reports whether anything has
	// moved. It calls arrived with every header and trailer, see port.received.
	push(arrived func(*port) error) (moved bool, err error)
	// wait returns when there may be something to move, or after d, and reports
	// whether anything has moved meanwhile.
	wait(d time.Duration) (moved bool, err error)
	// add makes lanes the connection of a port. They belong to the pump, even if add fails.
	add(lanes []mesh.Lane, p *port) error
	// silent returns the error of one of several lanes whose other end has not answered for
	// [mesh.Unanswered], if the system can detect it.
	silent() error
	// wake makes wait return. Any goroutine may call it.
	wake()
	// stop prevents further sending, and makes wait return.
	stop()
	// quit returns when no piece is being read or written any more, for ever.
	quit()
	// close ends the connections when all sent data has arrived, or at the deadline. It is called
	// once, and after everything else.
	close(deadline time.Time)
}

// newPump makes the fastest pump for connections that are plain TCP or not.
func newPump(plain bool) (pump, error) {
	if plain {
		return newPoller()
	}
	return newStreams(), nil
}

// lost says that the connection of p has failed.
func (p *port) lost(err error) error { return &lostError{peer: p.peer, err: err} }

// lostError is the end of a connection.
type lostError struct {
	self, peer int
	err        error
}

func (e *lostError) Error() string   { return fmt.Sprintf("connection to rank %d: %v", e.self, e.err) }
func (e *lostError) Unwrap() []error { return []error{e.err, transport.ErrLost} }

var errStopped = errors.New("stopped")

const (
	// The goroutines of streams are not found to have something to do while others look.
	eagerStreams = 200 * time.Microsecond
	// Only after this time does a rank let other processes run as well. If one processor is idle, a
	// peer may still be on this one, and would wait until this rank sleeps, again and again.
	alone = 20 * time.Microsecond
	// A sleeping rank checks this often.
	slice = 20 * time.Millisecond
)

// exchange drives the ports of one rank through the collectives.
type exchange struct {
	listing sync.Mutex          // guards changes of used
	ports   []*[portsPage]*port // by rank, nil for this one and for ranks without a connection
	used    []*port             // ports that are not nil
	spare   [][]byte            // memory to read ahead that no port uses
	wires   wiring
	pump    pump
	timeout time.Duration // without progress; 0 for none
	waiting backoff.Policy
	waiter  backoff.Waiter
	frame   *frame // of the current collective; the frame of collective s is frames[s mod len]
	frames  [keptFrames]frame
	arrived func(*port) error
	stopped atomic.Bool
}

// portsPage is how many ports are listed together: with many ranks, most are not.
const portsPage = 64

// send queues a message to a rank: a header and the first part of the payload, whose whole length
// is given. sendMore queues the rest.
func (x *exchange) send(to int, round uint16, length int, part []byte) {
	x.port(to).out.add(piece{of: x.frame, round: round, length: length, body: part})
}

func (x *exchange) sendMore(to int, part []byte) { x.port(to).out.add(piece{body: part}) }

// pass queues next, whose body is the data of the k-th piece from a rank since the last settle,
// counted as await does, with the checksum of that piece. So the next rank notices if data is
// damaged in the memory of this one.
func (x *exchange) pass(from, k, to int, next piece) {
	in := &x.port(from).in
	got := &in.pieces[in.old+k-1]
	next.known, next.sum = got.known, got.sum
	x.port(to).out.add(next)
}

// receive queues memory for a message from a rank, like send.
func (x *exchange) receive(from int, round uint16, length int, part []byte) {
	p := x.port(from)
	p.in.add(piece{of: x.frame, round: round, length: length, body: part})
	p.waits.Store(true)
}

func (x *exchange) receiveMore(from int, part []byte) {
	p := x.port(from)
	p.in.add(piece{body: part})
	if !p.in.done() {
		p.waits.Store(true)
	}
}

// await returns when every port has received its first k pieces since the last
// settle, or all of them.
func (x *exchange) await(ctx context.Context, k int) error { return x.run(ctx, k, false) }

// settle returns when everything queued has been received and sent, except for late answers. It is
// the end of every collective.
func (x *exchange) settle(ctx context.Context) error {
	if err := x.run(ctx, 0, true); err != nil {
		return err
	}
	for _, p := range x.used {
		p.in.reset()
		p.out.reset()
		p.rest()
	}
	return nil
}

// ready reports whether the data that await or settle wait for has arrived.
func (x *exchange) ready(k int, all bool) bool {
	for _, p := range x.used {
		switch {
		case all && !(p.in.done() && p.out.done()):
			return false
		case !p.in.done() && p.in.next-p.in.old < k:
			return false
		}
	}
	return true
}

// run moves bytes until ready.
func (x *exchange) run(ctx context.Context, k int, all bool) error {
	w := &x.waiter
	w.Policy = &x.waiting
	w.Reset()
	for {
		plugged, err := x.plug()
		if err != nil {
			return err
		}
		moved, err := x.pump.push(x.arrived)
		switch {
		case err != nil:
			return err
		case x.ready(k, all):
			return nil
		case x.stopped.Load():
			return errStopped
		case moved || plugged:
			w.Reset()
			continue
		case w.Rest():
			continue
		case x.answer(noSeq):
			continue // the other rank may wait for that
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		quiet, nap := w.Idle(), slice
		if quiet >= stuckAfter && x.stuck() {
			continue
		}
		if quiet >= mesh.Unanswered {
			if err := x.pump.silent(); err != nil {
				return err
			}
		}
		if x.timeout > 0 {
			if quiet >= x.timeout {
				return transport.NoProgress(x.timeout)
			}
			nap = min(nap, x.timeout-quiet)
		}
		if moved, err = x.pump.wait(nap); err != nil {
			return err
		}
		if moved {
			w.Progress()
		}
	}
}
