package tcp

import (
	"context"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// pairwise reports whether c is one message from every rank to every other, each moved as a whole.
// Such a collective begins by queueing all of them, and has nothing else to do until they have
// arrived.
func (r *remote) pairwise(c *transport.Call) bool {
	own := len(c.Src.Bytes())
	switch c.Kind {
	case transport.KindBarrier:
		return r.plan(transport.KindBarrier, 0) == direct
	case transport.KindAllToAll:
		return true
	case transport.KindAllGather, transport.KindSplit:
		return own <= smallMessage && r.plan(transport.KindAllGather, own) == direct
	case transport.KindAllReduce:
		n := len(c.Dst.Bytes())
		return n <= r.wholeSums() && r.plan(transport.KindAllGather, n) == direct
	case transport.KindReduceScatter:
		return len(c.Dst.Bytes()) <= smallMessage && r.size < manyRanks && r.plan(transport.KindReduceScatter, own) == direct
	case transport.KindBroadcast:
		return r.plan(transport.KindBroadcast, len(c.Dst.Bytes())) == direct
	case transport.KindGather:
		return r.size <= fewRanks && r.plan(transport.KindGather, c.Bytes()) == direct
	default:
		return false
	}
}

// queue queues the messages of a pairwise collective.
func (r *remote) queue(c *transport.Call) {
	round := [...]uint16{
		transport.KindBarrier: roundAgree, transport.KindAllGather: roundGather, transport.KindSplit: roundGather, transport.KindAllReduce: roundGather,
		transport.KindReduceScatter: roundScatter, transport.KindBroadcast: roundCast, transport.KindAllToAll: roundScatter, transport.KindGather: roundGather,
	}[c.Kind]
	for k := 1; k < r.size; k++ {
		to, from := r.right(k), r.left(k)
		r.sendIf(needs(c, r.rank, to), to, round, r.gives(c, to))
		r.receiveIf(needs(c, from, r.rank), from, round, r.takes(c, from))
	}
}

// needs reports whether rank to needs the data of rank from in c, or only an answer.
func needs(c *transport.Call, from, to int) bool {
	switch c.Kind {
	case transport.KindBroadcast:
		return from == c.Root
	case transport.KindGather:
		return to == c.Root
	}
	return true
}

// gives returns the data that this rank sends to another.
func (r *remote) gives(c *transport.Call, to int) []byte {
	switch c.Kind {
	case transport.KindAllGather, transport.KindSplit:
		return c.Src.Bytes()
	case transport.KindGather:
		if to == c.Root {
			return c.Src.Bytes()
		}
	case transport.KindAllReduce:
		return c.Dst.Bytes()
	case transport.KindReduceScatter:
		return transport.Share(c.Src, to, c.Dst.Len()).Bytes()
	case transport.KindAllToAll:
		return transport.Share(c.Src, to, c.Src.Len()/r.size).Bytes()
	case transport.KindBroadcast:
		if r.rank == c.Root {
			return c.Dst.Bytes()
		}
	}
	return nil
}

// takes returns the memory for the data that another rank sends.
func (r *remote) takes(c *transport.Call, from int) []byte {
	switch c.Kind {
	case transport.KindAllGather, transport.KindSplit, transport.KindAllToAll:
		return transport.Share(c.Dst, from, c.Dst.Len()/r.size).Bytes()
	case transport.KindAllReduce, transport.KindReduceScatter:
		n := len(c.Dst.Bytes())
		lo := from * lines(n)
		return r.staging(2 * r.size * lines(n))[lo : lo+n] // as much as larger ones take, see Staging
	case transport.KindBroadcast:
		if from == c.Root {
			return c.Dst.Bytes()
		}
	case transport.KindGather:
		if r.rank == c.Root {
			return given(c, from).Bytes()
		}
	}
	return nil
}

// given returns the place of a rank's data on the root of a gather.
func given(c *transport.Call, rank int) transport.Buffer {
	at := 0
	for _, count := range c.Counts[:rank] {
		at += count
	}
	return c.Dst.Part(at, at+c.Counts[rank])
}

// finish waits for the queued messages, and does the rest of a pairwise collective.
func (r *remote) finish(ctx context.Context, c *transport.Call) error {
	if err := r.settle(ctx); err != nil {
		return err
	}
	own := c.Dst
	switch c.Kind {
	case transport.KindAllGather, transport.KindSplit:
		transport.Move(transport.Share(c.Dst, r.rank, c.Src.Len()), c.Src)
		return nil
	case transport.KindAllToAll:
		share := c.Dst.Len() / r.size
		transport.Move(transport.Share(c.Dst, r.rank, share), transport.Share(c.Src, r.rank, share))
		return nil
	case transport.KindGather:
		if r.rank == c.Root {
			transport.Move(given(c, r.rank), c.Src)
		}
		return nil
	case transport.KindReduceScatter:
		own = transport.Share(c.Src, r.rank, c.Dst.Len())
	case transport.KindAllReduce:
	default:
		return nil
	}
	r.reducer.Sources = r.reducer.Sources[:0]
	for rank := range r.size {
		b := own
		if rank != r.rank {
			b = bufferOf(r.takes(c, rank), c.Dst.DType())
		}
		r.reducer.Sources = append(r.reducer.Sources, b)
	}
	r.reducer.Reduce(c.Dst, c.Op)
	clear(r.reducer.Sources)
	return nil
}

// Begin implements [transport.Beginner]. The goroutine that issues the collective sends as much of
// small messages as sockets take without waiting, and a reader finds the rest in its socket. Waking
// a second goroutine for that would cost more than all the rest. Streams have their own goroutines,
// which may use the caller's memory until Run has ended them.
func (r *remote) Begin(seq uint64, c *transport.Call) bool {
	if _, own := r.pump.(*streams); own {
		return false
	}
	if r.broken != nil || r.size == 1 || r.hosted(c) || !r.pairwise(c) || c.Bytes() > smallMessage*r.size {
		return false
	}
	r.head(seq, c)
	r.queue(c)
	r.begun = true
	if _, err := r.pump.push(r.arrived); err != nil {
		r.failed = err
		return false // the goroutine that runs it returns the error at once
	}
	return r.sent()
}

// sent reports whether everything queued has been sent, except for late answers.
func (r *remote) sent() bool {
	for _, p := range r.used {
		if !p.out.done() {
			return false
		}
	}
	return true
}
