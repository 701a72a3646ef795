package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// attempt is one start of the ranks, until the last of them has ended.
type attempt struct {
	begin    time.Time
	ranks    []*rank
	ended    []*rank          // in the order of their ends
	asked    bool             // all ranks were asked to end, because of what follows
	suspects []*rank          // the first to fail, and those that ended unasked
	user     bool             // a signal came for fsdprun
	grow     bool             // SIGUSR1 came
	killed   <-chan time.Time // when ranks that were asked are killed
}

// attempt starts the ranks and waits for their ends. The error is that of a rank which could not be
// started.
func (l *launcher) attempt(s start) (*attempt, error) {
	a := &attempt{begin: time.Now()}
	exits := make(chan *rank, s.n)
	var failure error
	for i := range s.n {
		r, err := l.launch(s, i)
		if err != nil {
			failure = fmt.Errorf("cannot start rank %d: %w", l.node*s.n+i, err)
			a.asked = true
			a.signal(syscall.SIGKILL)
			break
		}
		a.ranks = append(a.ranks, r)
		go func() {
			awaitExit(r.cmd)
			exits <- r
		}()
	}
	for len(a.ended) < len(a.ranks) {
		select {
		case r := <-exits:
			l.exited(a, r)
		case sig := <-l.signals:
			l.interrupted(a, sig, s.n)
		case <-a.killed:
			l.screen.say("ranks still running after %v are killed", l.grace)
			a.signal(syscall.SIGKILL)
		}
	}
	l.input.detach()
	for _, r := range a.ranks {
		r.release()
	}
	return a, failure
}

// exited takes note of the end of a rank, and ends the others if it failed.
func (l *launcher) exited(a *attempt, r *rank) {
	r.reap(a.begin)
	a.ended = append(a.ended, r)
	if a.asked || !r.end.failed() {
		return
	}
	a.suspects = []*rank{r}
	for _, other := range a.ranks {
		if other.end == nil && hasExited(other.cmd) {
			other.exited = true
			a.suspects = append(a.suspects, other)
		}
	}
	l.screen.say("rank %d: %s; ending the others", r.number, r.end)
	l.ask(a, syscall.SIGTERM)
}

// interrupted handles a signal that came for fsdprun.
func (l *launcher) interrupted(a *attempt, sig os.Signal, n int) {
	s := sig.(syscall.Signal)
	switch {
	case s == growSignal && n == l.max:
		l.screen.say("asked to grow, but there are %d ranks already", n)
	case s == growSignal && a.asked:
		l.screen.say("asked to grow, but the ranks are ending")
	case s == growSignal:
		a.grow = true
		l.screen.say("asked to grow: ending %d ranks to start %d", n, l.max)
		l.ask(a, syscall.SIGTERM)
	case a.user:
		l.screen.say("second signal: killing the ranks")
		a.signal(syscall.SIGKILL)
	default:
		a.user = true
		l.screen.say("passing %s on, again to kill", signalName(s))
		l.ask(a, s)
	}
}

// ask sends a signal to all ranks that run, which they have some time to obey.
func (l *launcher) ask(a *attempt, s syscall.Signal) {
	a.asked = true
	a.signal(s)
	if a.killed == nil {
		a.killed = time.After(l.grace)
	}
}

func (a *attempt) signal(s syscall.Signal) {
	for _, r := range a.ranks {
		r.signal(s)
	}
}
