package tcp

import (
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

// Connections on demand
//
// A rank connects to another one when a collective first sends data to it, or needs data from it.
// Algorithms of few steps need about 2 log2 N of the other ranks, and connections that no
// collective needs cost nothing. Both ends connect in the same collective. A rank goes on with the
// other ranks until the connection is there: a rank that makes another call than its neighbours
// must learn so from the ranks it can reach. A connection that cannot be made fails the collective,
// like a connection that breaks.

// wiring makes the connections of one rank.
type wiring struct {
	connect func(peer int) ([]mesh.Lane, error) // until stop
	stop    func()
	dials   sync.WaitGroup
	open    int // dials whose outcome has not been taken; used by the driver of the exchange

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

// port returns the end of the connection to a rank, and begins to connect if there is none.
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

// plug gives new connections to the pump.
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

// end gives up pending dials.
func (w *wiring) end() {
	w.stop()
	w.dials.Wait()
	for _, made := range w.take() {
		mesh.CloseLanes(made.lanes)
	}
}
