package tcp

import (
	"context"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/internal/checksum"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// stretch is how many bytes of its own part a rank copies and sums before it sends them.
const stretch = 512 << 10

// Rounds distinguish the messages of one collective. An algorithm of several steps numbers them
// from its own round plus roundSteps, the agreement from roundAgree; the step over k ranks adds k.
const (
	roundScatter uint16 = iota
	roundGather
	roundCast
	roundHalve
	roundHosts
	roundSteps = 1 << 9
	roundAgree = 1 << 15

	// This does not compile if two rounds can be equal in a group of mostRanks.
	mostRanks = launch.MaxSize
	_         = roundAgree - roundSteps - roundHosts - mostRanks
	_         = 1<<16 - 1 - roundAgree - mostRanks
)

// collective carries out c.
func (r *remote) collective(ctx context.Context, c *transport.Call) error {
	if r.size == 1 {
		transport.Move(c.Dst, c.Src)
		return nil
	}
	switch {
	case r.hosted(c):
		return r.hierarchical(ctx, c)
	case r.pairwise(c):
		r.queue(c)
		return r.finish(ctx, c)
	}
	switch c.Kind {
	case transport.KindBarrier:
		return r.agree(ctx)
	case transport.KindReduceScatter:
		if r.plan(transport.KindReduceScatter, len(c.Src.Bytes())) == doubling {
			return r.reduceAll(ctx, c.Dst, c.Src, c.Op)
		}
		return r.reduceLarge(ctx, c.Dst, c.Src, c.Dst.Len(), c.Op)
	case transport.KindAllReduce:
		return r.allReduce(ctx, c.Dst, c.Op)
	case transport.KindBroadcast:
		return r.broadcast(ctx, c.Dst, c.Root)
	case transport.KindGather:
		return r.collect(ctx, c)
	default: // KindAllGather, KindSplit
		return r.gather(ctx, c.Dst, c.Src, c.Src.Len())
	}
}

// hosted reports whether c goes by hosts.
func (r *remote) hosted(c *transport.Call) bool {
	return r.hosts != nil && r.hosts.suits(c.Kind, c.Op, c.DType(), c.Bytes())
}

// right and left return the rank that is k places after this one, and before it.
func (r *remote) right(k int) int { return (r.rank + k) % r.size }
func (r *remote) left(k int) int  { return (r.rank + r.size - k) % r.size }

// agree returns when all ranks are known to be in the same collective.
func (r *remote) agree(ctx context.Context) error {
	c := transport.Call{Kind: transport.KindBarrier}
	if r.pairwise(&c) {
		r.queue(&c)
		return r.finish(ctx, &c)
	}
	return r.disseminate(ctx, 1)
}

// disseminate does the steps of a dissemination barrier from distance k on. After the step at
// distance k, the 2k-1 ranks to the left of a rank have certainly entered the barrier.
func (r *remote) disseminate(ctx context.Context, k int) error {
	for ; k < r.size; k *= 2 {
		r.send(r.right(k), roundAgree+uint16(k), 0, nil)
		r.receive(r.left(k), roundAgree+uint16(k), 0, nil)
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// gather collects the part of every rank, of share elements, in full. own is the part of this rank,
// in full or elsewhere.
func (r *remote) gather(ctx context.Context, full, own transport.Buffer, share int) error {
	switch r.plan(transport.KindAllGather, own.DType().Size()*share) {
	case doubling:
		if full.Len() == r.size*share {
			return r.gatherDoubling(ctx, full, own, share)
		}
	case ring:
		return r.gatherRing(ctx, full, own, share)
	}
	for k := 1; k < r.size; k++ {
		from := r.left(k)
		into := transport.Share(full, from, share).Bytes()
		r.receive(from, roundGather, len(into), into)
	}
	return r.give(ctx, transport.Share(full, r.rank, share).Bytes(), own.Bytes())
}

// give copies own to dst, unless it is there, and sends it to all others, block by block. So it is
// read from memory once, and its checksum is computed once for all.
func (r *remote) give(ctx context.Context, dst, own []byte) error {
	sum, there := uint32(0), unsafe.SliceData(dst) == unsafe.SliceData(own)
	for lo := 0; ; lo += stretch {
		hi := min(lo+stretch, len(own))
		switch b := own[lo:hi]; {
		case !there && r.frame.summed:
			sum = checksum.Copy(sum, dst[lo:hi], b)
		case !there:
			copy(dst[lo:hi], b)
		case r.frame.summed:
			sum = checksum.Update(sum, b)
		}
		next := piece{round: roundGather, length: len(own), body: own[lo:hi], known: true, sum: sum}
		if lo == 0 {
			next.of = r.frame
		}
		for k := 1; k < r.size; k++ {
			r.port(r.right(k)).out.add(next)
		}
		if hi == len(own) {
			return r.settle(ctx)
		}
		if err := r.await(ctx, 0); err != nil {
			return err
		}
	}
}

// gatherDoubling is gather after Bruck: at distance k a rank passes on its own part and the parts
// of the k-1 ranks to its left. They are in the stage in that order, its own first, each as long as
// share.
func (r *remote) gatherDoubling(ctx context.Context, full, own transport.Buffer, share int) error {
	n := share * own.DType().Size()
	stage := r.staging(r.size * n)
	copy(stage, own.Bytes())
	for k := 1; k < r.size; k *= 2 {
		count := min(k, r.size-k) * n
		step := roundGather + roundSteps + uint16(k)
		r.send(r.right(k), step, count, stage[:count])
		r.receive(r.left(k), step, count, stage[k*n:k*n+count])
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	for k := range r.size {
		copy(transport.Share(full, r.left(k), share).Bytes(), stage[k*n:])
	}
	return nil
}

// gatherRing is gather in which every part travels around the ring, in blocks.
func (r *remote) gatherRing(ctx context.Context, full, own transport.Buffer, share int) error {
	to, from := r.right(1), r.left(1)
	transport.Move(transport.Share(full, r.rank, share), own)
	mine := transport.Share(full, r.rank, share).Bytes()
	r.send(to, roundGather, len(mine), mine)
	pieces := 0
	for k := 1; k < r.size; k++ {
		b := transport.Share(full, r.left(k), share).Bytes()
		step := roundGather + roundSteps + uint16(k)
		if k == 1 {
			step = roundGather
		}
		r.receive(from, step, len(b), b[:min(block, len(b))])
		for lo := 0; ; lo += block {
			hi := min(lo+block, len(b))
			if next := min(hi+block, len(b)); next > hi {
				r.receiveMore(from, b[hi:next])
			}
			pieces++
			if err := r.await(ctx, pieces); err != nil {
				return err
			}
			switch {
			case k == r.size-1: // it has gone around
			case lo == 0:
				r.pass(from, pieces, to, piece{of: r.frame, round: roundGather + roundSteps + uint16(k+1), length: len(b), body: b[:hi]})
			default:
				r.pass(from, pieces, to, piece{body: b[lo:hi]})
			}
			if hi == len(b) {
				break
			}
		}
	}
	return r.settle(ctx)
}

// staging returns n bytes of scratch memory, aligned for every element type.
func (r *remote) staging(n int) []byte {
	if len(r.stage) < n {
		r.stage = make([]byte, max(n, leastStage))
	}
	return r.stage[:n]
}

// Staging implements [transport.Stager].
func (r *remote) Staging(d transport.DType, n int) int {
	if r.size == 1 {
		return 0
	}
	bytes := d.Size() * n
	staged := 2 * r.size * lines(min(bytes, block))
	switch h := r.hosts; {
	case h != nil && h.suits(transport.KindReduceScatter, transport.Sum, d, r.size*bytes):
		staged = h.stagingOf(nil, summing(transport.Sum, d), n, d).bytes
	case r.plan(transport.KindReduceScatter, r.size*bytes) == direct:
	case r.plan(transport.KindReduceScatter, r.size*bytes) == halving:
		staged = r.routed().memory(nil, d, n, r.stripe).bytes
	case r.size >= manyRanks:
		staged = stepSums(r.size) * r.size * n * max(d.Size(), 4)
	default:
		staged = 2 * r.size * lines(r.size*bytes)
	}
	if whole := r.size * bytes; whole <= r.wholeSums() && r.size < manyRanks {
		staged = max(staged, 2*r.size*lines(whole)) // small AllReduces gather that much
	}
	return max(staged, leastStage)
}

// leastStage is the size of the first stage, which small collectives share.
const leastStage = 4 << 10

// lines rounds bytes up to whole cache lines.
func lines(bytes int) int { return (bytes + 63) / 64 * 64 }

// bufferOf returns b as elements of type d.
func bufferOf(b []byte, d transport.DType) transport.Buffer {
	return transport.HostMemory(unsafe.Pointer(unsafe.SliceData(b)), len(b)/d.Size(), d)
}

// reduceLarge reduces the parts of src, of share elements each, and leaves this rank's part in dst,
// which may be that part of src.
func (r *remote) reduceLarge(ctx context.Context, dst, src transport.Buffer, share int, op transport.Op) error {
	if r.plan(transport.KindReduceScatter, len(src.Bytes())) == halving {
		return r.halve(ctx, dst, src, share, op)
	}
	return r.scatter(ctx, dst, src, share, op)
}

// scatter is reduceLarge between few ranks. Each rank sends every owner its part. The owner sums
// one block of all ranks while the next one arrives.
func (r *remote) scatter(ctx context.Context, dst, src transport.Buffer, share int, op transport.Op) error {
	size := dst.DType().Size()
	step := min(block/size, max(dst.Len(), 1))
	line := lines(step * size) // bytes from one rank's block to the next
	stage := r.staging(2 * r.size * line)
	at := func(half, rank, n int) []byte {
		lo := (half*r.size + rank) * line
		return stage[lo : lo+n*size]
	}
	for k := 1; k < r.size; k++ {
		to, from := r.right(k), r.left(k)
		b := transport.Share(src, to, share).Bytes()
		r.send(to, roundScatter, len(b), b)
		r.receive(from, roundScatter, dst.Len()*size, at(0, from, min(step, dst.Len())))
	}
	mine := transport.Share(src, r.rank, share)
	for lo, i := 0, 1; ; i++ {
		hi := min(lo+step, dst.Len())
		if next := min(hi+step, dst.Len()); next > hi {
			for k := 1; k < r.size; k++ {
				r.receiveMore(r.left(k), at(i%2, r.left(k), next-hi))
			}
		}
		if err := r.await(ctx, i); err != nil {
			return err
		}
		r.reducer.Sources = r.reducer.Sources[:0]
		for rank := range r.size {
			b := mine.Part(lo, hi)
			if rank != r.rank {
				b = bufferOf(at((i+1)%2, rank, hi-lo), dst.DType())
			}
			r.reducer.Sources = append(r.reducer.Sources, b)
		}
		r.reducer.Reduce(dst.Part(lo, hi), op)
		clear(r.reducer.Sources)
		if lo = hi; lo == dst.Len() {
			return r.settle(ctx)
		}
	}
}

// allReduce gathers small tensors and sums them everywhere. For large tensors every rank sums a
// part, in whole cache lines.
func (r *remote) allReduce(ctx context.Context, buf transport.Buffer, op transport.Op) error {
	bytes := len(buf.Bytes())
	if bytes > r.wholeSums() {
		share := transport.StripeLen(buf, r.size)
		if err := r.reduceLarge(ctx, transport.Share(buf, r.rank, share), buf, share, op); err != nil {
			return err
		}
		return r.gatherSums(ctx, buf, share)
	}
	return r.reduceAll(ctx, buf, buf, op)
}

// gatherSums collects the part of every rank, of share elements, in buf; the last ranks may have
// fewer or none. After halve it stages no more memory than halve, and connects to as few ranks.
func (r *remote) gatherSums(ctx context.Context, buf transport.Buffer, share int) error {
	own := transport.Share(buf, r.rank, share)
	if r.plan(transport.KindReduceScatter, len(buf.Bytes())) != halving {
		return r.gather(ctx, buf, own, share)
	}
	bytes := share * buf.DType().Size()
	if r.plan(transport.KindAllGather, bytes) == doubling && r.size*bytes <= r.stripe {
		return r.gatherDoubling(ctx, buf, own, share)
	}
	return r.gatherRing(ctx, buf, own, share)
}

// reduceAll reduces a small src of all ranks to dst: only the share of this rank, or all of it if
// dst is as long. Fewer than manyRanks gather it.
func (r *remote) reduceAll(ctx context.Context, dst, src transport.Buffer, op transport.Op) error {
	if r.size >= manyRanks {
		return r.reduceSteps(ctx, dst, src, op)
	}
	bytes := len(src.Bytes())
	line := lines(bytes)
	all := r.staging(2 * r.size * line)[r.size*line:] // gatherDoubling uses the first half
	full := bufferOf(all[:r.size*bytes], src.DType())
	if err := r.gather(ctx, full, src, src.Len()); err != nil {
		return err
	}
	r.reducer.Sources = r.reducer.Sources[:0]
	for rank := range r.size {
		b := transport.Share(full, rank, src.Len())
		if dst.Len() < src.Len() {
			b = transport.Share(b, r.rank, dst.Len())
		}
		r.reducer.Sources = append(r.reducer.Sources, b)
	}
	r.reducer.Reduce(dst, op)
	clear(r.reducer.Sources)
	return nil
}

// broadcast sends the root's buf to all.
func (r *remote) broadcast(ctx context.Context, buf transport.Buffer, root int) error {
	b := buf.Bytes()
	if r.plan(transport.KindBroadcast, len(b)) == ring {
		return r.broadcastChain(ctx, b, root)
	}
	return r.broadcastTree(ctx, b, root)
}

// broadcastTree passes b along a binomial tree: the ranks less than k places after the root have b
// before the step at distance k, and pass it on in that step. The other ranks answer late, in the
// messages by which ranks would agree in disseminate.
func (r *remote) broadcastTree(ctx context.Context, b []byte, root int) error {
	passes := func(rank, k int) bool {
		d := (rank + r.size - root) % r.size
		return d < k && d+k < r.size
	}
	for k := 1; k < r.size; k *= 2 {
		step := roundCast + roundSteps + uint16(k)
		r.sendIf(passes(r.rank, k), r.right(k), step, b)
		r.receiveIf(passes(r.left(k), k), r.left(k), step, b)
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// broadcastChain passes b from the root to the right. The last rank closes the ring with an empty
// message before it waits for anything, so that all neighbours compare their calls. It answers when
// it has b: then all ranks have made the call. This answer is late, and until it arrives the root
// is one broadcast ahead at most.
func (r *remote) broadcastChain(ctx context.Context, b []byte, root int) error {
	to, from := r.right(1), r.left(1)
	last := to == root
	if r.rank == root {
		r.receive(from, roundCast, 0, nil)
		r.receiveIf(false, from, roundAgree, nil)
		from = noRank
	}
	if last {
		r.send(to, roundCast, 0, nil)
		to = noRank
	}
	if err := r.relay(ctx, b, from, to, nil); err != nil {
		return err
	}
	if last {
		r.sendIf(false, root, roundAgree, nil)
	}
	return r.settle(ctx)
}

// noRank is the number of the missing neighbour at each end of a chain of ranks.
const noRank = -1

// relay receives b and passes it on in blocks. It calls each, if not nil, with the bounds of every
// block that has arrived. The header does not wait for payload. The caller must settle.
func (r *remote) relay(ctx context.Context, b []byte, from, to int, each func(lo, hi int) error) error {
	switch {
	case to == noRank:
	case from == noRank:
		r.send(to, roundCast, len(b), b)
	default:
		r.send(to, roundCast, len(b), nil)
	}
	if from != noRank {
		r.receive(from, roundCast, len(b), b[:min(block, len(b))])
	}
	for lo, i := 0, 1; lo < len(b); i++ {
		hi := min(lo+block, len(b))
		if next := min(hi+block, len(b)); from != noRank && next > hi {
			r.receiveMore(from, b[hi:next])
		}
		if err := r.await(ctx, i); err != nil {
			return err
		}
		if from != noRank && to != noRank {
			r.pass(from, i, to, piece{body: b[lo:hi]})
		}
		if each != nil {
			if err := each(lo, hi); err != nil {
				return err
			}
		}
		lo = hi
	}
	return nil
}
