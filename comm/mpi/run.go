//go:build mpi && cgo && unix

package mpi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// Run implements [transport.Backend].
func (g *group) Run(ctx context.Context, seq uint64, c *transport.Call) error {
	g.seq.Store(seq)
	if err := g.send(ctx, seq, c); err != nil {
		return err
	}
	if err := g.agree(ctx, seq); err != nil {
		return err
	}
	if err := g.compare(seq); err != nil {
		return err
	}
	if g.largest(c) <= inline || g.size == 1 {
		return g.finish(seq, c)
	}
	return g.transfer(ctx, c)
}

// share is how many bytes a rank has for each other one in a collective, or for the root
// in a gather.
func (g *group) share(c *transport.Call, rank int) int {
	switch c.Kind {
	case transport.KindAllGather, transport.KindSplit:
		return bytesOf(c.Src)
	case transport.KindAllToAll:
		return bytesOf(c.Src) / g.size
	case transport.KindGather:
		return c.Counts[rank] * c.DType().Size()
	default:
		return bytesOf(c.Dst)
	}
}

// largest is the largest share, which decides for all ranks how the data travels.
func (g *group) largest(c *transport.Call) int {
	if c.Kind == transport.KindGather {
		return slices.Max(c.Counts) * c.DType().Size()
	}
	return g.share(c, 0)
}

// sends reports whether a rank has data for others in a collective.
func sends(c *transport.Call, rank int) bool {
	switch c.Kind {
	case transport.KindBroadcast:
		return rank == c.Root
	case transport.KindGather:
		return rank != c.Root
	default:
		return true
	}
}

func bytesOf(b comm.Buffer) int { return b.Len() * b.DType().Size() }

// send sends this rank's call to all others, unless the group has ended.
func (g *group) send(ctx context.Context, seq uint64, c *transport.Call) error {
	if g.size == 1 {
		return nil
	}
	if err := g.settle(ctx, g.calls); err != nil { // of the collective before
		return err
	}
	stride, size := g.write(seq, c)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := g.engine
	e.mu.Lock()
	if g.over.Load() {
		e.mu.Unlock()
		return g.reason(ctx)
	}
	defer e.mu.Unlock()
	if e.err != nil {
		return e.err
	}
	return sendCalls(g.letters, stride, size, g.rank, g.world, e.control, g.calls)
}

// write writes the call into g.letters. If stride is 0, there is one letter for all
// ranks; otherwise the letter of rank r is at r*stride.
func (g *group) write(seq uint64, c *transport.Call) (stride, size int) {
	const dataAt = bodyAt + transport.SignatureSize
	m := message{what: call, group: g.id, seq: seq}
	m.put(g.letters)
	c.Signature().Put(g.letters[bodyAt:])
	n := g.share(c, g.rank)
	if g.largest(c) > inline || !sends(c, g.rank) {
		return 0, dataAt
	}
	if c.Kind != transport.KindReduceScatter && c.Kind != transport.KindAllToAll {
		if n > 0 {
			copy(g.letters[dataAt:], c.Src.Bytes())
		}
		return 0, dataAt + n
	}
	src := c.Src.Bytes()
	for r := range g.size {
		letter := g.letters[r*maxCall:]
		copy(letter, g.letters[:dataAt])
		copy(letter[dataAt:], src[r*n:(r+1)*n])
	}
	return maxCall, dataAt + n
}

