package tcp

import (
	"context"
	"math/bits"
	"slices"

	"github.com/gofsdp/gofsdp/comm/internal/tree"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// Sums in steps
//
// A small reduction of manyRanks takes the steps of disseminate. Passing on the contribution of
// every rank would take as much memory as there are ranks. So ranks pass on sums of the largest
// subtrees of the canonical tree within the ranks whose contributions they have. In the step at
// distance k these are the k ranks up to the sender, so both sides know which sums travel: at most
// 2 log2 N. In the last step the ranks of both sides may overlap. Their sums are still sufficient:
// a subtree that is in neither side divides into two.
//
// Partial sums of 16-bit floats are float32, as only the last one is rounded.

// subsums is the sums of some subtrees, ascending, one after the other in memory.
type subsums struct {
	spans  []tree.Span
	memory transport.Buffer
	each   int // elements
}

// subtree returns the sum of the i-th subtree, and all returns the sums of all subtrees together.
func (s *subsums) subtree(i int) transport.Buffer { return s.memory.Part(i*s.each, (i+1)*s.each) }
func (s *subsums) all() []byte                    { return s.memory.Part(0, len(s.spans)*s.each).Bytes() }

// stepSums returns how many sums a rank of n holds at a time: its own, the received ones and the
// results of both, and one for every level of the tree.
func stepSums(n int) int { return 7 * bits.Len(uint(n-1)) }

// window appends to list the largest subtrees of all n ranks whose ranks are among the k up to
// rank.
func window(list []tree.Span, n, rank, k int) []tree.Span {
	all, lo := tree.Span{Lo: 0, Hi: n}, rank+1-k
	switch {
	case k >= n:
		return append(list, all)
	case lo >= 0:
		return all.Within(list, tree.Span{Lo: lo, Hi: rank + 1})
	}
	return all.Within(all.Within(list, tree.Span{Lo: 0, Hi: rank + 1}), tree.Span{Lo: n + lo, Hi: n})
}

// reduceSteps reduces the src of all ranks to dst: only the share of this rank, or all of it if dst
// is as long.
func (r *remote) reduceSteps(ctx context.Context, dst, src transport.Buffer, op transport.Op) error {
	as := src.DType()
	if src.DType().IsFloat() && src.DType().Size() < 4 {
		as = transport.Float32
	}
	n, levels := src.Len(), bits.Len(uint(r.size-1))
	free := bufferOf(r.staging(stepSums(r.size)*n*as.Size()), as)
	have, got, next := &r.sums[0], &r.sums[1], &r.sums[2]
	for _, s := range []*subsums{have, got, next} {
		s.each, s.memory, free = n, free.Part(0, 2*levels*n), free.Part(2*levels*n, free.Len())
	}
	have.spans = append(have.spans[:0], tree.Span{Lo: r.rank, Hi: r.rank + 1})
	if own := have.subtree(0); own.DType() == src.DType() {
		transport.Move(own, src)
	} else {
		widen(transport.View[float32](own), src)
	}
	partial := op
	if op == transport.Avg {
		partial = transport.Sum // the average is taken once, at the end
	}
	for k := 1; k < r.size; k *= 2 {
		got.spans = window(got.spans[:0], r.size, r.left(k), k)
		step, ours, theirs := roundGather+roundSteps+uint16(k), have.all(), got.all()
		r.send(r.right(k), step, len(ours), ours)
		r.receive(r.left(k), step, len(theirs), theirs)
		if err := r.settle(ctx); err != nil {
			return err
		}
		next.spans = window(next.spans[:0], r.size, r.rank, 2*k)
		for i, s := range next.spans {
			transport.Move(next.subtree(i), r.subtree(s, [...]*subsums{have, got}, next.subtree(i), free, partial))
		}
		have, next = next, have
	}
	total := have.subtree(0)
	if dst.Len() < src.Len() {
		total = transport.Share(total, r.rank, dst.Len())
	}
	r.reducer.Sources = append(r.reducer.Sources[:0], total)
	r.reducer.ReduceScaled(dst, op, r.size)
	clear(r.reducer.Sources)
	return nil
}

// subtree returns the sum of s: a known sum, or else one that it puts together in to. free is
// memory for one sum of every level below.
func (r *remote) subtree(s tree.Span, known [2]*subsums, to, free transport.Buffer, op transport.Op) transport.Buffer {
	for _, k := range known {
		if i := slices.Index(k.spans, s); i >= 0 {
			return k.subtree(i)
		}
	}
	mid, n := s.Middle(), to.Len()
	left := r.subtree(tree.Span{Lo: s.Lo, Hi: mid}, known, to, free, op)
	right := r.subtree(tree.Span{Lo: mid, Hi: s.Hi}, known, free.Part(0, n), free.Part(n, free.Len()), op)
	r.reducer.Sources = append(r.reducer.Sources[:0], left, right)
	r.reducer.Reduce(to, op)
	clear(r.reducer.Sources)
	return to
}
