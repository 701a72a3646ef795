package main

import "runtime"

// thread runs functions on one thread of the operating system, which exists until it is closed.
// Ranks are started from it. Linux kills them when the thread that started them ends
// (PR_SET_PDEATHSIG), not the process. They also inherit its cores.
type thread struct {
	calls chan func()
	done  chan struct{}
}

func newThread() *thread {
	t := &thread{make(chan func()), make(chan struct{})}
	go func() {
		defer close(t.done)
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine, no other goroutine gets its cores
		for f := range t.calls {
			f()
		}
	}()
	return t
}

func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.calls <- func() { defer close(done); f() }
	<-done
}

func (t *thread) close() {
	close(t.calls)
	<-t.done
}
