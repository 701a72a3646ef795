package main

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"

	"github.com/gofsdp/gofsdp/internal/launch"
)

// culprit returns the rank to blame among the ended ones, which are in order of time, or nil if
// none failed. A process closes its connections before its end is visible, so its peers may be seen
// to end first, and it may be asked to end like them. The order of the ends alone proves little.
// This counts, the strongest evidence first:
//
//  1. a rank that another process killed, before any was asked to end;
//  2. a rank that failed then by itself: its error is not about another rank;
//  3. the rank that the error of the first one names, if it has failed, too;
//  4. a rank that another process killed, at any time;
//  5. the first one.
//
// A process that failed before it could take the place of a lost one is not to blame if other ranks
// have completed the job.
func culprit(ended []*ending) *ending {
	if slices.ContainsFunc(ended, (*ending).completed) {
		ended = slices.DeleteFunc(slices.Clone(ended), func(e *ending) bool { return e.Vain })
	}
	failed := func(early bool, is func(*ending) bool) *ending {
		if i := slices.IndexFunc(ended, func(e *ending) bool { return e.failed() && (e.Early || !early) && is(e) }); i >= 0 {
			return ended[i]
		}
		return nil
	}
	anyhow := func(*ending) bool { return true }
	first := failed(true, anyhow)
	if first == nil { // all were asked to end
		return failed(false, anyhow)
	}
	named, _ := first.blames()
	for _, e := range []*ending{
		failed(true, (*ending).lost),
		failed(true, func(e *ending) bool { _, peer := e.blames(); return !peer }),
		failed(false, func(e *ending) bool { return e.Rank == named && !e.Asked }),
		failed(false, (*ending).lost),
	} {
		if e != nil {
			return e
		}
	}
	return first
}

// completed reports whether a rank has joined and ended well.
func (e *ending) completed() bool {
	return e.Join == launch.Joined && e.Code == 0 && e.Signal == 0 && !e.Replaced
}

// lost counts the ranks that another process killed before any was asked to end.
func lost(ended []*ending, culprit *ending) (n int) {
	for _, e := range ended {
		if e.lost() && (e == culprit || e.Early) {
			n++
		}
	}
	return n
}

// peerError matches the names of a rank and its group in a comm.RankError, and the rank in a
// monitor's error about files that cannot be written.
var peerError = regexp.MustCompile(`rank (\d+) of group "([^"]*)"|a writer of rank (\d+) has failed`)

// blames reports whether the end of the rank's standard error is about another rank: the last error
// of a group there names one. named is the world number of that rank, which is known only for the
// world, or -1.
func (e *ending) blames() (named int, peer bool) {
	for _, line := range slices.Backward(e.Tail) {
		all := peerError.FindAllStringSubmatch(line, -1)
		if len(all) == 0 {
			continue
		}
		if last := all[len(all)-1]; last[2] == "world" || last[3] != "" {
			named, err := strconv.Atoi(cmp.Or(last[1], last[3]))
			return named, err == nil && named != e.Rank
		}
		return -1, true
	}
	return -1, false
}
