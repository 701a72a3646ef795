package main

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
)

// culprit returns the rank to blame of those that have ended, in order of time, nil if none failed.
// A process closes its connections before it can be seen to have ended, so its peers may be seen
// first, and it may be asked to end like them. The order of the ends alone proves little; in this
// order of weight count:
//
//  1. a rank that somebody else killed, before any was asked to end;
//  2. one that failed then, by itself: its error is not about another rank;
//  3. the rank that the error of the first one names, if it has failed, too;
//  4. a rank that somebody else killed, at any time;
//  5. the first one.
func culprit(ended []*ending) *ending {
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

// lost counts the ranks that somebody else killed before any was asked to end.
func lost(ended []*ending, culprit *ending) (n int) {
	for _, e := range ended {
		if e.lost() && (e == culprit || e.Early) {
			n++
		}
	}
	return n
}

// peerError matches how a comm.RankError names a rank and its group, and how a monitor names the rank whose
// files cannot be written.
var peerError = regexp.MustCompile(`rank (\d+) of group "([^"]*)"|a writer of rank (\d+) has failed`)

// blames tells whether the end of the rank's standard error is about another rank: the last error
// of a group there names one. Which one that is, the number in the world, is known for the world
// only, else it is -1.
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
