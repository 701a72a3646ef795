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
// [Run] is the usual entry point. It starts n goroutine ranks or, in a process
// that a launcher has started, runs the one rank of the process. [Local]
// returns the bare handles of goroutine ranks; [FromEnv] and [Connect] return
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
// lengths, and ranks that only send need no memory for it. AllToAll is for sums
// that the caller computes itself, such as sums of numbers in its own format.
//
// All-reduce is reduce-scatter followed by all-gather; ZeRO-3 keeps the two
// halves separate and holds only a shard in between (Rajbhandari et al.,
// https://arxiv.org/abs/1910.02054).
//
// # Invariants
//
//   - One order. Collectives of a group are numbered #1, #2, … in the order in
//     which a rank issues them, and #k of one rank meets #k of the others.
//     Every rank must issue the same kind, element type, length, operator, root,
//     label and list of counts; a difference is a [MismatchError] on every rank,
//     never wrong numbers and never a hang. Labels are compared so that two layers
//     of equal size cannot be swapped silently. Broadcasts and gathers need not wait
//     for all ranks: their mismatch may be the error of a later collective, one of
//     the next 32 log2 N or so, or of Close. Ranks that close the group before
//     another rank has noticed the mismatch do not get the error.
//   - One sum. Reductions follow the balanced binary tree over the rank index,
//     sum(lo,hi) = sum(lo,mid) + sum(mid,hi) with mid-lo the largest power of
//     two below hi-lo, and Avg multiplies that sum by 1/N. Results therefore do
//     not depend on timing, chunking or transport, to the last bit.
//   - One failure. The first error of a group is sticky: all pending and later
//     operations fail with it on every rank. It is a [RankError] that names
//     the rank it came from, or a [MismatchError] that names two.
//
// # In-process groups
//
// [Local] groups own no goroutine and no buffer. Issuing a collective writes a
// record. Once every rank has written its part, the operation is ready, and a
// rank that waits for it executes it straight from source to destination
// memory. The work is cut into lanes (one per rank) and parts, claimed with
// atomic counters: a rank that waits early also does the share of the ranks
// that are still computing, and a rank that waits late finds its result in
// place.
//
//	rank 0  issue #7 ········ wait: lane 0, then the rest of lane 1
//	rank 1      issue #7 ──── compute ──── wait: returns at once
//	                  ^ ready
//
// An operation that every rank has issued always completes, even if the group
// fails meanwhile. An operation that some rank never issued touches no buffer.
//
// # Groups of processes
//
// [Connect] makes every process one rank. The ranks meet at a small key-value
// store that rank 0 serves (or in a directory they all see), prove to each
// other that they have the job's secret, and keep control connections: one per
// pair of up to 16 ranks, or from each of N ranks, if there are more, to about
// 2 log2 N others. Control connections carry news, not data: the failure of a
// group with its cause, the departure of a rank, the last operation of a rank.
// The end of a control connection reports the death of a process at once.
//
//	               ranks of one host                  ranks of several hosts
//	control        unix socket                        TCP, optionally TLS
//	data           shared memory                      TCP, optionally TLS
//
// Inside a host, collectives work as in a process, on records and buffers in
// memory that all ranks map: a rank that waits executes them, for every rank.
// Buffers from the group's [Allocator] are read and written in place, one copy
// per byte; other memory is staged through such buffers. The memory has no name
// in any file system, so nothing is left of it when a process is killed. If one
// rank of a host cannot map it, as under ulimit -v, all ranks of the host use
// sockets instead.
//
// Between hosts every group has its own connections: one between two ranks, or
// one over each interface in [Config.Listen]. Frames carry the group, the
// number of the collective and its [transport.Signature]. Payloads go straight
// from the caller's buffer to the wire and from there into the destination. The
// rank that owns a result sums it in the canonical order. With 64 ranks or more,
// large sums follow the tree: a rank connects to 15 + log2(N/16) others, more
// in short last subtrees, and its staging memory does not grow with N. If the
// ranks of every host have consecutive numbers, and some host has several,
// collectives are hierarchical: each byte of an all-gather or of a broadcast is
// sent to a host once. For a sum, a host sends one part for each largest subtree
// of the canonical tree within it: one, if all hosts have the same power of two
// of ranks. Partial sums of 16-bit floats are float32, so a subtree of two ranks
// sends its two contributions instead.
//
// # Failures
//
// Whatever happens to a rank, every other rank returns an error that names it:
//
//	process killed         [ErrLost], at once
//	host down, cut off     [ErrLost], after 20 s without an answer
//	connection reset       [ErrLost], at once or when it is used, see below
//	bytes damaged          [ErrDamaged], when they are read, or [ErrTimeout]
//	stopped, hangs         [ErrTimeout], after [Config].Timeout without progress
//	different calls        [MismatchError], as soon as the calls meet
//	Close, Abort, cancel   a [RankError] with the cause, at once
//
// Control connections show that a rank is alive. Each of them is read all the
// time, and a silent host is asked for an answer, whether collectives need the
// two ranks or not. So all ranks learn of a rank that is dead or cut off,
// including those without a connection to it. Data connections do not show
// this: if one breaks between two ranks that live, the collective that next
// needs it fails, and nothing fails if none does.
//
// An operation that is called later fails when it is called. Two delays add to
// the times above: a second in which a broken connection waits for its cause to
// become known, and half a second in which a rank that has timed out asks all
// others for their current operation. One rank asks, and the error of all ranks
// contains the answer.
//
// A group that has failed stays failed; the groups it was split from go on. The
// program decides what to do: it calls [Reconnect] for a group of the ranks that
// are left, or it ends, and the launcher starts it again from its last checkpoint.
// [Report] returns what every rank was doing.
//
// The contract for authors of other transports is in package transport.
package comm
