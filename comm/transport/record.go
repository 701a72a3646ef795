package transport

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofsdp/gofsdp/internal/shm"
)

// Status is the flight record of one rank: its latest collectives in a group.
type Status struct {
	Group     string   // name of the group
	Rank      int      // in the group
	Issued    uint64   // collectives that the rank has issued
	Completed uint64   // number of collectives, from the first, that are complete on the rank
	Recent    []Record // the latest collectives, oldest first
	Err       string   // if the rank did not answer, the reason
}

// Record is one collective of a flight record.
type Record struct {
	Seq   uint64        // its number in the group, from 1
	Call  string        // the call, with the label: all-gather float32[4096] "h.3"
	State string        // "issued", "running" or "complete"
	Age   time.Duration // since it was issued; 0 in a process, where no clock is read
}

// String describes the last collective of the rank in one line: rank 2: 40 of 41
// collectives complete, last all-gather float32[4096] "h.3" #41 running, issued 31.2s
// ago.
func (s Status) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d: ", s.Rank)
	if s.Err != "" {
		b.WriteString(s.Err)
		return b.String()
	}
	fmt.Fprintf(&b, "%d of %d collectives complete", s.Completed, s.Issued)
	if n := len(s.Recent); n > 0 {
		r := s.Recent[n-1]
		fmt.Fprintf(&b, ", last %s #%d %s", r.Call, r.Seq, r.State)
		if r.Age > 0 {
			fmt.Fprintf(&b, ", issued %v ago", r.Age.Round(time.Millisecond))
		}
	}
	return b.String()
}

// Report asks every rank of g, itself included, for its latest collectives in g, and
// returns the answers by rank. It is not a collective: one rank may call it alone, at any
// time until it closes g, even after the group has failed. Ranks that are dead, have left
// or do not answer before ctx ends have Err set. Report returns an error for groups that
// keep no flight record.
func Report(ctx context.Context, g Group) ([]Status, error) {
	if r, ok := g.(Reporter); ok {
		return r.Report(ctx)
	}
	return nil, fmt.Errorf("comm: %T keeps no flight record", g)
}

// Reporter is implemented by groups, and by backends, that record what their ranks are
// doing.
type Reporter interface {
	// Report is the function Report for this group.
	Report(ctx context.Context) ([]Status, error)
}

// records is how many collectives a flight record holds.
const records = 16

// Recorder keeps the flight record of one handle, whose mutex guards it. The zero value
// is ready to use. Its methods do not allocate while they record, and cost little next to
// the fastest operation.
type Recorder struct {
	running atomic.Uint64 // the latest collective that has begun to execute, unless it was small; unguarded
	issued  uint64
	ring    [records]entry // collective seq is at seq % records
}

type entry struct {
	seq  uint64
	call Signature
	at   uint64 // ticks
}

// began is when the process began, as a time and in ticks. A rank that issues a
// collective reads ticks only.
var began, beganTicks = time.Now(), shm.Ticks()

// elapsedSince returns the time since ticks were read.
func elapsedSince(ticks uint64) time.Duration {
	now := shm.Ticks()
	if ticks >= now { // on another processor, which is ahead
		return 0
	}
	return time.Duration(float64(time.Since(began)) * float64(now-ticks) / float64(now-beganTicks))
}

// Issue records that the rank has issued collective seq.
func (r *Recorder) Issue(seq uint64, call *Signature) {
	r.issued = seq
	e := &r.ring[seq%records]
	e.seq, e.call, e.at = seq, *call, shm.Ticks()
}

// Start records that collective seq is being executed. Unlike the other methods it needs no
// lock.
func (r *Recorder) Start(seq uint64) { r.running.Store(seq) }

// Status returns the flight record of the given rank, on which done collectives are
// complete.
func (r *Recorder) Status(group string, rank int, done uint64) Status {
	running := r.running.Load()
	s := Status{Group: group, Rank: rank, Issued: r.issued, Completed: done}
	for _, e := range r.ring {
		if e.seq == 0 {
			continue
		}
		state := "issued"
		switch {
		case e.seq <= done:
			state = "complete"
		case e.seq == running:
			state = "running"
		}
		s.Recent = append(s.Recent, Record{e.seq, e.call.String(), state, elapsedSince(e.at)})
	}
	slices.SortFunc(s.Recent, func(a, b Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return s
}
