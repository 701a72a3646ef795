package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/text"
)

// joins lists the ranks of a host that wait to join, and those that ended without joining.
type joins struct {
	Wait   []int // they wait for others
	Left   []int // they ended with status 0 and had not joined
	Joined bool  // one has joined, so that the ranks of all hosts have
}

// joinLook is the interval at which a launcher checks the progress of its ranks.
const joinLook = 200 * time.Millisecond

// watch begins to check the ranks' progress in joining. Without a directory for their files the
// ranks run nevertheless.
func (l *launcher) watch(a *attempt) {
	var err error
	if a.dir, err = os.MkdirTemp("", "fsdprun-joins"); err != nil {
		l.screen.say("cannot detect whether ranks join: %v", err)
		return
	}
	a.look = time.NewTicker(joinLook)
	l.setMembers(a.membersDir())
}

// unwatch ends the checks.
func (l *launcher) unwatch(a *attempt) {
	if a.dir == "" {
		return
	}
	a.look.Stop()
	l.setMembers("")
	if err := os.RemoveAll(a.dir); err != nil {
		l.screen.say("%v", err)
	}
	a.dir = ""
}

// looks returns the channel of the checks, or nil if there are none.
func (a *attempt) looks() <-chan time.Time {
	if a.dir == "" {
		return nil
	}
	return a.look.C
}

// joinsName returns the value of the variable launch.Joins for the next process.
func (a *attempt) joinsName() string {
	if a.dir == "" {
		return ""
	}
	return filepath.Join(a.dir, fmt.Sprint("process-", len(a.ranks)))
}

// lookAt reads the joining progress of this host's ranks, and reports changes to the meeting.
func (l *launcher) lookAt(a *attempt) {
	if a.dir == "" {
		return
	}
	var now joins
	all := true
	for _, r := range a.ranks {
		if r.join != launch.Joined {
			var err error
			if r.join, err = launch.ReadJoin(r.joins); err != nil {
				l.screen.say("cannot detect whether rank %d joins: %v", r.number, err)
				l.unwatch(a)
				return
			}
		}
		all = all && r.join == launch.Joined
		now.Joined = now.Joined || r.join == launch.Joined
		switch {
		case r.end == nil && r.join == launch.JoinWaits:
			now.Wait = append(now.Wait, r.number)
		case r.end != nil && r.end.Early && !r.end.failed() && !r.end.Replaced && r.join != launch.Joined && r.join != launch.JoinUnknown:
			now.Left = append(now.Left, r.number)
		}
	}
	if now.Joined != a.joins.Joined || !slices.Equal(now.Wait, a.joins.Wait) || !slices.Equal(now.Left, a.joins.Left) {
		a.joins = now
		l.seat.tell(report{Joins: &now})
	}
	if all && l.replace == 0 { // else the next process records it, too
		l.unwatch(a)
	}
}

// stopUnjoined ends a start that ranks of some host cannot join, because others ended with status 0
// without joining.
func (m *meeting) stopUnjoined() {
	var now joins
	for _, h := range m.inOrder {
		now.Wait = append(now.Wait, h.joins.Wait...)
		now.Left = append(now.Left, h.joins.Left...)
	}
	if !m.running || m.asked != unasked || len(now.Wait) == 0 || len(now.Left) == 0 {
		return
	}
	m.unjoined = now.Left
	m.say(fmt.Sprintf("%s ended with status 0 without joining, so %s cannot join: "+
		"does every rank call comm.Run or comm.FromEnv?; ending the others",
		text.Numbered("rank", now.Left), text.Numbered("rank", now.Wait)))
	m.stop(failure, syscall.SIGTERM, -1, "")
}

// noneJoined returns a warning if all ranks ended with status 0 and none has tried to join.
func (m *meeting) noneJoined(why reason) string {
	tried := func(e *ending) bool { return e.Join != launch.JoinNever }
	if why != unasked || m.size < 2 || slices.ContainsFunc(m.ended, tried) {
		return ""
	}
	return fmt.Sprintf("no rank joined: the program ran %d times independently; does it call comm.Run or comm.FromEnv?", m.size)
}
