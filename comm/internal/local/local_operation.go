package local

import (
	"github.com/gofsdp/gofsdp/comm/internal/park"
	"github.com/gofsdp/gofsdp/comm/transport"
	"sync/atomic"
)

// An operation that moves no more bytes than this, over all ranks, is one part.
const smallBytes = 16 << 10

// phase is the state of an operation. Every record goes done -> pending -> ready -> done; a failed
// group leaves it pending for ever.
type phase uint64

const (
	done    phase = iota // complete; the record may already serve another collective
	pending              // some rank has not issued it: no buffer is touched
	ready                // all ranks have: a rank that waits executes it, nothing can stop it
)

// operation is the record of one collective, shared by all ranks and reused.
type operation struct {
	state atomic.Uint64 // tag and phase; done is stored as 0
	left  atomic.Int64  // parts not finished; the rank that brings it to 0 retires the record
	lanes []lane        // one per rank

	// Guarded by team.mu while pending, read-only while ready.
	transport.Division
	arrived int  // number of ranks that have issued
	first   int  // the first of them
	single  bool // one part executes everything

	// Guarded by team.mu.
	index   int          // in team.live
	waiters park.Parking // to wake at every change of phase
}

// lane holds the unclaimed work of a lane of the division. The padding keeps claims of different
// lanes off each other's line.
type lane struct {
	word atomic.Uint64 // tag and number of unclaimed parts
	_    [56]byte
}

func newOperation(n int) *operation {
	return &operation{lanes: make([]lane, n), Division: transport.NewDivision(n)}
}

// phase returns the state of collective seq, for which o was made the record.
func (o *operation) phase(seq uint64) phase {
	s := o.state.Load()
	if s>>transport.TagShift != seq {
		return done // retired, and perhaps reused
	}
	return phase(s & transport.ValueMask)
}

func (o *operation) setPhase(seq uint64, p phase) { o.state.Store(seq<<transport.TagShift | uint64(p)) }

// open divides the work and returns how many parts there are. From here on they
// can be claimed under the number seq.
func (o *operation) open(seq uint64) (parts int) {
	parts = o.Cut()
	if parts == 0 {
		return 0
	}
	o.single = o.Calls[0].Bytes()*len(o.Calls) <= smallBytes
	if o.single {
		parts = 1
	}
	o.left.Store(int64(parts))
	for i := range o.lanes {
		claimable := o.Parts[i]
		if o.single {
			claimable = max(0, 1-i)
		}
		o.lanes[i].word.Store(seq<<transport.TagShift | uint64(claimable))
	}
	return parts
}

// claim takes a part of lane i of collective seq, if there is one left. The
// holder of a claim may read the record until it counts left down.
func (o *operation) claim(i int, seq uint64) (part int, ok bool) {
	word := &o.lanes[i].word
	for {
		w := word.Load()
		if w>>transport.TagShift != seq || w&transport.ValueMask == 0 {
			return 0, false
		}
		if word.CompareAndSwap(w, w-1) {
			return o.Parts[i] - int(w&transport.ValueMask), true
		}
	}
}

// claimable reports whether there is a part left of collective seq.
func (o *operation) claimable(seq uint64) bool {
	for i := range o.lanes {
		if w := o.lanes[i].word.Load(); w>>transport.TagShift == seq && w&transport.ValueMask > 0 {
			return true
		}
	}
	return false
}

// execute executes a claimed part.
func (o *operation) execute(i, part int, r *transport.Reducer) {
	if !o.single {
		o.Run(i, part, r)
		return
	}
	for i := range o.Parts {
		for part := range o.Parts[i] {
			o.Run(i, part, r)
		}
	}
}
