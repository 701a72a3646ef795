package main

import (
	"fmt"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// attempt is one start of the ranks of this host, until the last of them has ended.
type attempt struct {
	start
	begin   time.Time
	ranks   []*rank // replaced ones, too
	exits   chan *rank
	running int
	ended   []*ending        // in the order of time
	asked   bool             // all ranks were asked to end
	user    bool             // by a signal to fsdprun
	killed  <-chan time.Time // when ranks that were asked are killed
	spares  int              // how often a rank may still be replaced

	dir   string // where the ranks record their progress in joining; "" when all have joined and none may be replaced, or if it is unknown
	look  *time.Ticker
	joins joins // last reported to the meeting
}

// attempt starts the ranks, waits until they have ended, and returns how they ended.
func (l *launcher) attempt(s start) []ending {
	a := &attempt{start: s, begin: time.Now(), exits: make(chan *rank, s.Ranks+l.replace), spares: l.replace}
	l.watch(a)
	defer l.unwatch(a)
	err := l.placeMembers(a)
	for i := range s.Ranks {
		if err == nil {
			err = l.run(a, i, s.Late)
		}
		if err != nil {
			text := fmt.Sprintf("cannot start rank %d: %v", s.First+i, err)
			a.ended = append(a.ended, &ending{Rank: s.First + i, Code: exitError, Early: true, Vain: s.Late, Tail: []string{text}})
			if s.Late {
				l.screen.say("%s; the others go on without it", text)
			} else {
				l.fail(a, text)
			}
			break
		}
	}
	for a.running > 0 {
		select {
		case r := <-a.exits:
			l.exited(a, r)
		case sig := <-l.signals:
			l.interrupted(a, sig.(syscall.Signal))
		case o := <-l.seat.orders:
			l.obey(a, o)
		case <-a.looks():
			l.lookAt(a)
		case <-a.killed:
			l.screen.say("killing the ranks that still run after %v", l.grace)
			a.signal(syscall.SIGKILL)
		}
	}
	l.input.detach()
	for _, r := range a.ranks {
		r.release()
		l.readTotals(r)
	}
	var ended []ending
	for _, e := range a.ended {
		ended = append(ended, *e)
	}
	return ended
}

// run starts local rank i. If it is late, it joins the ranks that run.
func (l *launcher) run(a *attempt, i int, late bool) error {
	r, err := l.launch(a, i, late)
	if err != nil {
		return err
	}
	a.ranks = append(a.ranks, r)
	a.running++
	go func() {
		awaitExit(r.cmd)
		a.exits <- r
	}()
	return nil
}

// exited records the end of a rank. If it failed, another process replaces it, or else the others
// end.
func (l *launcher) exited(a *attempt, r *rank) {
	r.reap(a.begin, a.asked)
	a.running--
	l.lookAt(a)
	r.end.Join = r.join
	a.ended = append(a.ended, r.end)
	r.end.Vain = r.late && r.join != launch.Joined && r.end.failed()
	switch {
	case a.asked || !r.end.failed() || l.replaced(a, r):
	case r.end.Vain: // the others may be well
		l.screen.say("rank %d: %s; it had not joined, the others go on without it", r.number, r.end)
	default:
		l.fail(a, fmt.Sprintf("rank %d: %s", r.number, r.end))
	}
}

// fail ends all ranks, on the other hosts, too.
func (l *launcher) fail(a *attempt, text string) {
	l.screen.say("%s; ending the others", text)
	l.seat.tell(report{Failed: text})
	l.ask(a, syscall.SIGTERM)
}

// obey executes an order of the meeting.
func (l *launcher) obey(a *attempt, o order) {
	l.print(o)
	switch {
	case o.Stop == syscall.SIGKILL:
		a.signal(o.Stop)
	case o.Stop != 0 && !a.asked:
		l.ask(a, o.Stop)
	}
}

// interrupted handles a signal to fsdprun.
func (l *launcher) interrupted(a *attempt, s syscall.Signal) {
	switch {
	case s == growSignal && l.grown(a):
		return
	case s == growSignal:
	case s == noticeSignal:
		if !a.asked {
			l.screen.say("forwarding %s", signalName(s))
			a.signal(s)
		}
		return
	case s == syscall.SIGHUP && a.user: // the shell and the system each send one when a terminal closes
		return
	case a.user:
		l.screen.say("second signal: killing the ranks")
		a.signal(syscall.SIGKILL)
	case a.asked: // a second one would be more than they take
		a.user = true
		l.screen.say("%s: the ranks are ending already, a second SIGINT or SIGTERM kills", signalName(s))
	default:
		a.user = true
		l.screen.say("forwarding %s, a second SIGINT or SIGTERM kills", signalName(s))
		l.ask(a, s)
	}
	l.seat.tell(report{Signal: s})
}

// ask sends a signal to all running ranks, which have some time to obey it.
func (l *launcher) ask(a *attempt, s syscall.Signal) {
	for _, r := range a.ranks {
		r.exited = r.exited || !a.asked && r.end == nil && hasExited(r.cmd)
	}
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
