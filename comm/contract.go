package comm

import (
	"context"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// Group is one rank's handle of a process group. Its collectives never block: each returns a [Work],
// whose Wait reports every problem. See [transport.Group] for the methods.
type Group = transport.Group

// Work is an operation in flight. See [transport.Work].
type Work = transport.Work

// Allocator is implemented by groups whose ranks can reach each other's memory. See [transport.Allocator].
type Allocator = transport.Allocator

// Detached is the color of a group that does not fail with the group it is split from: not if that
// group is aborted, its ranks disagree or one of them times out. It fails only if a rank is lost,
// leaves, or fails in the detached group. Groups over NCCL and MPI fail with their parents whatever
// their color.
const Detached = transport.Detached

// Buffer is a typed, contiguous piece of memory with an optional label, made by [Of]. See [transport.Buffer].
type Buffer = transport.Buffer

// DType is the element type of a [Buffer]. The zero value is no type.
type DType = transport.DType

// The element types that collectives move.
const (
	Float32  = transport.Float32
	Float64  = transport.Float64
	Int32    = transport.Int32
	Int64    = transport.Int64
	Uint8    = transport.Uint8
	BFloat16 = transport.BFloat16 // of Go type [BF16]
	Float16  = transport.Float16  // of Go type [F16]
)

// Elem are the Go types a [Buffer] can hold.
type Elem = transport.Elem

// BF16 is a bfloat16: the upper half of a float32. F16 is a binary16 of IEEE 754. Both are types to
// store and move bits: their method Float32 returns the value, and [Widen] and [Narrow] convert
// slices. Reductions calculate in float32 and round once.
type (
	BF16 = transport.BF16
	F16  = transport.F16
)

// Widen sets elements of dst to the values of elements of src, exactly. Like copy it converts as
// many as both have, and returns their number.
func Widen[T BF16 | F16](dst []float32, src []T) int { return transport.Widen(dst, src) }

// Narrow rounds elements of src to elements of dst: to nearest, ties to even. Like copy it converts
// as many as both have, and returns their number.
func Narrow[T BF16 | F16](dst []T, src []float32) int { return transport.Narrow(dst, src) }

// Of returns a Buffer of the elements of s, which shares their memory.
func Of[T Elem](s []T) Buffer { return transport.Of(s) }

// Slice returns the memory of b as a slice of T, without a copy. It fails if T is not the element
// type of b, or b is device memory.
func Slice[T Elem](b Buffer) ([]T, error) { return transport.Slice[T](b) }

// Op is the operator of a reduction. The zero value is Sum.
type Op = transport.Op

// The operators. Float Sum and Avg follow the canonical tree order of the
// package; Max and Min are NaN where any rank has NaN. Floats of 16 bits are
// summed and averaged in float32 and rounded once, at the end. Integer sums wrap
// around, and integers have no Avg.
const (
	Sum = transport.Sum
	Avg = transport.Avg // Sum times 1/Size
	Max = transport.Max
	Min = transport.Min
)

// The errors that operations wrap, so that callers can branch on them.
var (
	// ErrClosed says that a rank that the operation needs has closed its handle.
	ErrClosed = transport.ErrClosed
	// ErrInvalid says that the operation has bad arguments.
	ErrInvalid = transport.ErrInvalid
	// ErrTimeout says that the operation made no progress within the time limit of the group.
	ErrTimeout = transport.ErrTimeout
	// ErrLost says that the process of a rank that the operation needs has ended, or can no longer
	// be reached, without closing its handle.
	ErrLost = transport.ErrLost
	// ErrDamaged says that a checksum has detected a change of data between two ranks. See
	// [Checksums].
	ErrDamaged = transport.ErrDamaged
)

// RankError says that a group failed because of one rank: it aborted, closed, gave up waiting, made
// an invalid call, or died. All ranks of the group get the same error, including that rank.
type RankError = transport.RankError

// MismatchError says that two ranks made different calls where the same call was due. All ranks of
// the group get the same error.
type MismatchError = transport.MismatchError

// Status is the flight record of one rank: its latest operations in a group. See
// [transport.Status].
type Status = transport.Status

// Report asks every rank of g, itself included, for its latest operations in g, and returns the
// answers by rank. It is not a collective: one rank may call it alone, at any time until it closes
// g, even after the group has failed. Ranks that are dead, have left or do not answer before ctx
// ends have Err set. Report returns an error for groups that keep no flight record.
func Report(ctx context.Context, g Group) ([]Status, error) { return transport.Report(ctx, g) }
