package comm

import (
	"slices"
	"sync"
	"sync/atomic"
)

// baton is held by one goroutine at a time. A free one costs less to take than a channel.
type baton struct {
	users  atomic.Int32  // who holds it, and those who wait
	handed chan struct{} // has room for one
}

// join reports whether the baton is the caller's at once. If not, it is what comes from handed.
func (b *baton) join() bool { return b.users.Add(1) == 1 }

func (b *baton) take() {
	if !b.join() {
		<-b.handed
	}
}

// pass gives the baton to who has waited longest, or makes it free.
func (b *baton) pass() {
	if b.users.Add(-1) > 0 {
		b.handed <- struct{}{}
	}
}

// parking is where goroutines wait for a change of what some mutex guards, as by a
// [sync.Cond], but each for a number of its own and until it may give up. The mutex
// guards the parking as well.
type parking struct {
	parked []parked
	spare  []chan struct{} // empty
}

// parked is a goroutine that waits for seq.
type parked struct {
	seq uint64
	ch  chan struct{} // has room for one
}

// park waits for a wake that is meant for seq and returns true, or returns false when
// quit is closed. Called with mu held, which it gives up meanwhile.
func (p *parking) park(mu *sync.Mutex, seq uint64, quit <-chan struct{}) (woken bool) {
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

// wake wakes all who wait for a number up to seq.
func (p *parking) wake(seq uint64) {
	p.parked = slices.DeleteFunc(p.parked, func(w parked) bool {
		if w.seq <= seq {
			w.ch <- struct{}{} // has room: it is parked once, and drained before its next use
		}
		return w.seq <= seq
	})
}

// wakeAll wakes everybody.
func (p *parking) wakeAll() { p.wake(^uint64(0)) }
