package comm

import "github.com/gofsdp/gofsdp/internal/kernel/vec"

// reducer holds the lists that one reduction at a time needs, so that none is
// allocated in steady state.
type reducer struct {
	srcs []Buffer // same type and length, one per rank
	f32  [][]float32
	f64  [][]float64
}

// reduce writes op over r.srcs to dst, which may alias any of them exactly. Each
// element depends only on the same element of the sources: cutting a buffer in
// other places gives the same bits.
func (r *reducer) reduce(dst Buffer, op Op) {
	switch dst.dtype {
	case Float32:
		r.f32 = reduceFloat(view[float32](dst), r.srcs, op, r.f32[:0])
	case Float64:
		r.f64 = reduceFloat(view[float64](dst), r.srcs, op, r.f64[:0])
	case Int32:
		fold(view[int32](dst), r.srcs, op)
	case Int64:
		fold(view[int64](dst), r.srcs, op)
	case Uint8:
		fold(view[uint8](dst), r.srcs, op)
	}
}

// reduceFloat sums in the canonical tree order; list is scratch, returned for reuse.
func reduceFloat[T float32 | float64](dst []T, srcs []Buffer, op Op, list [][]T) [][]T {
	if op == Max || op == Min {
		fold(dst, srcs, op)
		return list
	}
	for _, s := range srcs {
		list = append(list, view[T](s))
	}
	scale := T(1)
	if op == Avg {
		scale /= T(len(srcs))
	}
	vec.TreeSum(dst, list, scale)
	clear(list) // the memory is the caller's, do not keep it alive
	return list
}

// fold reduces with an operator whose result does not depend on the order. It
// gathers the result beside dst, block by block, as dst may be any source.
func fold[T Elem](dst []T, srcs []Buffer, op Op) {
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
func combine[T Elem](acc, x []T, op Op) {
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
