package kernel

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/backoff"
)

// A Team is the threads of one rank: the goroutine that calls [Team.Run], and the goroutines that
// [Team.Start] adds. The zero value is a team of one, without goroutines. After Start, call
// [Team.Close].
//
// A kernel is split into one part for each thread, see [Context.Share]. Each thread always has the
// same part, so that its caches hold its earlier results. The goroutine that calls Run takes over
// the parts that no thread has begun: it waits only for running threads, and never for a thread to
// wake up.
type Team struct {
	main    Context
	others  []*thread
	run     func(c *Context) // in this turn; nil ends the threads
	turn    atomic.Uint32    // number of calls of Run
	ended   atomic.Int32     // parts that other threads have finished in this turn
	failure atomic.Value     // panicked, of another thread
	waiter  backoff.Waiter
	running sync.WaitGroup
}

// thread is a goroutine of a team. The calling goroutine computes its part if it is the first to
// raise claimed to the number of the turn.
type thread struct {
	Context
	claimed atomic.Uint32
	asleep  atomic.Bool
	wake    chan struct{}
	_       [64]byte // the next thread's memory is in another cache line
}

// panicked is the value that a part panicked with, and the stack.
type panicked struct {
	value any
	stack []byte
}

// turning is how threads wait for a turn. Kernels follow each other within microseconds, and waking
// up takes tens of microseconds. So a thread sleeps only in longer breaks, such as between passes.
var turning = backoff.Policy{Spins: 2000, Eager: 300 * time.Microsecond, Processes: true}

// ending is how Run waits for threads that have begun their parts. A sleep would take a
// millisecond.
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

// Context returns the Context of the goroutine that calls Run, for kernels that are not split.
func (t *Team) Context() *Context {
	t.main.part, t.main.parts = 0, 0
	return &t.main
}

// Run calls f at the same time with a Context for each part, and returns when all calls have
// returned. If one panics, Run panics after all have returned.
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

// Close ends the threads. The team then has a single thread.
func (t *Team) Close() {
	if len(t.others) > 0 {
		t.begin(nil)
		t.running.Wait()
		t.others = nil
	}
}

// claim takes the part of h in a turn for the caller, unless it is taken.
func (h *thread) claim(turn uint32) bool { return h.claimed.CompareAndSwap(turn-1, turn) }

// serve runs the part of h in every turn for which it is awake.
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
