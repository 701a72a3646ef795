package comm

import (
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

// Connections on demand
//
// A rank connects to another one when a collective first has something for it, or wants something
// from it. Algorithms of few steps need some 2 log2 N of the other ranks, and what no collective
// needs costs nothing. Both ends do so in the same collective. Whoever does goes on with the other
// ranks until the connection is there: a rank that makes another call than its neighbours must
// hear so from those it can talk to. A connection that cannot be made fails the collective, as one
// that breaks does.

// wiring makes the connections of one rank.
type wiring struct {
	connect func(peer int) ([]mesh.Lane, error) // until stop
	stop    func()
	dials   sync.WaitGroup
	open    int // dials whose outcome has not been taken; of who drives the exchange

	some atomic.Bool // made is not empty
	mu   sync.Mutex
	made []wire
}

// wire is the outcome of a dial.
type wire struct {
	*port
	lanes []mesh.Lane
	err   error
}

// port returns the end of the connection to a rank, which is made if there is none.
func (x *exchange) port(rank int) *port {
	page := x.ports[rank/portsPage]
	if page == nil {
		page = new([portsPage]*port)
		x.ports[rank/portsPage] = page
	}
	if p := page[rank%portsPage]; p != nil {
		return p
	}
	p := &port{peer: rank, spare: &x.spare, in: queue{summed: x.frame.summed}, out: queue{summed: x.frame.summed}}
	p.absent.Store(true)
	x.listing.Lock()
	page[rank%portsPage] = p
	x.used = append(x.used, p)
	x.listing.Unlock()
	w := &x.wires
	w.open++
	w.dials.Go(func() {
		lanes, err := w.connect(rank)
		w.mu.Lock()
		w.made = append(w.made, wire{p, lanes, err})
		w.some.Store(true)
		w.mu.Unlock()
		x.pump.wake()
	})
	return p
}

// plug gives the connections that have been made since the last time to the pump.
func (x *exchange) plug() (some bool, err error) {
	w := &x.wires
	if w.open == 0 || !w.some.Load() {
		return false, nil
	}
	for _, made := range w.take() {
		w.open--
		if made.err == nil {
			made.err = x.pump.add(made.lanes, made.port)
		}
		if made.err != nil && err == nil {
			err = made.lost(made.err)
		}
		made.absent.Store(false)
	}
	return true, err
}

func (w *wiring) take() []wire {
	w.mu.Lock()
	defer w.mu.Unlock()
	made := w.made
	w.made = nil
	w.some.Store(false)
	return made
}

// end gives up what is being dialed.
func (w *wiring) end() {
	w.stop()
	w.dials.Wait()
	for _, made := range w.take() {
		mesh.CloseLanes(made.lanes)
	}
}
