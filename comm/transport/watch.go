package transport

import (
	"sync"
	"sync/atomic"
	"time"
)

// Flight is a collective that is complete on a rank. Issued <= Began <= Done, by the clock of the
// process.
type Flight struct {
	Group  string
	Rank   int
	Seq    uint64    // its number in the group, from 1
	Call   string    // the call, with the label: all-gather float32[4096] "h.3"
	Bytes  int       // of the whole tensor
	Issued time.Time // by this rank
	// Began is when it could begin to move data: when all ranks had issued it, in shared memory;
	// when earlier collectives were complete, over a network.
	Began time.Time
	Done  time.Time // the result was there, and the source free
}

// A Watcher is a [Group] that reports its collectives. All groups of this module do. Collectives of
// NCCL are complete for the host when they are complete for the device.
type Watcher interface {
	// Watch calls f for each collective that this rank issues from now on, when it is complete,
	// until stop returns. Failed collectives are not reported. Calls come from any goroutine, one
	// at a time. f may neither wait, call the group, nor call stop. Several may watch, each by
	// itself. While a group is watched, each collective costs some allocations; groups without
	// watchers read no clock.
	Watch(f func(Flight)) (stop func())
}

// Flights reports the collectives of one handle. The zero value has no watchers. Its methods are
// safe for concurrent use.
type Flights struct {
	on atomic.Bool // there are watchers

	mu   sync.Mutex
	last uint64             // number of a watcher
	told map[uint64]watcher // by its number
	open map[uint64]*Flight // in flight, by number
}

// A watcher gets the collectives from a time on.
type watcher struct {
	f    func(Flight)
	from time.Time
}

// Add is [Watcher].Watch of the handle.
func (w *Flights) Add(f func(Flight)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.told) == 0 {
		w.told, w.open = make(map[uint64]watcher), make(map[uint64]*Flight)
	}
	w.last++
	number := w.last
	w.told[number] = watcher{f, time.Now()}
	w.on.Store(true)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.told, number)
		w.on.Store(len(w.told) > 0)
	}
}

// Issued records that the rank of f has issued collective seq.
func (w *Flights) Issued(f *Base, seq uint64, c *Call) {
	if !w.on.Load() {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[seq] = &Flight{Group: f.name, Rank: f.rank, Seq: seq, Call: c.String(), Bytes: c.Bytes(), Issued: now}
}

// Began records that collective seq begins to move data.
func (w *Flights) Began(seq uint64) {
	if !w.on.Load() {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if flight := w.open[seq]; flight != nil {
		flight.Began = now
	}
}

// Done records that collective seq is complete, and reports it.
func (w *Flights) Done(seq uint64) {
	if !w.on.Load() {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	flight := w.open[seq]
	if flight == nil {
		return
	}
	delete(w.open, seq)
	if flight.Done = now; flight.Began.IsZero() { // it was over at once
		flight.Began = now
	}
	for _, to := range w.told {
		if !flight.Issued.Before(to.from) {
			to.f(*flight)
		}
	}
}
