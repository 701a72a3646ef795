package quorum

import (
	"slices"
	"strings"
)

// Member is a process of a job.
type Member struct {
	ID      string // of the process: random
	Address string // at which it answers
	Rank    int    // in its configuration: orders processes that join
}

// Ballot numbers the attempts of all proposers.
type Ballot struct{ Round, Proposer int }

func (b Ballot) less(o Ballot) bool {
	return b.Round < o.Round || b.Round == o.Round && b.Proposer < o.Proposer
}

// Membership is the ranks of a group.
type Membership struct {
	Number  int
	Ballot  Ballot   // in which it was proposed; two proposals of one membership differ in it only
	Witness Member   // that votes in the decision on the next one; the zero value if there is none
	Members []Member // in the order of ranks
}

// Index returns the rank of a process, or -1.
func (m *Membership) Index(id string) int {
	return slices.IndexFunc(m.Members, func(o Member) bool { return o.ID == id })
}

// next returns the membership after m: the members that remain, in order, and processes that join.
// These take the places of the others first, and then the places behind all.
func (m *Membership) next(remains func(i int) bool, joining []Member) *Membership {
	slices.SortFunc(joining, func(a, b Member) int {
		if a.Rank != b.Rank {
			return a.Rank - b.Rank
		}
		return strings.Compare(a.ID, b.ID)
	})
	next := &Membership{Number: m.Number + 1, Witness: m.Witness}
	for i, member := range m.Members {
		switch {
		case remains(i):
			next.Members = append(next.Members, member)
		case len(joining) > 0:
			next.Members, joining = append(next.Members, joining[0]), joining[1:]
		}
	}
	next.Members = append(next.Members, joining...)
	return next
}

// suffices reports whether a set of members can decide, with the witness or without it. dead says
// which members are certainly dead.
func (m *Membership) suffices(in, dead func(i int) bool, witness bool) bool {
	n, others := 0, true
	for i := range m.Members {
		if in(i) {
			n++
		} else if !dead(i) {
			others = false
		}
	}
	if m.Witness == (Member{}) {
		witness = in(0)
	}
	return n > 0 && others || 2*n > len(m.Members) || 2*n == len(m.Members) && witness
}

// acceptor is the state of a process that takes part in the decision on one membership.
type acceptor struct {
	promised Ballot
	accepted *Membership // or nil
}

// prepare promises to accept nothing in a lower ballot.
func (a *acceptor) prepare(b Ballot) bool {
	if !a.promised.less(b) {
		return false
	}
	a.promised = b
	return true
}

// accept accepts a value.
func (a *acceptor) accept(v *Membership) bool {
	if v.Ballot.less(a.promised) {
		return false
	}
	a.promised, a.accepted = v.Ballot, v
	return true
}

// answer answers prepare and accept.
func (a *acceptor) answer(q *request) (r reply) {
	if r.Done = true; q.What == askPrepare {
		r.OK, r.Value = a.prepare(q.Ballot), a.accepted
	} else {
		r.OK = a.accept(q.Value)
	}
	r.Ballot = a.promised
	return r
}
