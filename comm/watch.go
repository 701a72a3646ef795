package comm

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
	Call   string    // what was called, with the label: all-gather float32[4096] "h.3"
	Bytes  int       // of the whole tensor
	Issued time.Time // by this rank
	// Began is when it was next to move data: all ranks had issued it, where memory is shared; what
	// was issued before it was complete, over a network.
	Began time.Time
	Done  time.Time // the result was there, and the source free
}

// A Watcher is a [Group] that tells of its collectives. All groups of this module do. NCCL's are
// over for the host when they are for the device.
type Watcher interface {
	// Watch has f called for each collective that this rank issues from now on, when it is complete.
	// One that fails is not told of. Calls come from any goroutine, also at the same time, and f may
	// neither wait nor call the group. There is one f at a time, and none after Watch(nil). Until then
	// each collective costs some allocations; groups that nobody watches look at no clock.
	Watch(f func(Flight))
}

// flights tells of the collectives of one handle. The zero value tells nobody. Its methods are safe
// for concurrent use.
type flights struct {
	on atomic.Bool // f is not nil

	mu   sync.Mutex
	f    func(Flight)
	open map[uint64]*Flight // those in flight, by number
}

func (w *flights) set(f func(Flight)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.f, w.open = f, map[uint64]*Flight{}
	w.on.Store(f != nil)
}

// issued notes collective seq of a rank of a group, and began and done what became of it.
func (w *flights) issued(f *face, seq uint64, c *Call) {
	if !w.on.Load() {
		return
	}
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[seq] = &Flight{Group: f.name, Rank: f.rank, Seq: seq, Call: c.String(), Bytes: c.Bytes(), Issued: now}
}

func (w *flights) began(seq uint64) {
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

func (w *flights) done(seq uint64) {
	if !w.on.Load() {
		return
	}
	now := time.Now()
	w.mu.Lock()
	flight, tell := w.open[seq], w.f
	delete(w.open, seq)
	w.mu.Unlock()
	if flight == nil || tell == nil {
		return
	}
	if flight.Done = now; flight.Began.IsZero() { // it was over at once
		flight.Began = now
	}
	tell(*flight)
}
