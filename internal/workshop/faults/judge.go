package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
)

// judge compares the end of the program on this rank with the expectation of the case.
func (r *rank) judge(err error) {
	if flaw := r.flaw(err); flaw != "" {
		r.complain("%s: %v", flaw, err)
	}
}

// flaw returns the reason why err is a wrong end of the program, or "".
func (r *rank) flaw(err error) string {
	what := r.c.Incident.What
	culprit := r.id == r.c.culprit()
	var blame *comm.RankError
	var mismatch *comm.MismatchError
	switch {
	case what == commtest.Delay || what == "":
		if err != nil {
			return "nothing was wrong"
		}
		return ""
	case err == nil && r.group == nil:
		return "" // spared
	case err == nil && r.c.Steps > 0 && (what == commtest.WrongOrder || r.c.Incident.When == commtest.Waiting):
		return "" // there was no other call to swap with, or nothing to wait for
	case err == nil:
		return "the incident was not noticed"
	case what == commtest.Drop && culprit:
		return ""
	case what == commtest.Stop && culprit: // it continued after the others had given it up
		if !errors.As(err, &blame) {
			return "no rank is blamed"
		}
		return ""
	case what.Mismatch():
		return r.flawedMismatch(err, mismatch)
	case !errors.As(err, &blame):
		return "no rank is blamed"
	}
	return r.flawedBlame(err, blame)
}

func (r *rank) flawedMismatch(err error, m *comm.MismatchError) string {
	switch {
	case !errors.As(err, &m):
		return "no mismatch"
	case m.Ranks[0] >= m.Ranks[1] || m.Ranks[0] != r.c.Incident.Rank && m.Ranks[1] != r.c.Incident.Rank:
		return fmt.Sprintf("should be about rank %d", r.c.Incident.Rank)
	case m.Calls[0] == m.Calls[1]:
		return "equal calls"
	case m.Seq != r.c.Incident.At.Seq && r.c.Steps == 0:
		// The barrier before the program is #1.
		if m.Seq != r.c.Incident.At.Seq+r.offset() {
			return fmt.Sprintf("should be about collective #%d", r.c.Incident.At.Seq+r.offset())
		}
	}
	return ""
}

// offset is the number of collectives of the group before the program.
func (r *rank) offset() uint64 {
	n := uint64(1) // the barrier of join
	if !r.c.Sub && r.c.Transport != "local" {
		n++ // the barrier of Connect
	}
	return n
}

// sentinels are the errors that the error of an incident wraps.
var sentinels = map[commtest.What]error{
	commtest.Kill: comm.ErrLost, commtest.Cut: comm.ErrLost, commtest.Stop: comm.ErrTimeout, commtest.Drop: comm.ErrTimeout,
	commtest.Close: comm.ErrClosed, commtest.Cancel: context.Canceled, commtest.Invalid: comm.ErrInvalid,
}

func (r *rank) flawedBlame(err error, blame *comm.RankError) string {
	what := r.c.Incident.What
	if what == commtest.Drop && r.c.Transport == "local" { // the waiting rank gives up
		if !errors.Is(err, context.DeadlineExceeded) {
			return "should be the deadline"
		}
		return ""
	}
	if want := sentinels[what]; want != nil && !errors.Is(err, want) {
		return fmt.Sprintf("should wrap %q", want)
	}
	if what == commtest.Abort && !strings.Contains(err.Error(), commtest.ErrInjected.Error()) {
		return "should give the reason of the abort"
	}
	if what == commtest.Cut || what == commtest.Garble {
		return "" // both ends of a broken connection blame each other
	}
	want := r.c.Incident.Rank
	if blame.Group == "world" {
		want = r.c.culprit()
	}
	if blame.Rank != want {
		return fmt.Sprintf("should blame rank %d", want)
	}
	return ""
}
