package tcp

import (
	"math"
	"slices"
	"time"
)

// Late answers
//
// Most messages of a small broadcast or gather are empty. They say that a rank makes the same call,
// and writing one costs as much as writing the message with the payload. So a rank sends such a
// message, an answer, together with its next message to that rank, and receivers do not wait for
// answers. A root returns from a broadcast, and the others from a gather, when they have sent their
// payload. The stream between two ranks has the same messages in the same order as without late
// answers, and each header is compared with its own call. So calls that differ are still an error,
// but of a later collective if this one was complete on a rank.
//
// An answer is sent, at the latest,
//
//   - when the rank waits for longer than it spins: the rank that it waits for may do the same;
//   - when its collective is lateAnswer collectives ago;
//   - when the rank has issued nothing more for a while, see Confirmer, or closes the group.
//
// A rank waits for an answer that is latestAnswer collectives old, or for all answers if it cannot
// send for a second, see stuck. So a rank is at most latestAnswer collectives ahead of the ranks that
// it exchanges messages with, and in a tree at most log2 N times as many ahead of the others. A
// difference is known at most that many calls later. A rank that closes the group waits for the answers to itself for a
// while, as it does for the collectives that it has issued.
//
// Connections take small payloads whether the other end reads them or not. Larger collectives have
// more than answers: two ranks that both send notice it when they are stuck, and in a chain, whose
// root might be done while another rank sends to it, neighbours exchange headers as in every
// collective. The last rank of a chain answers its root late.
const (
	lateAnswer   = 16
	latestAnswer = 32
	keptFrames   = latestAnswer + 2 // of the current collective, and of late answers
	noSeq        = math.MaxUint64   // later than all collectives
)

// sendIf queues b to a rank that needs it, or an answer to a rank that does not.
func (x *exchange) sendIf(needed bool, to int, round uint16, b []byte) {
	if needed {
		x.send(to, round, len(b), b)
		return
	}
	x.port(to).out.add(piece{of: x.frame, round: round, late: true})
}

// receiveIf queues memory for the data that this rank needs from another, or for the answer if it
// needs none.
func (x *exchange) receiveIf(needed bool, from int, round uint16, b []byte) {
	if needed {
		x.receive(from, round, len(b), b)
		return
	}
	x.port(from).in.add(piece{of: x.frame, round: round, late: true})
}

// answer releases late answers to the ranks that are due one from a collective up to seq. It
// reports whether there are any.
func (x *exchange) answer(seq uint64) (some bool) {
	for _, p := range x.used {
		q := &p.out
		if first := max(q.must, q.next); first < len(q.pieces) && q.pieces[first].of.seq <= seq {
			q.must = len(q.pieces)
			some = true
		}
	}
	return some
}

// expect makes this rank wait for the answers of all collectives up to seq. It reports whether
// there are any.
func (x *exchange) expect(seq uint64) (some bool) {
	for _, p := range x.used {
		q := &p.in
		for q.must < len(q.pieces) && q.pieces[q.must].of.seq <= seq {
			q.must++
			some = true
		}
		if !q.done() {
			p.waits.Store(true)
		}
	}
	return some
}

// stuck is called by a rank that has waited in vain for long. If it cannot send because a peer does
// not read, the peer may be in the same state: both send because they have made different calls,
// and only the headers that they do not wait for show it. stuck makes the rank wait for them, and
// reports whether there are any.
func (x *exchange) stuck() bool {
	full := slices.ContainsFunc(x.used, func(p *port) bool { return !p.out.done() && !p.absent.Load() })
	return full && x.expect(noSeq)
}

// stuckAfter is longer than most ranks do something else, as answers may take owingFor to come.
const stuckAfter = time.Second

// age is called when collective seq begins.
func (x *exchange) age(seq uint64) {
	if seq > lateAnswer {
		x.answer(seq - lateAnswer)
	}
	if seq > latestAnswer {
		x.expect(seq - latestAnswer)
	}
}

// unheard drops the answers to a rank that has left and takes nothing more, and reports whether
// there is nothing else to send.
func (p *port) unheard() bool {
	q := &p.out
	for _, left := range q.pieces[q.next:] {
		if !left.late {
			return false
		}
	}
	clear(q.pieces[q.next:])
	q.pieces, q.must, q.moved = q.pieces[:q.next], min(q.must, q.next), 0
	return true
}
