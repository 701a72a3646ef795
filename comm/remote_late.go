package comm

import (
	"context"
	"errors"
	"github.com/gofsdp/gofsdp/comm/transport"
	"math"
	"slices"
	"time"
)

// Late answers
//
// Of the messages of a small broadcast or gather most are empty. They say that a rank makes the
// same call, and to write one of them costs as much as the one with the payload. So whoever has one
// to send, an answer, sends it with what goes to that rank next, and whoever has one to receive
// does not wait for it: a root returns from a broadcast, and the others from a gather, when they
// have sent their payload. The stream between two ranks has the same messages in the same order as
// if nobody were late, and each header is compared with the call that it belongs to. So calls that
// differ are an error all the same, of a later collective where this one was complete on a rank.
//
// An answer is sent, at the latest,
//
//   - when the rank waits for longer than it spins: the one that it waits for may do the same;
//   - when its collective is lateAnswer collectives ago;
//   - when the rank has issued nothing more for a while, see Confirmer, or closes the group.
//
// A rank waits for one that is latestAnswer collectives ago, or for all if it cannot send for a
// second, see stuck. So no rank is further ahead of those that it exchanges messages with, of all
// others in a tree at most log2 N times as far, and a difference is known at most so many calls
// later. A rank that closes the group waits for the answers to itself for a while, as it does for
// what it has issued.
//
// Connections take small payloads whether the other end reads them or not. What is larger has more
// than answers: two that both give see it when they are stuck, and in a chain, whose root might be
// done while somebody sends to it, neighbours exchange headers as in every collective. The last
// rank of a chain answers its root late.
const (
	lateAnswer   = 16
	latestAnswer = 32
	keptFrames   = latestAnswer + 2 // of the collective under way, and of those of late answers
	noSeq        = math.MaxUint64   // later than all collectives
)

// sendIf queues b to a rank that needs it, or an answer to one that does not.
func (x *exchange) sendIf(needed bool, to int, round uint16, b []byte) {
	if needed {
		x.send(to, round, len(b), b)
		return
	}
	x.port(to).out.add(piece{of: x.frame, round: round, late: true})
}

// receiveIf queues where to put what this rank needs of another, or the answer if it needs nothing.
func (x *exchange) receiveIf(needed bool, from int, round uint16, b []byte) {
	if needed {
		x.receive(from, round, len(b), b)
		return
	}
	x.port(from).in.add(piece{of: x.frame, round: round, late: true})
}

// answer lets late answers be sent, to those ranks to which one of a collective up to seq is due.
// It reports whether there are any.
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

// expect makes the answers of all collectives up to seq something to wait for. It reports whether
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

// stuck is for a rank that has long waited in vain. If it cannot send, as a rank does not read, that
// one may be the same: both give, as they have made different calls, and only the headers that they
// do not wait for say so. Now it waits for them, and stuck reports whether there are any.
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

// unheard forgets the answers to a rank that takes nothing more, as it has left, and reports
// whether that is all there is to send.
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

// Owes implements [transport.Confirmer].
func (r *remote) Owes() bool {
	for _, p := range r.used {
		if !p.out.idle() {
			return true
		}
	}
	return false
}

// Answer implements [transport.Confirmer].
func (r *remote) Answer() {
	if r.broken != nil {
		return
	}
	r.answer(noSeq)
	_, err := r.plug()
	if err == nil {
		_, err = r.pump.push(r.arrived)
	}
	if err != nil {
		r.broken = r.broke(err)
	}
}

// Confirm implements [transport.Confirmer].
func (r *remote) Confirm(ctx context.Context) error {
	if r.broken != nil || r.pump == nil {
		return nil
	}
	r.answer(noSeq)
	r.expect(noSeq)
	err := r.settle(ctx)
	var differs *MismatchError
	var blame *RankError
	var lost *lostError
	switch {
	case errors.As(err, &differs), errors.As(err, &blame):
		r.broken = err
		return err
	case errors.As(err, &lost):
		return transport.ErrEnded
	}
	return nil // whoever has not answered comes too late
}
