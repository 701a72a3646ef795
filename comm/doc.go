// Package comm provides process groups: a fixed set of ranks that move and
// reduce flat buffers together.
//
// A [Group] is one rank's handle. The same program runs on every rank and
// issues the same collectives in the same order; each call returns a [Work] at
// once, and the buffers it names belong to the group until Wait returns:
//
//	w := g.AllGather(comm.Of(full).Named("h.3"), comm.Of(shard).Named("h.3"))
//	... compute something else ...
//	if err := w.Wait(ctx); err != nil { ... }   // full is complete, shard is free again
//
// [Run] starts n goroutine ranks and is the usual entry point; [Local] returns
// the bare handles.
//
// # The collectives
//
// With N ranks, shards of m elements, and | marking the rank boundaries:
//
//	            before                              after
//	AllGather      rank r: src = s_r        [m]     dst = s_0 | s_1 | … | s_{N-1}  [N·m] on every rank
//	ReduceScatter  rank r: src = a_r        [N·m]   dst = op over q of a_q[r·m:(r+1)·m]  [m]
//	AllReduce      rank r: buf = a_r        [m]     buf = op over q of a_q             [m] on every rank
//	Broadcast      root:   buf = a          [m]     buf = a                            [m] on every rank
//
// All-reduce is reduce-scatter followed by all-gather; ZeRO-3 keeps the two
// halves apart and holds only a shard in between (Rajbhandari et al.,
// https://arxiv.org/abs/1910.02054).
//
// # Invariants
//
//   - One order. Collectives of a group are numbered #1, #2, … by the order in
//     which a rank issues them, and #k of one rank meets #k of the others.
//     Every rank must issue the same kind, element type, length, operator, root
//     and label; a difference is a [MismatchError] on every rank, never wrong
//     numbers and never a hang. Labels are compared so that two layers of
//     equal size cannot be swapped silently.
//   - One sum. Reductions follow the balanced binary tree over the rank index,
//     sum(lo,hi) = sum(lo,mid) + sum(mid,hi) with mid-lo the largest power of
//     two below hi-lo, and Avg multiplies that sum by 1/N. Results therefore do
//     not depend on timing, chunking or transport, to the last bit.
//   - One failure. The first error of a group is sticky: everything pending or
//     issued later fails with it on every rank. It is a [RankError] that names
//     the rank it came from, or a [MismatchError] that names two.
//
// # In-process groups
//
// [Local] groups own no goroutine and no buffer. Issuing a collective writes a
// record; once every rank has written its part the operation is ready, and
// whoever waits for it executes it straight from source to destination memory.
// The work is cut into lanes (one per rank) and parts, claimed with atomic
// counters: a rank that waits early also does the share of the ranks that are
// still computing, and a rank that waits late finds its result in place.
//
//	rank 0  issue #7 ········ wait: lane 0, then what is left of lane 1
//	rank 1      issue #7 ──── compute ──── wait: returns at once
//	                  ^ ready
//
// An operation that every rank has issued always completes, even when the group
// fails meanwhile; one that some rank never issued touches no buffer.
package comm
