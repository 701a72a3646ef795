package comm

import "context"

// pairwise reports whether c is one message from every rank to every other, each of which is moved
// as a whole. Such a collective is begun by queueing all of them, and has nothing else to do until
// they are there.
func (r *remote) pairwise(c *Call) bool {
	own := len(c.Src.Bytes())
	switch c.Kind {
	case KindBarrier:
		return r.plan(KindBarrier, 0) == direct
	case KindAllToAll:
		return true
	case KindAllGather, KindSplit:
		return own <= smallMessage && r.plan(KindAllGather, own) == direct
	case KindAllReduce:
		n := len(c.Dst.Bytes())
		return n <= r.wholeSums() && r.plan(KindAllGather, n) == direct
	case KindReduceScatter:
		return len(c.Dst.Bytes()) <= smallMessage && r.size < manyRanks && r.plan(KindReduceScatter, own) == direct
	case KindBroadcast:
		return r.plan(KindBroadcast, len(c.Dst.Bytes())) == direct
	case KindGather:
		return r.size <= fewRanks && r.plan(KindGather, c.Bytes()) == direct
	default:
		return false
	}
}

// queue queues the messages of a pairwise collective.
func (r *remote) queue(c *Call) {
	round := [...]uint16{
		KindBarrier: roundAgree, KindAllGather: roundGather, KindSplit: roundGather, KindAllReduce: roundGather,
		KindReduceScatter: roundScatter, KindBroadcast: roundCast, KindAllToAll: roundScatter, KindGather: roundGather,
	}[c.Kind]
	for k := 1; k < r.size; k++ {
		to, from := r.right(k), r.left(k)
		r.sendIf(c.needs(r.rank, to), to, round, r.gives(c, to))
		r.receiveIf(c.needs(from, r.rank), from, round, r.takes(c, from))
	}
}

// needs reports whether one rank needs what another one gives in c, or only an answer.
func (c *Call) needs(from, to int) bool {
	switch c.Kind {
	case KindBroadcast:
		return from == c.Root
	case KindGather:
		return to == c.Root
	}
	return true
}

// gives returns what this rank sends to another.
func (r *remote) gives(c *Call, to int) []byte {
	switch c.Kind {
	case KindAllGather, KindSplit:
		return c.Src.Bytes()
	case KindGather:
		if to == c.Root {
			return c.Src.Bytes()
		}
	case KindAllReduce:
		return c.Dst.Bytes()
	case KindReduceScatter:
		return part(c.Src, to, c.Dst.len).Bytes()
	case KindAllToAll:
		return part(c.Src, to, c.Src.len/r.size).Bytes()
	case KindBroadcast:
		if r.rank == c.Root {
			return c.Dst.Bytes()
		}
	}
	return nil
}

// takes returns where this rank puts what another sends.
func (r *remote) takes(c *Call, from int) []byte {
	switch c.Kind {
	case KindAllGather, KindSplit, KindAllToAll:
		return part(c.Dst, from, c.Dst.len/r.size).Bytes()
	case KindAllReduce, KindReduceScatter:
		n := len(c.Dst.Bytes())
		lo := from * lines(n)
		return r.staging(2 * r.size * lines(n))[lo : lo+n] // as much as larger ones take, see Staging
	case KindBroadcast:
		if from == c.Root {
			return c.Dst.Bytes()
		}
	case KindGather:
		if r.rank == c.Root {
			return c.given(from).Bytes()
		}
	}
	return nil
}

// given returns where what a rank gives belongs on the root of a gather.
func (c *Call) given(rank int) Buffer {
	at := 0
	for _, count := range c.Counts[:rank] {
		at += count
	}
	return c.Dst.slice(at, at+c.Counts[rank])
}

// finish waits for what was queued, and does what is left of a pairwise collective.
func (r *remote) finish(ctx context.Context, c *Call) error {
	if err := r.settle(ctx); err != nil {
		return err
	}
	own := c.Dst
	switch c.Kind {
	case KindAllGather, KindSplit:
		move(part(c.Dst, r.rank, c.Src.len), c.Src)
		return nil
	case KindAllToAll:
		share := c.Dst.len / r.size
		move(part(c.Dst, r.rank, share), part(c.Src, r.rank, share))
		return nil
	case KindGather:
		if r.rank == c.Root {
			move(c.given(r.rank), c.Src)
		}
		return nil
	case KindReduceScatter:
		own = part(c.Src, r.rank, c.Dst.len)
	case KindAllReduce:
	default:
		return nil
	}
	r.reducer.srcs = r.reducer.srcs[:0]
	for rank := range r.size {
		b := own
		if rank != r.rank {
			b = bufferOf(r.takes(c, rank), c.Dst)
		}
		r.reducer.srcs = append(r.reducer.srcs, b)
	}
	r.reducer.reduce(c.Dst, c.Op)
	clear(r.reducer.srcs)
	return nil
}

// Begin implements [Beginner]: what sockets take of small messages without waiting is sent by
// whoever issues the collective, and a reader finds the rest in its socket. Where a second
// goroutine would have to be woken for that, it would cost more than all the rest. Streams have
// goroutines of their own, which may be in the caller's memory until Run has ended them.
func (r *remote) Begin(seq uint64, c *Call) bool {
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
		return false // whoever runs it says so at once
	}
	return r.sent()
}

// sent reports whether all that is queued has been sent, but for late answers.
func (r *remote) sent() bool {
	for _, p := range r.used {
		if !p.out.done() {
			return false
		}
	}
	return true
}
