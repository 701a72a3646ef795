package transport

import (
	"fmt"
	"sync"

	"github.com/gofsdp/gofsdp/comm/internal/tree"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Reduce writes the reduction of srcs to dst, all of one element type and length, in the
// canonical order; dst may be one of srcs. Avg divides the sum by n, the number of ranks
// whose contributions srcs contain.
func Reduce(dst Buffer, srcs []Buffer, op Op, n int) error {
	for i, s := range srcs {
		if s.dtype != dst.dtype || s.len != dst.len {
			return fmt.Errorf("%w: reducing into %v: source %d is %v, want the same type and length", ErrInvalid, dst, i, s)
		}
	}
	if !dst.dtype.valid() || len(srcs) == 0 || op > Min || n < 1 || op == Avg && !dst.dtype.IsFloat() {
		return fmt.Errorf("%w: %v of %d sources of %d ranks into %v: want at least one source and rank, and floats for an average", ErrInvalid, op, len(srcs), n, dst)
	}
	r := reducers.Get().(*Reducer)
	defer reducers.Put(r)
	r.Sources = append(r.Sources[:0], srcs...)
	r.ReduceScaled(dst, op, n)
	clear(r.Sources)
	return nil
}

var reducers = sync.Pool{New: func() any { return new(Reducer) }}

// Reducer holds the lists and the scratch memory of reductions, so that none is
// allocated in steady state. The zero value is ready to use, by one goroutine at a
// time. The caller sets Sources, at least one, and clears them afterwards. The
// methods check nothing; the function [Reduce] does.
type Reducer struct {
	Sources []Buffer    // same type and length, one per rank or span
	ranks   []tree.Span // each rank for itself
	f32     scratch[float32]
	f64     scratch[float64]
}

// Reduce writes op over r.Sources to dst, which may alias any of them exactly. Each
// element depends only on the same element of the sources: cutting a buffer in other
// places gives the same bits.
func (r *Reducer) Reduce(dst Buffer, op Op) {
	r.ReduceScaled(dst, op, len(r.Sources))
}

// ReduceScaled is Reduce for sources that are themselves sums, of n ranks all together:
// Avg multiplies by 1/n. The sums before it are reductions with Sum.
func (r *Reducer) ReduceScaled(dst Buffer, op Op, n int) {
	for i := len(r.ranks); i < len(r.Sources); i++ {
		r.ranks = append(r.ranks, tree.Span{Lo: i, Hi: i + 1})
	}
	r.ReduceSpans(dst, op, n, r.ranks[:len(r.Sources)])
}

// ReduceSpans is ReduceScaled for sources that are sums of spans, of n ranks all
// together. If dst is of 16-bit floats, sources may be of float32. Sums of several ranks
// must be, because only the last one is rounded. Such a sum is a dst of float32 whose
// sources are 16-bit floats; it is not scaled.
func (r *Reducer) ReduceSpans(dst Buffer, op Op, n int, spans []tree.Span) {
	switch dst.dtype {
	case Float32:
		switch r.Sources[0].dtype {
		case BFloat16:
			sumHalves[BF16](r, View[float32](dst), op, spans)
		case Float16:
			sumHalves[F16](r, View[float32](dst), op, spans)
		default:
			reduceFloat(&r.f32, View[float32](dst), r.Sources, op, n, spans)
		}
	case Float64:
		reduceFloat(&r.f64, View[float64](dst), r.Sources, op, n, spans)
	case Int32:
		fold(View[int32](dst), r.Sources, op)
	case Int64:
		fold(View[int64](dst), r.Sources, op)
	case Uint8:
		fold(View[uint8](dst), r.Sources, op)
	case BFloat16:
		reduceHalf[BF16](r, dst, op, n, spans)
	case Float16:
		reduceHalf[F16](r, dst, op, n, spans)
	}
}

// number are the types with Go's own arithmetic.
type number interface {
	~float32 | ~float64 | ~int32 | ~int64 | ~uint8
}

// reduceFloat sums in the canonical tree order.
func reduceFloat[T float32 | float64](s *scratch[T], dst []T, srcs []Buffer, op Op, n int, spans []tree.Span) {
	scale := T(1)
	if op == Avg {
		scale /= T(n)
	}
	switch {
	case op == Max || op == Min:
		fold(dst, srcs, op)
	case !even(spans):
		sumUneven(s, dst, srcs, spans, scale)
	default:
		s.list = s.list[:0]
		for _, src := range srcs {
			s.list = append(s.list, View[T](src))
		}
		vec.TreeSum(dst, s.list, scale)
		clear(s.list) // the memory is the caller's, do not keep it alive
	}
}

// fold reduces with an operator whose result does not depend on the order. It gathers the
// result outside of dst, block by block, because dst may be any source.
func fold[T number](dst []T, srcs []Buffer, op Op) {
	if len(dst) <= 4 { // clearing a large block would take longer than all the rest
		var block [4]T
		foldBlocks(dst, srcs, op, block[:])
		return
	}
	var block [256]T
	foldBlocks(dst, srcs, op, block[:])
}

func foldBlocks[T number](dst []T, srcs []Buffer, op Op, block []T) {
	for lo := 0; lo < len(dst); lo += len(block) {
		acc := block[:min(len(block), len(dst)-lo)]
		copy(acc, View[T](srcs[0])[lo:])
		for _, src := range srcs[1:] {
			combine(acc, View[T](src)[lo:lo+len(acc)], op)
		}
		copy(dst[lo:], acc)
	}
}

// combine sets acc to op(acc, x), element by element.
func combine[T number](acc, x []T, op Op) {
	switch op {
	case Max:
		for i, v := range x {
			acc[i] = max(acc[i], v)
		}
	case Min:
		for i, v := range x {
			acc[i] = min(acc[i], v)
		}
	default:
		for i, v := range x {
			acc[i] += v
		}
	}
}

// reduceHalf reduces in float32 and rounds once. A block of every source is read
// before the block of dst is written, so dst may be any source.
func reduceHalf[T half.Float](r *Reducer, dst Buffer, op Op, n int, spans []tree.Span) {
	for lo := 0; lo < dst.len; lo += wideBlock {
		hi := min(lo+wideBlock, dst.len)
		acc := r.f32.block(0, hi-lo)
		reduceWidened[T](r, acc, lo, op, spans)
		if op == Avg {
			vec.Scale(acc, 1/float32(n))
		}
		half.Narrow(View[T](dst)[lo:hi], acc)
	}
}

// sumHalves reduces sources of 16-bit floats and does not round. It does not scale either.
func sumHalves[T half.Float](r *Reducer, dst []float32, op Op, spans []tree.Span) {
	for lo := 0; lo < len(dst); lo += wideBlock {
		reduceWidened[T](r, dst[lo:min(lo+wideBlock, len(dst))], lo, op, spans)
	}
}

// reduceWidened sets acc, which has wideBlock elements or fewer, to op over the elements
// of the sources from number lo on.
func reduceWidened[T half.Float](r *Reducer, acc []float32, lo int, op Op, spans []tree.Span) {
	hi := lo + len(acc)
	load := func(src Buffer, block int) []float32 {
		if src.dtype == Float32 {
			return View[float32](src)[lo:hi]
		}
		x := r.f32.block(block, hi-lo)
		half.Widen(x, View[T](src)[lo:])
		return x
	}
	if op == Max || op == Min {
		copy(acc, load(r.Sources[0], 1))
		for _, src := range r.Sources[1:] {
			combine(acc, load(src, 1), op)
		}
		return
	}
	r.f32.sum(acc, r.Sources, spans, 1, load)
}
