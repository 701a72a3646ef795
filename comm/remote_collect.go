package comm

import "context"

// collect is a gather.
func (r *remote) collect(ctx context.Context, c *Call) error {
	if r.plan(KindGather, c.Bytes()) == doubling {
		return r.collectTree(ctx, c)
	}
	return r.collectStraight(ctx, c)
}

// collectStraight sends from every rank to the root, straight from the source to where that
// belongs. Among few ranks the payload is in one of the messages by which they agree; many agree
// first.
func (r *remote) collectStraight(ctx context.Context, c *Call) error {
	alone := r.size > fewRanks // the payload travels alone
	if alone {
		if err := r.agree(ctx); err != nil {
			return err
		}
	}
	own := c.Src.Bytes()
	var mine Buffer // of the root: its own range
	at := 0
	for rank, count := range c.Counts {
		var into Buffer
		if r.rank == c.Root {
			into = c.Dst.slice(at, at+count)
		}
		at += count
		switch {
		case rank == r.rank:
			mine = into
			continue
		case rank == c.Root:
			r.send(rank, roundGather, len(own), own)
		case !alone:
			r.send(rank, roundGather, 0, nil)
		}
		if b := into.Bytes(); r.rank == c.Root || !alone {
			r.receive(rank, roundGather, len(b), b)
		}
	}
	if err := r.await(ctx, 0); err != nil { // start the wires
		return err
	}
	if r.rank == c.Root {
		move(mine, c.Src)
	}
	return r.settle(ctx)
}

// collectTree passes what the ranks give on along a binomial tree, in the messages by which they
// agree as in disseminate. In the step at distance k those ranks pass on what they have whose
// distance to the root is an odd multiple of k: what they give themselves and, before it in the
// stage, what the k-1 ranks to their left do, as far as there are any.
func (r *remote) collectTree(ctx context.Context, c *Call) error {
	size, stage := c.Src.dtype.Size(), r.staging(c.Bytes())
	at := len(stage) - len(c.Src.Bytes())
	copy(stage[at:], c.Src.Bytes())
	for d, k := (c.Root+r.size-r.rank)%r.size, 1; k < r.size; k *= 2 {
		from := 0
		var to []byte
		switch d % (2 * k) {
		case k:
			to = stage[at:]
		case 0:
			for i := k; i < min(2*k, r.size-d); i++ {
				from += size * c.Counts[r.left(i)]
			}
		}
		step := roundGather + roundSteps + uint16(k)
		r.send(r.right(k), step, len(to), to)
		r.receive(r.left(k), step, from, stage[at-from:at])
		if err := r.settle(ctx); err != nil {
			return err
		}
		at -= from
	}
	if r.rank == c.Root { // which comes last in the stage
		later := 0
		for _, count := range c.Counts[r.rank+1:] {
			later += size * count
		}
		dst := c.Dst.Bytes()
		copy(dst[copy(dst, stage[later:]):], stage[:later])
	}
	return nil
}
