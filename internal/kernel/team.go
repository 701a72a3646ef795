package kernel

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/backoff"
)

// A Team is the threads that one rank computes on: the goroutine that calls [Team.Run], and those
// that [Team.Start] adds. The zero value is a team of one, without a goroutine. Whoever has called
// Start calls [Team.Close].
//
// A kernel is split into as many parts as there are threads, see [Context.Share]. Each thread has a
// part of its own, so that it finds in its caches what it has computed before. The goroutine that
// calls Run goes on with the parts that nobody has begun: it waits only for threads that run, never
// for one that is to wake up.
type Team struct {
	main    Context
	others  []*thread
	run     func(c *Context) // in this turn; nil ends the threads
	turn    atomic.Uint32    // how often Run was called
	ended   atomic.Int32     // parts that others have finished in this turn
	failure atomic.Value     // panicked, of another thread
	waiter  backoff.Waiter
	running sync.WaitGroup
}

// thread is a goroutine of a team. The calling goroutine takes its part in its place if it is the
// first to count claimed up to the turn.
type thread struct {
	Context
	claimed atomic.Uint32
	asleep  atomic.Bool
	wake    chan struct{}
	_       [64]byte // the next thread's memory is in another cache line
}

// panicked is what a part panicked with, and where.
type panicked struct {
	value any
	stack []byte
}

// turning is how threads wait for a turn. Kernels follow each other within microseconds, and waking up
// takes tens of them, so a thread sleeps only between passes and the like.
var turning = backoff.Policy{Spins: 2000, Eager: 300 * time.Microsecond, Processes: true}

// ending is how Run waits for threads that have begun their parts. A sleep would last a millisecond.
var ending = backoff.Policy{Spins: 2000, Eager: 10 * time.Millisecond, Processes: true, Fraction: 8, Longest: time.Millisecond}

// Start makes t a team of n threads. It is called once, before Run.
func (t *Team) Start(n int) {
	t.waiter.Policy = &ending
	for i := 1; i < n; i++ {
		h := &thread{wake: make(chan struct{}, 1)}
		h.part, h.parts = i, n
		t.others = append(t.others, h)
		t.running.Go(func() { t.serve(h) })
	}
}

// Size returns the number of threads.
func (t *Team) Size() int { return 1 + len(t.others) }

// Context returns that of the goroutine that calls Run, for kernels that are not split.
func (t *Team) Context() *Context {
	t.main.part, t.main.parts = 0, 0
	return &t.main
}

// Run calls f with a Context for each part, at the same time, and returns when all are done. If one
// panics, it panics, then too when all are done.
func (t *Team) Run(f func(c *Context)) {
	t.main.part, t.main.parts = 0, t.Size()
	if len(t.others) == 0 {
		f(&t.main)
		return
	}
	turn, theirs := t.begin(f), len(t.others)
	defer func() {
		for _, h := range t.others {
			if h.claim(turn) {
				theirs--
			}
		}
		t.await(theirs)
	}()
	f(&t.main)
	for i, h := range t.others {
		if h.claim(turn) {
			theirs--
			t.main.part = i + 1
			f(&t.main)
		}
	}
}

// begin begins a turn, and wakes the threads.
func (t *Team) begin(f func(c *Context)) (turn uint32) {
	t.run = f
	t.ended.Store(0)
	turn = t.turn.Add(1)
	for _, h := range t.others {
		if h.asleep.Load() && h.asleep.CompareAndSwap(true, false) {
			h.wake <- struct{}{}
		}
	}
	return turn
}

// await waits until other threads have finished n parts.
func (t *Team) await(n int) {
	t.waiter.Reset()
	for int(t.ended.Load()) < n {
		t.waiter.Pause(nil, nil)
	}
	if p, _ := t.failure.Load().(panicked); p.value != nil {
		t.failure.Store(panicked{})
		panic(fmt.Sprintf("%v, on another thread:\n%s", p.value, p.stack))
	}
}

// Close ends the threads. The team is one of a single thread then.
func (t *Team) Close() {
	if len(t.others) > 0 {
		t.begin(nil)
		t.running.Wait()
		t.others = nil
	}
}

// claim makes the part of h in a turn the caller's, unless it is taken.
func (h *thread) claim(turn uint32) bool { return h.claimed.CompareAndSwap(turn-1, turn) }

// serve runs the part of h in every turn that it is awake for.
func (t *Team) serve(h *thread) {
	waiter := backoff.Waiter{Policy: &turning}
	for seen := uint32(0); ; {
		switch turn := t.turn.Load(); {
		case turn == seen && waiter.Rest():
		case turn == seen:
			h.asleep.Store(true)
			if t.turn.Load() == seen || !h.asleep.CompareAndSwap(true, false) {
				<-h.wake
			}
		default:
			seen = turn
			waiter.Reset()
			if !h.claim(turn) {
				continue
			}
			if t.run == nil {
				return
			}
			t.part(&h.Context)
		}
	}
}

// part runs a part on another thread.
func (t *Team) part(c *Context) {
	defer func() {
		if p := recover(); p != nil {
			t.failure.Store(panicked{p, debug.Stack()})
		}
		t.ended.Add(1)
	}()
	t.run(c)
}
