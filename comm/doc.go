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
// [Run] is the usual entry point: it starts n goroutine ranks or, in a process
// that a launcher has started, is the one rank that the process stands for.
// [Local] returns the bare handles of goroutine ranks, [FromEnv] and [Connect]
// the handle of a process.
//
// # The collectives
//
// With N ranks, shards of m elements, and | marking the rank boundaries:
//
//	                       before            after
//	AllGather      rank r: src = s_r  [m]    dst = s_0 | s_1 | … | s_{N-1} [N·m] on every rank
//	ReduceScatter  rank r: src = a_r  [N·m]  dst = op over q of a_q[r·m:(r+1)·m] [m]
//	AllReduce      rank r: buf = a_r  [m]    buf = op over q of a_q [m] on every rank
//	Broadcast      root:   buf = a    [m]    buf = a [m] on every rank
//	Gather         rank r: src = s_r  [m_r]  dst = s_0 | s_1 | … | s_{N-1} [Σ m_r] on the root
//	AllToAll       rank r: src = a_r  [N·m]  dst = a_0[r·m:(r+1)·m] | … | a_{N-1}[r·m:(r+1)·m] [N·m]
//
// Gather is for state that one rank writes to a file: shards may have different
// lengths, and ranks that only send need no memory for it. AllToAll is for sums that
// the caller takes by itself, such as those of numbers in a format of its own.
//
// All-reduce is reduce-scatter followed by all-gather; ZeRO-3 keeps the two
// halves separate and holds only a shard in between (Rajbhandari et al.,
// https://arxiv.org/abs/1910.02054).
//
// # Invariants
//
//   - One order. Collectives of a group are numbered #1, #2, … by the order in
//     which a rank issues them, and #k of one rank meets #k of the others.
//     Every rank must issue the same kind, element type, length, operator, root,
//     label and list of counts; a difference is a [MismatchError] on every rank,
//     never wrong numbers and never a hang. Labels are compared so that two layers
//     of equal size cannot be swapped silently. Broadcasts and gathers need not wait
//     for all ranks: of these it may be the error of a later collective, one of the
//     next 32 log2 N or so, or of Close. Ranks that close the group before another one
//     has noticed do not hear of it.
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
//
// # Groups of processes
//
// [Connect] makes every process one rank. The ranks meet at a small key-value
// store that rank 0 serves (or in a directory they all see), prove to each
// other that they know the job's secret, and keep control connections: one per
// pair of up to 16 ranks; of N ranks more, each to some 2 log2 N others. Over
// these travels what is news rather than data: that a group failed and why,
// that a rank left, what a rank was doing last. The end of a control connection
// is how the death of a process is known, at once.
//
//	               ranks of one host                  ranks of several hosts
//	control        unix socket                        TCP, optionally TLS
//	data           shared memory                      TCP, optionally TLS
//
// Inside a host, collectives work as in a process, on records and buffers in
// memory that all ranks map: whoever waits executes them, for every rank. Buffers
// from the group's [Allocator] are read and written in place, one copy per byte;
// any other memory is staged through such buffers. The memory has no name in any
// file system, so nothing is left of it when a process is killed. If one rank of a
// host cannot map it, as under ulimit -v, all ranks of the host use sockets instead.
//
// Between hosts every group has connections of its own: between two ranks one, or one over each
// interface in [Config.Listen]. Frames carry the group,
// the number of the collective and its [transport.Signature], go straight from the caller's
// buffer to the wire and from there into the destination, and are summed in the
// canonical order by the rank that owns the result. Of 64 ranks or more, large sums are taken along
// the tree: a rank connects to 15 + log2(N/16) others, more in short last subtrees, and what it
// stages does not grow with N. Where hosts have several ranks,
// which follow each other, collectives are hierarchical: a byte of a gather or of a
// broadcast crosses to a host once. Of a sum a host sends one part for each largest
// subtree of the canonical tree within it: one, if all hosts have the same power of two
// of ranks. Of 16-bit floats they are float32, so two ranks send what they have.
//
// # Failures
//
// Whatever happens to a rank, every other one returns an error that names it:
//
//	process killed         [ErrLost], at once
//	host down, cut off     [ErrLost], after 20 s without an answer
//	connection reset       [ErrLost], at once or when it is used, see below
//	bytes damaged          [ErrDamaged], when they are read, or [ErrTimeout]
//	stopped, hangs         [ErrTimeout], after [Config].Timeout without progress
//	different calls        [MismatchError], as soon as the calls meet
//	Close, Abort, cancel   a [RankError] with the cause, at once
//
// That a rank is alive is what control connections say. Each of them is read all the time, and a
// host that is silent is asked for an answer, whether collectives need the two ranks or not. So all
// ranks hear of one that is dead or cut off, also those that have no connection to it. Data
// connections say nothing of the kind: one that breaks between two ranks that live fails the
// collective that next needs it, and nothing where none does.
//
// An operation that is called later fails then. On top of the times above come a second in which a
// broken connection waits for its cause to become known, and half a second in which a rank that has
// run out of time asks all others what they are doing. One asks, and the error of all says what it
// has found.
//
// A group that has failed stays failed; the groups it was split from go on. What
// to do is for the program to decide: usually to end, and have the launcher start
// it again from its last checkpoint. [Report] tells what every rank was doing.
//
// Package transport has the contract for authors of other transports.
package comm
