package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// # Calls are compared one by one
//
// Before each collective the ranks exchange a record over the host group, and the collective is
// complete before the next one is compared. So a mismatch is an error that names both sides on
// every rank before anything is launched, and no rank launches a collective that another one does
// not. Comparing later, or a hash of several calls at once, was considered and rejected:
//
//   - A record also decides the launch: if one rank has a host buffer, all use pieces.
//   - NCCL checks nothing. Different kinds wait for each other until the timeout, which names
//     no rank. With different counts a rank may write past the end of another one's buffer, and an
//     error afterwards is of no use.
//   - A collective that one rank has launched and another one never will ends only by an abort of
//     the communicator. Today a rank that closes the group, or fails between two collectives,
//     leaves nothing in progress, and every collective that all ranks had issued still completes.
//
// Several issued calls could share an exchange and lose only the last advantage. Few would: when a
// small GPT trains with the default prefetch, 9 of its 54 collectives of 5 steps have another one
// behind them when they start. And transport.Serial passes on one call at a time, so that the
// stream would still be empty between two.
//
// The cost is one all-gather of 72 bytes per rank for each collective, in however many pieces it is
// staged, and one more when the group is closed: about 2 µs between ranks of one host, a round trip
// between hosts, during which the stream is idle. An engine whose ranks compile the same schedule,
// and compare a hash of it once per pass, does not need it: it enqueues on a Communicator directly.

// A record is the message of a rank in a meeting:
//
//	byte  0      what the rank is about to do
//	bytes 8..72  the signature of its call
const (
	signatureAt = 8
	recordSize  = signatureAt + transport.SignatureSize
)

const (
	inPlace byte = iota // a collective, in device memory
	staged              // a collective, with a host buffer
	leaving             // nothing any more
)

// meeting is where the ranks exchange their records: over the host group, one meeting at a time.
type meeting struct {
	host comm.Group

	// Used by one call of the backend at a time.
	mine, all       []byte // the records of this rank, and of all
	mineBuf, allBuf comm.Buffer

	mu     sync.Mutex
	inside bool // a call of host that waits for other ranks is being made; never if over
	over   bool // no other meeting begins
}

func newMeeting(host comm.Group) *meeting {
	m := &meeting{host: host, mine: make([]byte, recordSize), all: make([]byte, host.Size()*recordSize)}
	m.mineBuf, m.allBuf = comm.Of(m.mine).Named("calls"), comm.Of(m.all).Named("calls")
	return m
}

func (m *meeting) record(rank int) []byte { return m.all[rank*recordSize:][:recordSize] }

// enter begins calls of the host group that wait for other ranks. It returns false after stop.
func (m *meeting) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inside = !m.over
	return m.inside
}

// exit ends a meeting that enter began.
func (m *meeting) exit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inside = false
}

// stop ends all meetings. It reports whether one is in progress that only Close of the host group
// ends. If the host group has failed, the meeting ends by itself, and groups split from it can
// still report why they have failed, which they cannot once they are closed with it.
func (m *meeting) stop() (waiting bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	return m.inside && !closed(transport.Failing(m.host))
}

// exchange sends all ranks the record of a call of this one, and receives theirs.
func (m *meeting) exchange(ctx context.Context, c *transport.Call) error {
	if !m.enter() {
		return errHalted
	}
	defer m.exit()
	m.mine[0] = inPlace
	if onHost(c.Dst) || onHost(c.Src) {
		m.mine[0] = staged
	}
	c.Signature().Put(m.mine[signatureAt:])
	return m.host.AllGather(m.allBuf, m.mineBuf).Wait(ctx)
}

// onHost reports whether some of b is in host memory.
func onHost(b comm.Buffer) bool {
	_, device := b.Device()
	return !device && b.Len() > 0
}

// compare compares the records of collective seq of a group. It reports whether a rank has a host
// buffer, or returns a rank that leaves, or an error, the same on every rank, if ranks have made
// different calls.
func (m *meeting) compare(group string, seq uint64) (stage bool, left *comm.RankError, err error) {
	for r := range m.host.Size() {
		switch m.record(r)[0] {
		case leaving:
			return false, &comm.RankError{Group: group, Rank: r, Err: comm.ErrClosed}, nil
		case staged:
			stage = true
		}
	}
	first := m.record(0)
	for r := range m.host.Size() {
		if !bytes.Equal(first[signatureAt:], m.record(r)[signatureAt:]) {
			return false, nil, m.mismatch(group, seq, r)
		}
	}
	return stage, nil, nil
}

// mismatch returns the error for rank r, which has made another call than rank 0.
func (m *meeting) mismatch(group string, seq uint64, r int) error {
	err := &comm.MismatchError{Group: group, Seq: seq, Ranks: [2]int{0, r}}
	for i, rank := range err.Ranks {
		s, bad := transport.ParseSignature(m.record(rank)[signatureAt:])
		if bad != nil {
			return &comm.RankError{Group: group, Rank: rank, Err: bad}
		}
		err.Calls[i] = s.String()
	}
	return err
}

// meet returns when all ranks have come to collective seq and made the same call. It reports
// whether a rank has a host buffer.
func (b *backend) meet(ctx context.Context, seq uint64, c *transport.Call) (stage bool, err error) {
	switch err := b.meeting.exchange(ctx, c); {
	case errors.Is(err, errHalted):
		return false, err
	case err != nil:
		return false, b.missed(ctx, seq, c, err)
	}
	stage, left, err := b.meeting.compare(b.name, seq)
	if left != nil {
		b.serial.Left(left.Rank, seq-1)
		return false, left
	}
	return stage, err
}

// missed reports to the handle why the ranks have not met: err, of the host group.
func (b *backend) missed(ctx context.Context, seq uint64, c *transport.Call, err error) error {
	err = received(err)
	var blame *comm.RankError
	if !errors.As(err, &blame) {
		b.serial.Failed(err)
		return err
	}
	failing := b.reason(nil) != nil
	switch {
	case ctx.Err() != nil && blame.Rank == b.host.Rank():
		err = &comm.RankError{Group: b.name, Rank: blame.Rank, Err: fmt.Errorf("%s: %w", numbered(seq, c), blame.Err)}
		b.serial.Failed(err)
	case errors.Is(blame.Err, comm.ErrClosed) && !failing:
		b.serial.Left(blame.Rank, seq-1)
	default:
		b.serial.Failed(err)
	}
	return err
}

// grace is how long a rank that closes the group waits for the others to do so or to issue more.
// After that it assumes that they need nothing from it.
var grace = time.Second

// farewell reports whether all ranks leave the group now. It may close the host group.
func (m *meeting) farewell() bool {
	m.mine[0] = leaving
	work, met := m.host.AllGather(m.allBuf, m.mineBuf), make(chan error, 1)
	go func() { met <- work.Wait(context.Background()) }()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-met:
		if err != nil {
			return false
		}
	case <-timer.C:
		_ = m.host.Close() // ends the wait; Leave closes it again, for its error
		<-met
		return false
	}
	for r := range m.host.Size() {
		if m.record(r)[0] != leaving {
			return false
		}
	}
	return true
}