// agree waits until every rank has sent its call, which makes the collective happen, or
// until one never will, so that it cannot. A rank that wants to give up reports that it
// makes no more calls, and the others answer with their calls or with the same. It may be
// too late then: the collective happens, and the group fails after it.
func (g *group) agree(ctx context.Context, seq uint64) error {
	var giveUp error
	halt := g.halt
	g.wait.Reset()
	for arrived := 0; ; {
		got, err := g.engine.poll(burst)
		if err != nil {
			return err
		}
		before := arrived
		var refused bool
		if arrived, refused = g.count(seq); arrived == g.size-1 {
			if giveUp != nil && giveUp != errHalted {
				g.serial.Abort(giveUp)
			}
			return nil
		}
		if arrived > before {
			g.wait.Reset()
		}
		switch {
		case refused && giveUp == nil:
			return g.reason(ctx)
		case refused, giveUp != nil && g.wait.Idle() > grace:
			if !refused {
				g.abandon() // the decision of the others is unknown
			}
			return giveUp
		case giveUp == nil:
			if giveUp = g.impatient(ctx); giveUp != nil {
				g.fallSilent()
				g.wait.Reset()
				ctx, halt = context.Background(), nil // they have done their part
			}
		}
		if !got {
			g.wait.Pause(ctx.Done(), halt)
		}
	}
}

// count returns how many other ranks have sent call seq, and whether one never will.
func (g *group) count(seq uint64) (arrived int, refused bool) {
	complete := true
	for r := range g.heard {
		switch {
		case r == g.rank:
		case g.heard[r].Load() >= seq:
			arrived++
		default:
			complete = false
		}
	}
	if complete {
		return arrived, false
	}
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	for r, silent := range g.silent {
		refused = refused || silent && g.heard[r].Load() < seq
	}
	return arrived, refused
}

// impatient returns why the rank should stop waiting for a collective, or nil.
func (g *group) impatient(ctx context.Context) error {
	switch {
	case g.halted():
		return errHalted
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case g.wait.Idle() > g.engine.timeout:
		return fmt.Errorf("%w for %v (the limit is FSDP_TIMEOUT, or Config.Timeout)", comm.ErrTimeout, g.engine.timeout)
	}
	return nil
}

// reason waits until the handle has the reason why there are no more calls.
func (g *group) reason(ctx context.Context) error {
	g.wait.Reset()
	for !g.halted() && g.wait.Idle() < grace {
		got, err := g.engine.poll(burst)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !got {
			g.wait.Pause(ctx.Done(), g.halt)
		}
	}
	if g.halted() {
		return errHalted
	}
	return errors.New("a rank has stopped and given no reason")
}

// compare compares the calls of all ranks.
func (g *group) compare(seq uint64) error {
	if g.size == 1 {
		return nil
	}
	first := g.signature(0, seq)
	for r := 1; r < g.size; r++ {
		if other := g.signature(r, seq); !bytes.Equal(first, other) {
			return &comm.MismatchError{
				Group: g.name, Seq: seq, Ranks: [2]int{0, r}, Calls: [2]string{describe(first), describe(other)},
			}
		}
	}
	return nil
}

// signature returns the signature of call seq of a rank.
func (g *group) signature(rank int, seq uint64) []byte {
	if rank == g.rank {
		return g.letters[bodyAt : bodyAt+transport.SignatureSize]
	}
	return g.bodies[2*rank+int(seq%2)][:transport.SignatureSize]
}

func describe(signature []byte) string {
	s, err := transport.ParseSignature(signature)
	if err != nil {
		return err.Error()
	}
	return s.String()
}

// settle waits for requests. If the group fails meanwhile, or ctx ends, they have a
// moment more, because the other ranks do their part as well.
func (g *group) settle(ctx context.Context, rs []request) error {
	e := g.engine
	g.wait.Reset()
	for {
		e.mu.Lock()
		done, err := test(rs, burst)
		e.mu.Unlock()
		if done || err != nil {
			return err
		}
		got, err := e.poll(1)
		if err != nil {
			return err
		}
		if cause := g.impatient(ctx); cause != nil && g.wait.Idle() > min(grace, e.timeout) {
			g.abandon()
			return fmt.Errorf("abandoning a transfer: %w", cause)
		}
		if !got {
			g.wait.Pause(nil, nil) // its end is no reason to hurry
		}
	}
}

// abandon records that some operation may be in progress in MPI for ever.
func (g *group) abandon() {
	g.engine.mu.Lock()
	g.abandoned, g.engine.abandoned = true, true
	g.engine.mu.Unlock()
}
