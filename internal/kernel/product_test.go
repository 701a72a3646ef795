package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawOrder draws an order of the axes of a tensor.
func drawOrder(t *rapid.T, rank int, ok func(Order) bool) Order {
	axes := make([]byte, rank)
	for i := range axes {
		axes[i] = byte(i)
	}
	return rapid.Custom(func(t *rapid.T) Order {
		return Order(rapid.Permutation(axes).Draw(t, "axes"))
	}).Filter(ok).Draw(t, "order")
}

// inMemory returns the shape in memory of what has dims when it is read in an order.
func inMemory(dims []int, o Order) Layout {
	shape := make([]int, len(dims))
	for i, n := range dims {
		shape[o.At(i)] = n
	}
	return Layout{shape, o}
}

func TestProduct(t *testing.T) { both(t, checkProduct[float32], checkProduct[float64]) }

// checkProduct compares products of matrices in any order of axes with the twin, computed by any
// number of threads.
func checkProduct[T Float](t *rapid.T) {
	src := newSource[T](t)
	lead := rapid.SliceOfN(rapid.IntRange(1, 3), 0, 3).Draw(t, "batch")
	m, n, k := rapid.IntRange(1, 40).Draw(t, "m"), rapid.IntRange(1, 40).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "k")
	rank := len(lead) + 2
	layout := func(rows, columns int) Layout {
		return inMemory(append(append([]int{}, lead...), rows, columns), drawOrder(t, rank, func(o Order) bool {
			return o.At(rank-1) == rank-1 || o.At(rank-2) == rank-1
		}))
	}
	al, bl, yl := layout(m, k), layout(k, n), layout(m, n)
	acc := rapid.Bool().Draw(t, "acc")
	a, b, y := src.normal(numel(al.Shape)), src.normal(numel(bl.Shape)), src.result(numel(yl.Shape), acc)
	want := wide(y)
	NaiveProduct(nil, want, wide(a), wide(b), yl, al, bl, acc)
	parts := rapid.IntRange(1, 4).Draw(t, "parts")
	for part := range parts {
		Product(&Context{part: part, parts: parts}, y, a, b, yl, al, bl, acc)
	}
	requireClose(t, "y", want, y)
}

func TestTranspose(t *testing.T) { both(t, checkTranspose[float32], checkTranspose[float64]) }

func checkTranspose[T Float](t *rapid.T) {
	shape := rapid.SliceOfN(rapid.SampledFrom([]int{1, 2, 3, 17, 33}), 0, 4).Draw(t, "shape")
	l := Layout{shape, drawOrder(t, len(shape), func(Order) bool { return true })}
	x := newSource[T](t).normal(numel(shape))
	want, y := garbage[float64](len(x)), garbage[T](len(x))
	NaiveTranspose(nil, want, wide(x), l)
	parts := rapid.IntRange(1, 4).Draw(t, "parts")
	for part := range parts {
		Transpose(&Context{part: part, parts: parts}, y, x, l)
	}
	require.Equal(t, want, wide(y))
}

func TestSoftmax(t *testing.T) { both(t, checkSoftmax[float32], checkSoftmax[float64]) }

func checkSoftmax[T Float](t *rapid.T) {
	src := newSource[T](t)
	outer, n, inner := rapid.IntRange(1, 4).Draw(t, "outer"), rapid.IntRange(1, 70).Draw(t, "n"), rapid.SampledFrom([]int{1, 2, 3, 300}).Draw(t, "inner")
	log, parts := rapid.Bool().Draw(t, "log"), rapid.IntRange(1, 4).Draw(t, "parts")
	x, dy := src.normal(outer*n*inner), src.normal(outer*n*inner)
	for i := range x {
		x[i] *= 100 // exponentials overflow
	}
	y, dx, scratch := garbage[T](len(x)), garbage[T](len(x)), garbage[T](SoftmaxScratch(n, inner))
	want, slope := garbage[float64](len(x)), garbage[float64](len(x))
	NaiveSoftmax(nil, want, wide(x), outer, n, inner, log, nil)
	for part := range parts {
		Softmax(&Context{part: part, parts: parts}, y, x, outer, n, inner, log, scratch)
		SoftmaxGrad(&Context{part: part, parts: parts}, dx, y, dy, outer, n, inner, log, scratch)
	}
	requireClose(t, "y", want, y)
	NaiveSoftmaxGrad(nil, slope, wide(y), wide(dy), outer, n, inner, log, nil)
	requireClose(t, "dx", slope, dx)
}
