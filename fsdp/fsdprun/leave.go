package main

import (
	"fmt"
	"syscall"

	"github.com/gofsdp/gofsdp/internal/text"
)

// This file has the events by which hosts come and go.
//
// With -replace, the meeting ends when the ranks have joined. From then on each launcher watches
// its own ranks, and the ranks agree on the next group without launchers. So the loss of a host,
// host 0 included, ends the ranks of no other host:
//
//	          all ranks have joined
//	starting ──────────────────────▶ joined ──▶ all ranks of the host have ended: the launcher ends
//	   │                               │
//	   │ a host is gone, or gets       │ a host is gone, or gets SIGTERM: the ranks of the
//	   │ a signal: a failure           │ other hosts go on, and host 0 no longer counts it
//	   ▼                               │
//	all ranks end                      │ a host comes or returns: its ranks join those that run
//	                                   │
//	                                   │ host 0 is gone: each other launcher goes on alone, and
//	                                   ▼ ends with the status of its own ranks
//
// A rank that fails and is not replaced still ends the ranks of all hosts that host 0 reaches.
// After a host is gone there is no restart, as its ranks may still run: two starts of a job never
// train at the same time.

// continues reports whether the ranks of the other hosts can go on when a host is lost.
func (m *meeting) continues() bool {
	return m.replace > 0 && m.hosts > 1 && m.running && m.joined && m.asked == unasked
}

// settle records that the ranks of a start have joined.
func (m *meeting) settle(joined bool) {
	if !joined || m.joined || m.replace == 0 || m.hosts == 1 {
		return
	}
	m.joined = true
	for host := range m.inOrder {
		m.tell(host, order{Joined: true, Say: "all ranks have joined: from now on they go on without a host that is lost"})
	}
}

func (m *meeting) join(host int, o offer) {
	if ours := m.members[m.self]; ours != nil && (o.Min != ours.Min || o.Restarts != ours.Restarts || o.Replace != ours.Replace || o.Meet != ours.Meet) {
		why := fmt.Sprintf("host %d has -min %d -restarts %d -replace %d, host %d has -min %d -restarts %d -replace %d: "+
			"give them all the same", host, o.Min, o.Restarts, o.Replace, m.self, ours.Min, ours.Restarts, ours.Replace)
		if o.Meet != ours.Meet {
			why = fmt.Sprintf("host %d has -rdzv %s, host %d has -rdzv %s: give them all the same", host, o.Meet, m.self, ours.Meet)
		}
		m.tell(host, order{End: true, Exit: exitUsage, Say: why})
		m.giveUp(host, why)
		return
	}
	delete(m.gaveUp, host)
	m.members[host] = &member{offer: o, ranks: o.Ranks}
	if m.continues() {
		m.readmit(host, o.Ranks)
		return
	}
	m.count, m.failures, m.expected = max(m.count, o.Count), max(m.failures, o.Failures), max(m.expected, o.Others)
	if m.running {
		m.stop(growth, syscall.SIGTERM, -1, fmt.Sprintf("host %d has joined: ending %d ranks to start more", host, m.size))
	}
}

// readmit starts ranks of a host that has come while the ranks of the others go on. They get
// numbers after all others, and join when these call comm.Reconnect.
func (m *meeting) readmit(host, ranks int) {
	h := m.members[host]
	h.busy, h.late = true, true
	first := m.size
	m.size += ranks
	var numbers []int
	for rank := first; rank < m.size; rank++ {
		numbers = append(numbers, rank)
	}
	m.say(fmt.Sprintf("host %d has joined: starting %s, to join when the others call comm.Reconnect", host, text.Numbered("rank", numbers)))
	m.tell(host, order{Start: &start{
		Count: m.count - 1, Job: m.name, First: first, Ranks: ranks, Size: max(m.size, m.hosts), Node: host, Nodes: m.hosts, Late: true,
	}})
	m.tell(host, order{Joined: true})
}

// lose records that a host is gone.
func (m *meeting) lose(host int, why string) {
	busy := m.members[host].busy
	delete(m.members, host)
	text := fmt.Sprintf("host %d has disconnected: %s", host, why)
	if busy && m.continues() {
		m.apart = true
		m.say(text + "; the ranks of the other hosts go on")
		return
	}
	if busy {
		m.gone = append(m.gone, text)
		m.stop(failure, syscall.SIGTERM, host, text+"; ending the others")
		return
	}
	m.say(text)
}

// dismiss releases a host that got a signal. Without its own host there is no meeting.
func (m *meeting) dismiss(host int, list []*ending) {
	exit := 0
	if first := culprit(list); first != nil {
		exit = first.status()
	}
	m.tell(host, order{End: true, Exit: exit})
	delete(m.members, host)
	if host == m.self {
		m.over, m.running = true, false
	}
}

// interrupted handles a signal. A signal to host 0 ends the job, a signal to another host only this
// host's part. If the ranks of the other hosts can go on, or another host can hold the meeting,
// SIGTERM to host 0 ends only its part, too.
func (m *meeting) interrupted(host int, s syscall.Signal) {
	h := m.members[host]
	text := fmt.Sprintf("host %d leaves: %s", host, signalName(s))
	leaves := host > 0 || m.candidates > 1 && s == syscall.SIGTERM
	switch {
	case s == growSignal:
		m.grow(host, h)
	case h.parting && (host > 0 || s == syscall.SIGTERM):
	case h.busy && m.continues() && (host > 0 || s == syscall.SIGTERM):
		h.parting = true
		m.say(text + "; the ranks of the other hosts go on")
	case leaves && h.busy:
		if !h.leaving {
			h.leaving = true
			m.left = append(m.left, text)
			m.stop(failure, syscall.SIGTERM, host, text+"; ending the others")
		}
	case leaves:
		m.say(text)
		m.dismiss(host, nil)
	case m.size == 0:
		m.finish(exitError, signalName(s)+" before the ranks were started")
	case !m.running:
		m.finish(m.status, signalName(s)+": no restart")
	default:
		if m.asked == user {
			s = syscall.SIGKILL
		}
		m.asked = unasked
		m.stop(user, s, 0, "host 0 forwards "+signalName(s)+" on")
	}
}
