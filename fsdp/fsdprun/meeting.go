package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/internal/text"
)

// The meeting decides which ranks of a job start when. Host 0 holds it, in its fsdprun, or one of
// the candidates if -rdzv has several addresses: see candidate.go. A job on one host is a meeting
// with one member.
//
//	host h                                     holder
//	  | -- join: how many ranks I can run ------->  |
//	  | <- start: which ranks, of how many -------  |  to all hosts, once they suffice
//	  |      its ranks run                          |
//	  | -- failed: rank 3 exited with 1 --------->  |  it ends its other ranks at once
//	  | <- stop: SIGTERM -------------------------  |  to the other hosts
//	  | -- ended: how each rank has ended ------->  |  when the last one has
//	  | <- start again, or end: the exit status --  |
//
// Invariants:
//
//   - One start at a time. No host gets an order to start before every present host has reported
//     the end of its ranks of the start before. A host that is gone ends its ranks by itself.
//   - Every start has a number, larger than the numbers before, and a unique name, which ranks
//     exchange when they join. So ranks of two starts never join each other, even if the holder was
//     replaced, or if a host was cut off and still runs ranks of an earlier start.
//   - Ranks are numbered in the order of the numbers of the present hosts, from the holder on.
//   - A start has at least min ranks, and the majority of the candidates. Without them nothing is
//     started.
//   - There are at most restarts starts after failures.
//   - The meeting does not wait forever: it waits for a rest or the last call if there are enough
//     ranks, and for patience if not. Hosts kill ranks that were asked to end after some time.
//
// meeting only decides: it receives events with their times, and leaves orders in out.
type meeting struct {
	self            int // the host that holds it
	hosts, restarts int
	candidates      int           // hosts 0, 1, … that can hold the meeting
	compare         bool          // compares ranks when a start has ended
	replace         int           // ranks of each host that are replaced alone
	min             int           // least number of ranks; 0 for all ranks of all hosts
	patience        time.Duration // how long to wait for absent hosts
	job             string        // begins the names of starts

	now      time.Time       // of the last event
	members  map[int]*member // hosts that are present
	count    int             // the number of the next start
	name     string          // of the last start
	expected int             // hosts of the last start of another meeting, without its holder; 0 if there was none
	size     int             // ranks of the last start; 0 before the first
	since    time.Time       // when the ranks were started, or when the last ones had ended
	until    time.Time       // no start before this time
	running  bool            // a start was ordered, and its ranks have not all ended
	joined   bool            // and have joined each other
	apart    bool            // ranks of a host that is gone may still run
	asked    reason          // why the ranks were asked to end
	gone     []string        // hosts that went during the start, and how
	left     []string        // hosts that were asked to leave
	gaveUp   map[int]string  // reasons of absent hosts that have given one
	ended    []*ending       // of the last start, in order of time
	unjoined []int           // ranks that ended well without joining, while others waited for them
	failures int
	rest     time.Duration // after the last failure
	status   int           // of the last failure
	over     bool

	out []message
}

// member is a host.
type member struct {
	offer
	ranks   int  // number to run
	busy    bool // its ranks run
	leaving bool // and these ranks are its last ones
	parting bool // and the ranks of the other hosts go on
	late    bool // its ranks join the ranks of the other hosts; the host ends with its ranks while the others go on
	joins   joins
	ended   []*ending
}

// reason is why running ranks were asked to end.
type reason uint8

const (
	unasked reason = iota
	failure        // of a rank or a host
	growth         // there will be more ranks
	user           // a signal came for host 0
)

// message is an order for a host.
type message struct {
	to int
	order
}

// order is an order of the meeting to a host. Fields that are not set mean nothing.
type order struct {
	Say    string         // text to print
	Start  *start         // ranks to start
	Joined bool           // the ranks of all hosts have joined: ranks of this host can go on without the others
	Stop   syscall.Signal // signal for the running ranks
	End    bool           // ends fsdprun, with
	Exit   int            // this status
}

