package main

import (
	"regexp"
	"slices"
	"strconv"
)

// culprit returns the rank to blame, nil if none failed. A process closes its connections before
// it can be seen to have ended, so its peers may be seen first, and it may be asked to end like
// them. The order of the ends alone proves little; in this order of weight count:
//
//  1. a rank that somebody else killed, before any was asked to end;
//  2. one that failed then, by itself: its error is not about another rank;
//  3. the rank that the error of the first one names, if it has failed, too;
//  4. a rank that somebody else killed, at any time;
//  5. the first one.
func (a *attempt) culprit() *rank {
	failed := func(list []*rank, is func(*rank) bool) *rank {
		if i := slices.IndexFunc(list, func(r *rank) bool { return r.end.failed() && is(r) }); i >= 0 {
			return list[i]
		}
		return nil
	}
	anyhow := func(*rank) bool { return true }
	first := failed(a.suspects, anyhow)
	if first == nil { // all were asked to end
		return failed(a.ended, anyhow)
	}
	named, _ := first.blames()
	for _, r := range []*rank{
		failed(a.suspects, (*rank).lost),
		failed(a.suspects, func(r *rank) bool { _, peer := r.blames(); return !peer }),
		failed(a.ended, func(r *rank) bool { return r.number == named && !r.end.asked }),
		failed(a.ended, (*rank).lost),
	} {
		if r != nil {
			return r
		}
	}
	return first
}

// lost counts the ranks that somebody else killed before any was asked to end.
func (a *attempt) lost() (n int) {
	culprit := a.culprit()
	for _, r := range a.ended {
		if r.lost() && (r == culprit || slices.Contains(a.suspects, r)) {
			n++
		}
	}
	return n
}

// failure matches how a comm.RankError names a rank and its group.
var failure = regexp.MustCompile(`rank (\d+) of group "([^"]*)"`)

// blames tells whether the end of the rank's standard error is about another rank: the last error
// of a group there names one. Which one that is, the number in the world, is known for the world
// only, else it is -1.
func (r *rank) blames() (named int, peer bool) {
	for _, line := range slices.Backward(r.tail.last()) {
		all := failure.FindAllStringSubmatch(line, -1)
		if len(all) == 0 {
			continue
		}
		if last := all[len(all)-1]; last[2] == "world" {
			named, err := strconv.Atoi(last[1])
			return named, err == nil && named != r.number
		}
		return -1, true
	}
	return -1, false
}
