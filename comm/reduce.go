package comm

import (
	"fmt"
	"sync"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Reduce writes the reduction of srcs to dst, all of one element type and
// length, in the canonical order that the groups of this package use; dst may be
// one of srcs. Avg divides the sum by n, the number of ranks whose contributions
// srcs hold between them. It is for engines outside of this package.
func Reduce(dst Buffer, srcs []Buffer, op Op, n int) error {
	for i, s := range srcs {
		if s.dtype != dst.dtype || s.len != dst.len {
			return fmt.Errorf("%w: reducing %v with source %d, %v", ErrInvalid, dst, i, s)
		}
	}
	if !dst.dtype.valid() || len(srcs) == 0 || op > Min || n < 1 || op == Avg && !dst.dtype.float() {
		return fmt.Errorf("%w: %v of %d sources of %d ranks to %v", ErrInvalid, op, len(srcs), n, dst)
	}
	r := reducers.Get().(*reducer)
	defer reducers.Put(r)
	r.srcs = append(r.srcs[:0], srcs...)
	r.reduceScaled(dst, op, n)
	clear(r.srcs)
	return nil
}

var reducers = sync.Pool{New: func() any { return new(reducer) }}

// reducer holds the lists and the scratch memory that one reduction at a time
// needs, so that none is allocated in steady state.
type reducer struct {
	srcs []Buffer // same type and length, one per rank
	f32  [][]float32
	f64  [][]float64
	wide [][]float32 // blocks of 16-bit floats, widened
}

// reduce writes op over r.srcs to dst, which may alias any of them exactly. Each
// element depends only on the same element of the sources: cutting a buffer in
// other places gives the same bits.
func (r *reducer) reduce(dst Buffer, op Op) { r.reduceScaled(dst, op, len(r.srcs)) }

// reduceScaled is reduce for sources that are themselves sums, of n ranks all
// together: Avg multiplies by 1/n. The sums that lead there are reductions with Sum.
func (r *reducer) reduceScaled(dst Buffer, op Op, n int) {
	switch dst.dtype {
	case Float32:
		r.f32 = reduceFloat(view[float32](dst), r.srcs, op, n, r.f32[:0])
	case Float64:
		r.f64 = reduceFloat(view[float64](dst), r.srcs, op, n, r.f64[:0])
	case Int32:
		fold(view[int32](dst), r.srcs, op)
	case Int64:
		fold(view[int64](dst), r.srcs, op)
	case Uint8:
		fold(view[uint8](dst), r.srcs, op)
	case BFloat16:
		reduceHalf[BF16](r, dst, op, n)
	case Float16:
		reduceHalf[F16](r, dst, op, n)
	}
}

// reduceFloat sums in the canonical tree order; list is scratch, returned for reuse.
func reduceFloat[T float32 | float64](dst []T, srcs []Buffer, op Op, n int, list [][]T) [][]T {
	if op == Max || op == Min {
		fold(dst, srcs, op)
		return list
	}
	for _, s := range srcs {
		list = append(list, view[T](s))
	}
	scale := T(1)
	if op == Avg {
		scale /= T(n)
	}
	vec.TreeSum(dst, list, scale)
	clear(list) // the memory is the caller's, do not keep it alive
	return list
}

// fold reduces with an operator whose result does not depend on the order. It
// gathers the result beside dst, block by block, as dst may be any source.
func fold[T number](dst []T, srcs []Buffer, op Op) {
	var block [256]T
	for lo := 0; lo < len(dst); lo += len(block) {
		acc := block[:min(len(block), len(dst)-lo)]
		copy(acc, view[T](srcs[0])[lo:])
		for _, src := range srcs[1:] {
			combine(acc, view[T](src)[lo:lo+len(acc)], op)
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

const (
	// Elements of 16-bit floats that are widened at a time. Eight sources and
	// their sum are 18 KiB, which the innermost cache holds.
	wideBlock = 512
	// Sources that are widened at a time: as many as TreeSum adds in one pass.
	wideSources = 8
)

// reduceHalf reduces in float32 and rounds once. A block of every source is read
// before the block of dst is written, so dst may be any source.
func reduceHalf[T half.Float](r *reducer, dst Buffer, op Op, n int) {
	for lo := 0; lo < dst.len; lo += wideBlock {
		hi := min(lo+wideBlock, dst.len)
		acc := r.block(0, hi-lo)
		switch op {
		case Max, Min:
			foldHalf[T](r, acc, lo, op)
		default:
			treeHalf[T](r, acc, r.srcs, lo, 1)
			if op == Avg {
				vec.Scale(acc, 1/float32(n))
			}
		}
		half.Narrow(view[T](dst)[lo:hi], acc)
	}
}

// foldHalf sets acc to op over the elements of all sources from lo.
func foldHalf[T half.Float](r *reducer, acc []float32, lo int, op Op) {
	half.Widen(acc, view[T](r.srcs[0])[lo:])
	for _, src := range r.srcs[1:] {
		x := r.block(1, len(acc))
		half.Widen(x, view[T](src)[lo:])
		combine(acc, x, op)
	}
}

// treeHalf sets acc to the canonical sum of the elements of srcs from lo, using
// the blocks of scratch from number free on. The tree of more than eight sources
// only splits at multiples of eight, so every leaf is one call of TreeSum.
func treeHalf[T half.Float](r *reducer, acc []float32, srcs []Buffer, lo, free int) {
	if mid := wideSources; len(srcs) > mid {
		for 2*mid < len(srcs) {
			mid *= 2
		}
		treeHalf[T](r, acc, srcs[:mid], lo, free)
		right := r.block(free, len(acc))
		treeHalf[T](r, right, srcs[mid:], lo, free+1)
		vec.Accumulate(acc, right)
		return
	}
	r.f32 = r.f32[:0]
	for i, src := range srcs {
		x := r.block(free+i, len(acc))
		half.Widen(x, view[T](src)[lo:])
		r.f32 = append(r.f32, x)
	}
	vec.TreeSum(acc, r.f32, 1)
}

// block returns the first n elements of block i of the scratch.
func (r *reducer) block(i, n int) []float32 {
	for len(r.wide) <= i {
		r.wide = append(r.wide, make([]float32, wideBlock))
	}
	return r.wide[i][:n]
}
