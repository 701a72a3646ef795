package kernel

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Rotary says which columns of a row [Rope] rotates, and how they are paired. The row begins with
// Heads heads of HeadDim columns. The first Dims columns of each head are rotated; Dims is even.
type Rotary struct {
	Heads, HeadDim, Dims int
	Interleaved          bool // columns 2i and 2i+1 are a pair; else columns i and i + Dims/2
}

// Rope rotates pairs of columns of x [n, d] by angles that depend on the row's position: rotary
// embeddings (Su et al. 2021, https://arxiv.org/abs/2104.09864). Row p of table [rows, Dims] holds
// the cosines of the Dims/2 angles of position p, followed by the sines. positions [n] are in [0,
// rows), see [CheckIndices]. If positions is nil, the rows have positions first, first+1, … modulo
// t. inverse rotates back, which is the gradient. y may be x.
func Rope[T Float](y, x, table []T, positions []int, n, d, first, t int, r Rotary, inverse bool) {
	check("Rope", "x", len(x), n*d)
	check("Rope", "y", len(y), n*d)
	for i := range n {
		p := (first + i) % t
		if positions != nil {
			p = positions[i]
		}
		row, from := y[i*d:(i+1)*d], x[i*d:(i+1)*d]
		angles := table[p*r.Dims:][:r.Dims]
		for h := range r.Heads {
			lo, hi := h*r.HeadDim, (h+1)*r.HeadDim
			turn(row[lo:][:r.Dims], from[lo:][:r.Dims], angles, r.Interleaved, inverse)
			copy(row[lo+r.Dims:hi], from[lo+r.Dims:hi])
		}
		copy(row[r.Heads*r.HeadDim:], from[r.Heads*r.HeadDim:])
	}
}

// turn rotates the columns x of a head.
func turn[T Float](y, x, angles []T, interleaved, inverse bool) {
	k := len(x) / 2
	cos, sin := angles[:k], angles[k:]
	switch {
	case interleaved:
		turnNeighbours(y, x, cos, sin, inverse)
	case inverse:
		vec.Rotate(y[k:], y[:k], x[k:], x[:k], cos, sin)
	default:
		vec.Rotate(y[:k], y[k:], x[:k], x[k:], cos, sin)
	}
}

func turnNeighbours[T Float](y, x, cos, sin []T, inverse bool) {
	sign := T(1)
	if inverse {
		sign = -1
	}
	to, from := pairs(y), pairs(x)
	to, from, sin = to[:len(cos)], from[:len(cos)], sin[:len(cos)]
	for i, c := range cos {
		s, p := sign*sin[i], from[i]
		to[i] = [2]T{p[0]*c - p[1]*s, p[0]*s + p[1]*c}
	}
}

// pairs returns the elements of x as pairs of neighbours.
func pairs[T Float](x []T) [][2]T {
	return unsafe.Slice((*[2]T)(unsafe.Pointer(unsafe.SliceData(x))), len(x)/2)
}
