package park

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Baton is held by one goroutine at a time. A free one costs less to take than a channel.
type Baton struct {
	users  atomic.Int32  // the holder and the goroutines that wait
	Handed chan struct{} // has room for one
}

// Join reports whether the caller has the baton at once. If not, it gets the baton by a receive
// from Handed.
func (b *Baton) Join() bool { return b.users.Add(1) == 1 }

// Take returns when the caller has the baton.
func (b *Baton) Take() {
	if !b.Join() {
		<-b.Handed
	}
}

// Pass gives the baton to the goroutine that has waited longest, or makes it free.
func (b *Baton) Pass() {
	if b.users.Add(-1) > 0 {
		b.Handed <- struct{}{}
	}
}

// Parking is where goroutines wait for a change of state that a mutex guards. Unlike in a
// [sync.Cond], each waits for its own number and until it may give up. The mutex guards the parking
// as well.
type Parking struct {
	parked []parked
	spare  []chan struct{} // empty
}

// parked is a goroutine that waits for seq.
type parked struct {
	seq uint64
	ch  chan struct{} // has room for one
}

// Park waits for a wake that is meant for seq and returns true, or returns false when
// quit is closed. Called with mu held, which it gives up meanwhile.
func (p *Parking) Park(mu *sync.Mutex, seq uint64, quit <-chan struct{}) (woken bool) {
	var ch chan struct{}
	if k := len(p.spare); k > 0 {
		ch, p.spare = p.spare[k-1], p.spare[:k-1]
	} else {
		ch = make(chan struct{}, 1)
	}
	p.parked = append(p.parked, parked{seq, ch})
	mu.Unlock()
	select {
	case <-ch:
		mu.Lock()
		woken = true
	case <-quit:
		mu.Lock()
		if i := slices.Index(p.parked, parked{seq, ch}); i >= 0 {
			p.parked = slices.Delete(p.parked, i, i+1)
		} else {
			<-ch // woken as well
		}
	}
	p.spare = append(p.spare, ch)
	return woken
}

// Waiting reports whether some goroutine is parked.
func (p *Parking) Waiting() bool { return len(p.parked) > 0 }

// Wake wakes all goroutines that wait for a number up to seq.
func (p *Parking) Wake(seq uint64) {
	p.parked = slices.DeleteFunc(p.parked, func(w parked) bool {
		if w.seq <= seq {
			w.ch <- struct{}{} // has room: it is parked once, and drained before its next use
		}
		return w.seq <= seq
	})
}

// WakeAll wakes all goroutines.
func (p *Parking) WakeAll() { p.Wake(^uint64(0)) }