// report is a report of a host to the meeting: one of these.
type report struct {
	Join   *offer         // before anything else
	Failed string         // the first rank that failed
	Joins  *joins         // the ranks that keep a start from joining, when they change
	Ended  []ending       // all ranks of a start, in order of time
	Signal syscall.Signal // a signal to its fsdprun
	Gone   string         // why no further reports come
	GaveUp string         // why this host does not join
}

// offer is the contribution of a host that joins.
type offer struct {
	Ranks         int // number that it can run
	Most          int // number that it can run after SIGUSR1
	Min, Restarts int // the flags
	Replace       int
	Meet          string
	Count         int // number of the next start, as far as the host knows
	Failures      int // until now, as far as the host knows
	Others        int // hosts of the last start without its holder, if the holder is gone
}

// lastCall is how long the first start waits for absent hosts once there are enough ranks.
const lastCall = 30 * time.Second

// hear records a report.
func (m *meeting) hear(now time.Time, host int, r report) {
	m.now = now
	here := m.members[host] != nil
	switch {
	case m.over && r.Join != nil: // too late
		m.tell(host, order{End: true, Exit: m.status})
	case m.over:
	case r.Join != nil:
		m.join(host, *r.Join)
	case r.GaveUp != "":
		m.giveUp(host, fmt.Sprintf("host %d has given up: %s", host, r.GaveUp))
	case !here: // it was told to end
	case r.Gone != "":
		m.lose(host, r.Gone)
	case r.Signal != 0:
		m.interrupted(host, r.Signal)
	case r.Failed != "":
		m.stop(failure, syscall.SIGTERM, host, r.Failed+"; ending the others")
	case r.Joins != nil:
		m.members[host].joins = *r.Joins
		m.settle(r.Joins.Joined)
		m.stopUnjoined()
	case r.Ended != nil:
		m.end(host, r.Ended)
	}
	m.advance()
}

// tick handles the time that wake has returned.
func (m *meeting) tick(now time.Time) {
	m.now = now
	m.advance()
}

// wake returns when to call tick, or zero for never.
func (m *meeting) wake() time.Time {
	if m.over || m.running {
		return time.Time{}
	}
	if _, total := m.plan(); total > 0 {
		return m.until
	}
	return m.since.Add(m.patience)
}

// end records that the ranks of a host have ended.
func (m *meeting) end(host int, list []ending) {
	h := m.members[host]
	h.busy = false
	for i := range list {
		h.ended = append(h.ended, &list[i])
	}
	if h.parting || h.late && m.asked == unasked {
		m.dismiss(host, h.ended)
		return
	}
	m.ended = append(m.ended, h.ended...)
	slices.SortStableFunc(m.ended, func(a, b *ending) int { return cmp.Compare(a.After, b.After) })
	if h.leaving && host != m.self {
		m.dismiss(host, h.ended)
	}
}

// grow gives a host all the ranks that it may have.
func (m *meeting) grow(host int, h *member) {
	switch {
	case m.apart:
		m.tell(host, order{Say: "asked to grow, but ranks of a host that has disconnected may still run"})
	case h.ranks == h.Most:
		m.tell(host, order{Say: fmt.Sprintf("asked to grow, but %d ranks are already running", h.ranks)})
	case m.asked != unasked:
		m.tell(host, order{Say: "asked to grow, but the ranks are ending"})
	case m.continues():
		m.tell(host, order{Say: "asked to grow, but no rank of this host has joined the others, which go on"})
	case m.running:
		more := m.size - h.ranks + h.Most
		h.ranks = h.Most
		m.stop(growth, syscall.SIGTERM, -1, fmt.Sprintf("asked to grow: ending %d ranks to start %d", m.size, more))
	case m.size > 0:
		h.ranks = h.Most
		m.until = m.now
		_, total := m.plan()
		m.say(fmt.Sprintf("asked to grow: starting again with %d ranks", total))
	}
}

