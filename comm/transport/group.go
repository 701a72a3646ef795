package transport

import (
	"context"
	"fmt"
	"math"
)

// Op is the operator of a reduction. The zero value is Sum.
type Op uint8

// The operators. Float Sum and Avg follow the canonical tree order of the
// package; Max and Min are NaN where any rank has NaN. Floats of 16 bits are
// summed and averaged in float32 and rounded once, at the end. Integer sums wrap
// around, and integers have no Avg.
const (
	Sum Op = iota
	Avg    // Sum times 1/Size
	Max
	Min
)

var opNames = [...]string{"sum", "avg", "max", "min"}

// String returns the lower-case name.
func (op Op) String() string {
	if int(op) >= len(opNames) {
		return fmt.Sprintf("Op(%d)", uint8(op))
	}
	return opNames[op]
}

// Group is one rank's handle of a process group.
//
// The six collectives never block and report every problem, including bad arguments,
// through Wait. Buffers belong to the group from the call until Wait returns, with
// or without an error: until then the caller neither reads dst nor writes src.
// Buffers of different ranks must not overlap. A Work that is never waited for keeps
// its buffers until Close.
//
// Methods may be called from any goroutine. But the order of the calls matches them
// with the other ranks, so one goroutine per rank normally issues.
type Group interface {
	// Rank is this rank's index, 0 <= Rank < Size.
	Rank() int
	// Size is the number of ranks.
	Size() int

	// AllGather concatenates the src of all ranks, in rank order, in every dst.
	// dst.Len is Size*src.Len. In place: src may be the range
	// [Rank*src.Len, (Rank+1)*src.Len) of dst; no other overlap is legal.
	AllGather(dst, src Buffer) Work
	// ReduceScatter reduces the src of all ranks and leaves part Rank of the
	// result in dst. src.Len is Size*dst.Len. In place: dst may be the range
	// [Rank*dst.Len, (Rank+1)*dst.Len) of src; no other overlap is legal. Out of
	// place, src is left as it was.
	ReduceScatter(dst, src Buffer, op Op) Work
	// AllReduce replaces buf on every rank by the reduction over all ranks.
	AllReduce(buf Buffer, op Op) Work
	// Broadcast copies the root's buf to all others. The root may finish before
	// others have called it, and another rank before all have.
	Broadcast(buf Buffer, root int) Work
	// Gather concatenates the src of all ranks, in rank order, in the root's dst.
	// counts[r] is the number of elements of rank r, the same list on every rank:
	// src.Len is counts[Rank], and dst.Len on the root is their sum. counts belongs
	// to the group until Wait returns, like the buffers. The label is the label of
	// src. Only the root uses dst, which may be the zero Buffer elsewhere. In place:
	// the root's src may be its own range of dst; no other overlap is legal.
	//
	// The other ranks send and receive nothing else, and need no memory except for
	// the transport's copies of src. They may finish before others have called it.
	Gather(dst, src Buffer, counts []int, root int) Work

	// AllToAll sends part r of src to rank r, and leaves rank r's part for this rank
	// in part r of dst. src and dst have equal lengths, a multiple of Size, and do
	// not overlap. src is left as it was.
	AllToAll(dst, src Buffer) Work

	// Barrier returns nil once every rank has called it. It is a collective and
	// counts in the order. Its errors are the errors of Wait.
	Barrier(ctx context.Context) error
	// Split is a collective that forms one new group per color >= 0, its ranks
	// ordered by key, then by rank here. A rank with color < 0 gets nil. The new
	// group is closed with this rank's handle of g, and fails when g fails, unless its
	// color is [Detached].
	Split(ctx context.Context, color, key int) (Group, error)

	// Abort fails the group on every rank: pending and later operations return a
	// *RankError that names this rank and wraps err. A group that has already failed
	// keeps its first error.
	Abort(err error)
	// Close makes this rank leave. Operations already issued by every rank complete
	// before it returns. All others fail with a *RankError that names this rank and
	// wraps ErrClosed, on every rank. Exception: other processes may complete an
	// operation with the data that this rank has contributed. Close returns a
	// *MismatchError that no operation has returned. It is idempotent.
	Close() error
}

// Detached is the color of a group that does not fail with the group it is split
// from: not if that group is aborted, its ranks disagree or one of them is late. It
// fails only if a rank is lost, leaves or fails in the group itself. So operations
// begun in it can finish after a failure that all ranks have survived. Groups over
// NCCL and MPI fail with their parents whatever their color.
const Detached = math.MaxInt32

// WorldName names the group that all ranks are in.
const WorldName = "world"

// Work is an operation in flight.
type Work interface {
	// Wait returns nil when the operation is complete on this rank: dst holds the
	// result, src is free again. It may be called any number of times, from any
	// goroutine, and returns the same result. Works may be waited for in any order.
	//
	// If ctx ends first, Wait returns a *RankError that names this rank and wraps
	// the cause of ctx, and the group fails with it on every rank. If ranks are
	// processes, others may still complete that one operation with the data that
	// this rank had contributed before; the next one fails.
	Wait(ctx context.Context) error
}
