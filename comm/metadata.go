package comm

import (
	"context"
	"fmt"
	"slices"
)

// GatherBytes returns the bytes of every rank, by rank, on every rank. They may
// have any length, but all are padded to the longest for the transfer, so it
// suits small data: names, shapes, messages. It is a collective.
func GatherBytes(ctx context.Context, g Group, mine []byte) ([][]byte, error) {
	n := g.Size()
	lengths := make([]int64, n)
	own := []int64{int64(len(mine))}
	if err := g.AllGather(Of(lengths).Named("lengths of bytes"), Of(own).Named("lengths of bytes")).Wait(ctx); err != nil {
		return nil, err
	}
	longest := int(slices.Max(lengths))
	padded, all := make([]byte, longest), make([]byte, n*longest)
	copy(padded, mine)
	if err := g.AllGather(Of(all).Named("bytes"), Of(padded).Named("bytes")).Wait(ctx); err != nil {
		return nil, err
	}
	parts := make([][]byte, n)
	for r := range parts {
		end := r*longest + int(lengths[r])
		parts[r] = all[r*longest : end : end]
	}
	return parts, nil
}

// AllGatherV is an all-gather of shards of different lengths, in place: the
// counts[r] elements of rank r follow the elements of the ranks before it in dst,
// on rank r before and on every rank after. counts are the same on every rank and
// add up to dst.Len.
//
// Nothing is padded or copied: it is a broadcast from every rank that has
// elements, all in flight together, under the label of dst.
func AllGatherV(g Group, dst Buffer, counts []int) Work {
	if reason := countsFault(dst, counts, g.Size()); reason != "" {
		g.Abort(fmt.Errorf("%w: all-gather %v with counts %v: %s", ErrInvalid, dst, counts, reason))
		return g.AllReduce(Of([]byte{}), Max) // fails, with the failure of the group
	}
	ws := make(works, 0, len(counts))
	at := 0
	for root, count := range counts {
		// The last broadcast is issued even if it is empty: then no list of
		// counts begins with another, and ranks that disagree always clash.
		if count > 0 || root == len(counts)-1 {
			ws = append(ws, g.Broadcast(dst.Part(at, at+count), root))
		}
		at += count
	}
	return ws
}

// countsFault describes the error in the arguments of AllGatherV, "" if there is
// none.
func countsFault(dst Buffer, counts []int, n int) string {
	if dst.DType().Size() == 0 {
		return "the buffer has no element type (zero Buffer, or Slice out of range)"
	}
	if len(counts) != n {
		return fmt.Sprintf("%d counts for %d ranks, want one per rank", len(counts), n)
	}
	left := dst.Len()
	for r, count := range counts {
		if count < 0 || count > left {
			return fmt.Sprintf("count %d of rank %d is negative or more than the remaining %d elements", count, r, left)
		}
		left -= count
	}
	if left > 0 {
		return fmt.Sprintf("the buffer has %d elements, the counts add up to %d", dst.Len(), dst.Len()-left)
	}
	return ""
}

// works are operations that the caller sees as one.
type works []Work

// Wait waits for all operations, even after a failure, because the buffers are in
// use until then. It returns the first error in the order of issue.
func (ws works) Wait(ctx context.Context) (first error) {
	for _, w := range ws {
		err := w.Wait(ctx)
		if first == nil {
			first = err
		}
	}
	return first
}