// stop asks all ranks to end, also on the host that caused it: it may have reported before it got
// the order to start them. This host does not get the reason.
func (m *meeting) stop(why reason, s syscall.Signal, by int, text string) {
	if !m.running || m.asked != unasked {
		return
	}
	m.asked = why
	for host, h := range m.inOrder {
		o := order{Stop: s, Say: text}
		if host == by {
			o.Say = ""
		}
		if h.busy {
			m.tell(host, o)
		}
	}
}

// advance takes the steps that are due.
func (m *meeting) advance() {
	if m.running && !m.busy() {
		m.conclude()
	}
	if !m.running && !m.over {
		m.gather()
	}
}

func (m *meeting) busy() bool {
	for _, h := range m.members {
		if h.busy {
			return true
		}
	}
	return false
}

// conclude decides whether there is another start.
func (m *meeting) conclude() {
	why, lasted := m.asked, m.now.Sub(m.since)
	m.running, m.asked, m.since = false, unasked, m.now
	for _, e := range m.ended {
		e.Absent = slices.Contains(m.unjoined, e.Rank)
	}
	first := m.first()
	if m.compare {
		m.say(stragglers(m.ended))
	}
	switch {
	case why == growth:
		m.until = m.now
		if _, total := m.plan(); total > 0 {
			m.say(fmt.Sprintf("starting again with %d ranks", total))
		}
	case first == nil && len(m.gone)+len(m.left) == 0:
		m.finish(0, m.noneJoined(why))
	default:
		m.fail(first, lasted, why)
	}
}

// first returns the rank to blame for the end of a start, or nil if no rank is to blame: if a host
// is gone, the ends that follow from it prove nothing.
func (m *meeting) first() *ending {
	first := culprit(m.ended)
	if first == nil || len(m.gone)+len(m.left) == 0 {
		return first
	}
	if _, peer := first.blames(); peer || !first.Early {
		return nil
	}
	return first
}

// fail decides how the job continues after a failure.
func (m *meeting) fail(first *ending, lasted time.Duration, why reason) {
	m.say(summary(first, m.ended, append(m.gone, m.left...)))
	switch m.status = 0; {
	case first != nil:
		m.status = first.status()
	case len(m.gone) > 0:
		m.status = exitError
	}
	if why == user || m.failures == m.restarts {
		m.finish(m.status, "")
		return
	}
	if m.apart {
		m.finish(m.status, "not restarting: ranks of a host that has disconnected may still run")
		return
	}
	if r := hopeless(m.ended); r != nil && first != nil && !first.lost() {
		m.finish(m.status, fmt.Sprintf("not restarting: rank %d reports that %s", r.Rank, launch.NoRestart))
		return
	}
	if h := m.members[m.self]; h.leaving {
		m.dismiss(m.self, h.ended)
		return
	}
	m.failures++
	for _, h := range m.inOrder {
		h.ranks = max(1, h.ranks-lost(h.ended, first))
	}
	m.rest = restAfter(m.rest, lasted)
	m.until = m.now.Add(m.rest)
	with := "with more hosts: waiting for " + m.absent()
	if _, total := m.plan(); total > 0 {
		with = fmt.Sprintf("with %d ranks", total)
	}
	m.say(fmt.Sprintf("restart %d of %d in %v, %s", m.failures, m.restarts, m.rest, with))
}

// Restarts become rarer while ranks fail at once, so that an outage of the network or the disk does
// not use all of them up.
const (
	shortestRest = time.Second
	longestRest  = time.Minute
)

// restAfter returns how long to wait before a restart: twice the last wait, or the shortest wait if
// the ranks have lasted.
func restAfter(rest, lasted time.Duration) time.Duration {
	if lasted >= longestRest {
		rest = 0
	}
	return min(max(2*rest, shortestRest), longestRest)
}

