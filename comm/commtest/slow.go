package commtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// Slow returns g with a network in between: a group that behaves like g, but
// each of whose collectives keeps this rank's link busy for
//
//	latency + bytes sent / bytesPerSecond
//
// from the moment that it is issued, or that the link is free if that is later.
// Wait returns when that time is over and g is done as well:
//
//	issue #1, #2    ···· compute ····    wait #1, #2
//	link            |-- #1 --|---- #2 ----|         the wait takes what compute has not hidden
//
// The time passes by itself, as on a network card: a wait is a timer, and nothing
// runs until it fires. So one machine shows which schedule hides communication
// behind computation. If all processors compute, the scheduler decides how late a
// timer fires.
//
// The link has one direction. An all-gather that is issued behind a reduce-scatter
// waits for it, and so do the collectives of groups split from the result. For
// different links, such as within and between hosts, split g first and slow down
// each part. The bytes are the bytes that a rank sends in a ring of N ranks. The
// full tensor has B bytes:
//
//	AllGather, ReduceScatter     (N-1)/N · B
//	AllToAll                     (N-1)/N · B
//	AllReduce                  2·(N-1)/N · B
//	Broadcast                            B     handed on from rank to rank; 0 for N = 1
//	Gather                               S     that the rank has; the root receives B - S
//	Split                      an all-gather of 16 bytes per rank
//	Barrier                              0
//
// A rank's link is independent of the others: if one rank issues late, the others
// are held up by g, not by the link a second time. Collectives issued before Close
// still take their time, but Close itself takes none.
//
// Zero bytesPerSecond is no limit. The result is a [comm.Allocator] if g is one.
func Slow(g comm.Group, bytesPerSecond float64, latency time.Duration) comm.Group {
	return slowed(g, &link{perByte: perByte(bytesPerSecond), latency: max(latency, 0)})
}

// slowed returns g behind l.
func slowed(g comm.Group, l *link) comm.Group {
	s := &slow{Group: g, link: l}
	if a, ok := g.(comm.Allocator); ok {
		return struct {
			*slow
			comm.Allocator
		}{s, a}
	}
	return s
}

// link is the clock of one rank's link.
type link struct {
	perByte float64 // nanoseconds
	latency time.Duration

	mu   sync.Mutex
	free time.Time // when everything issued is over
}

func perByte(bytesPerSecond float64) float64 {
	if !(bytesPerSecond > 0) { // nor NaN
		return 0
	}
	return min(float64(time.Second)/bytesPerSecond, float64(longest))
}

// longest is the longest time of a transfer, so that no sum of times overflows.
const longest = 100 * 365 * 24 * time.Hour

// take keeps the link busy with a transfer of this many bytes, and returns when it
// is over.
func (l *link) take(bytes float64) (over time.Time) {
	busy := time.Duration(min(math.Round(bytes*l.perByte), float64(longest)))
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(min(l.latency, longest) + busy)
	return l.free
}

// carried returns the number of bytes of collective c that keep the link of the given rank busy.
// There are n ranks.
func carried(c *transport.Call, rank, n int) float64 {
	bytes, others := float64(c.Len())*float64(c.DType().Size()), float64(n-1)
	switch {
	case n == 1:
		return 0
	case c.Kind == transport.KindAllReduce:
		return 2 * bytes * others / float64(n)
	case c.Kind == transport.KindBroadcast:
		return bytes
	case c.Kind == transport.KindGather:
		own := float64(c.Src.Len()) * float64(c.DType().Size())
		if rank == c.Root {
			return max(0, bytes-own)
		}
		return own
	default:
		return bytes * others / float64(n)
	}
}

// slow is a group behind a link.
type slow struct {
	comm.Group
	link *link
}

func (s *slow) Watch(tell func(transport.Flight)) (stop func()) {
	return s.Group.(transport.Watcher).Watch(tell)
}

func (s *slow) AllGather(dst, src comm.Buffer) comm.Work {
	return s.issue(transport.Call{Kind: transport.KindAllGather, Dst: dst, Src: src})
}

func (s *slow) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return s.issue(transport.Call{Kind: transport.KindReduceScatter, Op: op, Dst: dst, Src: src})
}

func (s *slow) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return s.issue(transport.Call{Kind: transport.KindAllReduce, Op: op, Dst: buf, Src: buf})
}

func (s *slow) Broadcast(buf comm.Buffer, root int) comm.Work {
	return s.issue(transport.Call{Kind: transport.KindBroadcast, Root: root, Dst: buf, Src: buf})
}

func (s *slow) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return s.issue(transport.Call{Kind: transport.KindGather, Root: root, Dst: dst, Src: src, Counts: counts})
}

func (s *slow) AllToAll(dst, src comm.Buffer) comm.Work {
	return s.issue(transport.Call{Kind: transport.KindAllToAll, Dst: dst, Src: src})
}

func (s *slow) Barrier(ctx context.Context) error {
	return s.issue(transport.Call{Kind: transport.KindBarrier}).Wait(ctx)
}

func (s *slow) Split(ctx context.Context, color, key int) (comm.Group, error) {
	pairs := comm.Of(make([]int64, 2*s.Size()))
	t := s.transfer(transport.Call{Kind: transport.KindSplit, Dst: pairs})
	child, err := s.Group.Split(ctx, color, key)
	if err != nil {
		return nil, err
	}
	err = t.pass(ctx)
	switch {
	case child == nil:
		return nil, err
	case err != nil:
		return nil, errors.Join(err, child.Close())
	}
	return slowed(child, s.link), nil
}

// issue issues c and starts its transfer.
func (s *slow) issue(c transport.Call) comm.Work {
	t := s.transfer(c)
	t.work = call(s.Group, c)
	return t
}

// transfer starts the transfer of c.
func (s *slow) transfer(c transport.Call) *transfer {
	return &transfer{slow: s, over: s.link.take(carried(&c, s.Rank(), s.Size())), settled: make(chan struct{})}
}

// transfer is the Work of a collective on a link.
type transfer struct {
	slow *slow
	work comm.Work // of the group behind the link
	over time.Time // when the link has carried it

	once    sync.Once
	settled chan struct{} // closed when some Wait has the result, which is the result of all
	err     error         // that result
}

// Wait implements [comm.Work].
func (t *transfer) Wait(ctx context.Context) error {
	if err := t.work.Wait(ctx); err != nil {
		return err
	}
	return t.pass(ctx)
}

// pass returns when the link has carried the transfer. If ctx ends before, the group
// fails, as it does while the rank waits for others.
func (t *transfer) pass(ctx context.Context) error {
	var gaveUp error
	if left := time.Until(t.over); left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.settled:
		case <-ctx.Done():
			gaveUp = context.Cause(ctx)
		}
	}
	t.once.Do(func() {
		if gaveUp != nil {
			t.err = t.slow.giveUp(gaveUp)
		}
		close(t.settled)
	})
	return t.err
}

// giveUp fails the group because this rank stops waiting for its link, and returns
// the failure of the group, which may be an earlier one.
func (s *slow) giveUp(cause error) error {
	s.Abort(fmt.Errorf("waiting for its slow link: %w", cause))
	return s.Group.Barrier(context.Background()) // returns at once: the group has failed
}
