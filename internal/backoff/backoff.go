// Package backoff waits for events that can only be found by polling: memory that another
// rank writes, bytes of a socket, a library call that does not block. A [Waiter] polls
// often at first and then less and less:
//
//	spin    look again at once. A peer that is a microsecond away is found without
//	        the price of a switch; no other thread gets the processor.
//	yield   let others run between looks: the waiter may wait for one of them.
//	sleep   give the processor back. Waking up takes tens of microseconds. Timers of Go
//	        take a millisecond on Linux, so a shorter sleep is a system call.
//
// A [Policy] sets how long each phase lasts. A caller that has a better way to sleep than
// a timer, such as a channel or a futex, only asks when it is time to sleep.
package backoff

import (
	"runtime"
	"time"

	"github.com/gofsdp/gofsdp/internal/shm"
)

// Policy sets how long a Waiter spins and yields, and how it sleeps. The Waiter spins for
// Spins looks, then yields for Yields more looks or for the time Eager; after that it is
// time to sleep.
type Policy struct {
	Spins     int           // looks; after each the processor pauses, for 10 to 100 ns
	Yields    int           // looks
	Eager     time.Duration // yields on until this has passed since the first of them
	Processes bool          // yields to threads of other processes as well
	Alone     time.Duration // how long it is eager before it does; see eager

	// A sleep lasts a fraction of the time waited so far, 1/Fraction, but no
	// less than Shortest and no more than Longest. So looks get rarer, and an event is
	// found late by no more than that fraction.
	Fraction          int
	Shortest, Longest time.Duration
}

// Eager is how long a rank polls and yields before it sleeps: longer than most waits in training.
// Waking up takes 50 µs, and once all goroutines of a process have slept, the scheduler's monitor
// checks every 20 µs for a millisecond, each time at the cost of two switches.
const Eager = time.Millisecond

const (
	// A spinner lets other goroutines run once in this many looks: its peer may need this
	// very processor.
	spinsPerYield = 256
	// A longer yield shows that others need the processor: sleep.
	longYield = time.Millisecond
	// For this long after such a yield to other processes, a waiter with a time Alone sleeps after
	// Alone.
	cooldown = 100 * time.Millisecond
)

// Waiter is one wait after another by a policy. It is used by one goroutine at a
// time. To begin the next wait, Reset it.
type Waiter struct {
	Policy *Policy

	looks  int
	idle   time.Duration
	asked  time.Time           // for idle; zero until Idle is first called
	cooled time.Time           // until then it sleeps early
	timer  *time.Timer         // nil until the first long sleep
	nap    func(time.Duration) // replaces shm.Nap in tests
}

// longestLook is the longest time between two looks that counts. A waiter looks more
// often than that. If not, it was stopped meanwhile, or the machine suspended.
const longestLook = time.Second

// Reset says that the event, or a part of it, has come.
func (w *Waiter) Reset() { w.looks, w.idle, w.asked = 0, 0, time.Time{} }

// Rest is called after a look in vain. It spins or yields and returns true, for
// another look, or returns false at once if it is time to sleep.
func (w *Waiter) Rest() bool {
	p := w.Policy
	w.looks++
	switch {
	case w.looks <= p.Spins:
		shm.Pause(1)
		if w.looks%spinsPerYield == 0 {
			runtime.Gosched()
		}
	case w.looks <= p.Spins+p.Yields || p.Eager > 0 && w.Idle() < w.eager():
		w.yield()
	default:
		return false
	}
	return true
}

// eager returns how long the waiter yields. If Alone is set, the peer probably runs on
// another processor, and the other threads on this one are unrelated. A waiter that
// yields to a thread that computes is back after milliseconds, but a sleeper would be
// woken at once, and looks use up its share of the processor. So it tries only now and
// then. If two waiters wait for each other on one processor, yields are short.
func (w *Waiter) eager() time.Duration {
	p := w.Policy
	if p.Alone == 0 || w.asked.After(w.cooled) {
		return p.Eager
	}
	return p.Alone
}

// shares reports whether it is time to yield to other processes as well.
func (w *Waiter) shares() bool { return w.Policy.Processes && w.idle >= w.Policy.Alone }

func (w *Waiter) yield() {
	if !w.shares() {
		runtime.Gosched()
		return
	}
	begin := time.Now()
	runtime.Gosched()
	middle := time.Now()
	shm.Yield()
	w.yielded(begin, middle, time.Now())
}

// yielded records how long goroutines of this process, and then other processes, have
// run.
func (w *Waiter) yielded(begin, middle, end time.Time) {
	if end.Sub(begin) > longYield {
		w.looks = max(w.looks, w.Policy.Spins+w.Policy.Yields)
	}
	if end.Sub(middle) > longYield {
		w.cooled = end.Add(cooldown)
	}
}

// Idle returns the time since it was first called after the last Reset, also by Rest and
// Sleep. It is for callers that give up after some time, and call it at least every
// second meanwhile. If more than a second passes between two calls, because this process
// has not run, it counts as a second. So a process that was stopped, perhaps together
// with all ranks, continues to wait.
func (w *Waiter) Idle() time.Duration {
	now := time.Now()
	if w.asked.IsZero() {
		w.idle = 0
	} else {
		w.idle += min(now.Sub(w.asked), longestLook)
	}
	w.asked = now
	return w.idle
}

// Progress is Reset for a waiter that need not become eager again, because it slept until
// the event came.
func (w *Waiter) Progress() { w.idle, w.asked = w.Policy.Eager, time.Now() }

// shortestTimer is the shortest time that timers of Go wait for on Linux: epoll counts
// milliseconds.
const shortestTimer = time.Millisecond

// Sleep sleeps for as long as the policy says, or until one of the channels is closed; nil never
// is. Sleeps shorter than a millisecond go on to their end.
func (w *Waiter) Sleep(quit, halt <-chan struct{}) {
	p := w.Policy
	d := min(max(w.Idle()/time.Duration(p.Fraction), p.Shortest), p.Longest)
	if d < shortestTimer {
		if w.nap != nil {
			w.nap(d)
		} else {
			shm.Nap(d)
		}
		return
	}
	if w.timer == nil {
		w.timer = time.NewTimer(d)
	} else {
		w.timer.Reset(d)
	}
	select {
	case <-w.timer.C:
	case <-quit:
		w.timer.Stop()
	case <-halt:
		w.timer.Stop()
	}
}

// Pause rests or, if it is time to, sleeps.
func (w *Waiter) Pause(quit, halt <-chan struct{}) {
	if !w.Rest() {
		w.Sleep(quit, halt)
	}
}