// plan returns the number of ranks that each host would start now, and the total: none if there are
// too few. Lost ranks are started again if there would be too few without them.
func (m *meeting) plan() (ranks map[int]int, total int) {
	all, most, ranks := 0, 0, make(map[int]int)
	for host, h := range m.members {
		ranks[host] = h.ranks
		total += h.ranks
		all += h.Ranks
		most += h.Most
	}
	need := m.min
	if need == 0 {
		need = all
	}
	if most < need || m.min == 0 && len(m.members) < m.hosts || !m.majority() {
		return nil, 0
	}
	for host, h := range m.inOrder {
		more := max(0, min(need-total, h.Most-h.ranks))
		ranks[host] += more
		total += more
	}
	return ranks, total
}

// gather starts ranks when it is time.
func (m *meeting) gather() {
	ranks, total := m.plan()
	all := len(m.members) == m.hosts
	switch {
	case total == 0 && all:
		m.finish(exitError, fmt.Sprintf("-min %d is more than the ranks of all %d hosts", m.min, m.hosts))
		return
	case total == 0 && m.now.Before(m.since.Add(m.patience)):
		return
	case total == 0:
		what := "too few ranks (-min)"
		if !m.majority() {
			what = fmt.Sprintf("no majority of the %d hosts in -rdzv", m.candidates)
		}
		m.finish(exitError, fmt.Sprintf("%s: within %v there was no %s%s", what, m.patience, m.absent(), m.silence()))
		return
	}
	if m.until.IsZero() {
		m.until = m.now.Add(lastCall)
	}
	if m.now.Before(m.until) && !(m.size == 0 && len(m.members) >= cmp.Or(m.expected, m.hosts)) {
		return
	}
	m.start(ranks, total)
}

func (m *meeting) start(ranks map[int]int, total int) {
	m.running, m.joined, m.size, m.since = true, false, total, m.now
	m.ended, m.gone, m.left, m.unjoined = nil, nil, nil, nil
	m.name = m.job
	if m.count > 0 {
		m.name = fmt.Sprintf("%s.%d", m.job, m.count)
	}
	first, node := 0, 0
	for host, h := range m.inOrder {
		h.busy, h.late, h.ranks, h.ended, h.joins = true, false, ranks[host], nil, joins{}
		o := order{Start: &start{
			Count: m.count, Failures: m.failures, Job: m.name, First: first, Ranks: h.ranks, Size: total, Node: node, Nodes: len(ranks),
		}}
		if m.hosts > 1 {
			o.Say = fmt.Sprintf("start %d: %d ranks on %s", m.count, total, text.Numbered("host", slices.Sorted(maps.Keys(ranks))))
		}
		m.tell(host, o)
		first += h.ranks
		node++
	}
	m.count++
}

// finish ends the job on all hosts.
func (m *meeting) finish(status int, text string) {
	m.over, m.status = true, status
	for host := range m.inOrder {
		m.tell(host, order{End: true, Exit: status, Say: text})
	}
}

func (m *meeting) tell(host int, o order) { m.out = append(m.out, message{host, o}) }

func (m *meeting) say(text string) {
	for host := range m.inOrder {
		m.tell(host, order{Say: strings.TrimSuffix(text, "\n")})
	}
}

// majority reports whether more than half of the candidates are here, or half of them and host 0.
func (m *meeting) majority() bool {
	n := 0
	for host := range m.members {
		if host < m.candidates {
			n++
		}
	}
	return m.candidates <= 1 || 2*n > m.candidates || 2*n == m.candidates && m.members[0] != nil
}

// inOrder iterates over the hosts that are here, from the host that holds the meeting on.
func (m *meeting) inOrder(yield func(int, *member) bool) {
	place := func(host int) int { return (host - m.self + m.hosts) % m.hosts }
	for _, host := range slices.SortedFunc(maps.Keys(m.members), func(a, b int) int { return place(a) - place(b) }) {
		if h := m.members[host]; h != nil && !yield(host, h) {
			return
		}
	}
}
