package tcp

import (
	"context"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// collect is a gather.
func (r *remote) collect(ctx context.Context, c *transport.Call) error {
	if r.plan(transport.KindGather, c.Bytes()) == doubling {
		return r.collectTree(ctx, c)
	}
	return r.collectStraight(ctx, c)
}

// collectStraight sends the source of every rank straight to its place on the root, when all have
// agreed. There are more than fewRanks, see pairwise.
func (r *remote) collectStraight(ctx context.Context, c *transport.Call) error {
	if err := r.agree(ctx); err != nil {
		return err
	}
	own := c.Src.Bytes()
	if r.rank != c.Root {
		r.send(c.Root, roundGather, len(own), own)
		return r.settle(ctx)
	}
	at := 0
	var mine transport.Buffer
	for rank, count := range c.Counts {
		into := c.Dst.Part(at, at+count)
		at += count
		if rank == r.rank {
			mine = into
			continue
		}
		b := into.Bytes()
		r.receive(rank, roundGather, len(b), b)
	}
	if err := r.await(ctx, 0); err != nil { // start the wires
		return err
	}
	transport.Move(mine, c.Src)
	return r.settle(ctx)
}

// collectTree passes the sources of the ranks along a binomial tree, in the messages by which ranks
// would agree in disseminate; the other messages are late. In the step at distance k a rank passes
// on its data if its distance to the root is an odd multiple of k: its own source and, before it in
// the stage, the sources of up to k-1 ranks to its left.
func (r *remote) collectTree(ctx context.Context, c *transport.Call) error {
	size, stage := c.Src.DType().Size(), r.staging(c.Bytes())
	at := len(stage) - len(c.Src.Bytes())
	copy(stage[at:], c.Src.Bytes())
	for d, k := (c.Root+r.size-r.rank)%r.size, 1; k < r.size; k *= 2 {
		from, part := 0, d%(2*k)
		if part == 0 {
			for i := k; i < min(2*k, r.size-d); i++ {
				from += size * c.Counts[r.left(i)]
			}
		}
		step := roundGather + roundSteps + uint16(k)
		r.sendIf(part == k, r.right(k), step, stage[at:])
		r.receiveIf(part == 0 && d+k < r.size, r.left(k), step, stage[at-from:at])
		if err := r.settle(ctx); err != nil {
			return err
		}
		at -= from
	}
	if r.rank == c.Root { // the root is last in the stage
		later := 0
		for _, count := range c.Counts[r.rank+1:] {
			later += size * count
		}
		dst := c.Dst.Bytes()
		copy(dst[copy(dst, stage[later:]):], stage[:later])
	}
	return nil
}
