package commtest

import (
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/comm"
)

// floating has the bounds on rounding errors of type T. It is empty for integers.
type floating[T comm.Elem] struct {
	value   func(T) float64
	unit    float64 // half a unit in the last place of 1: the relative error of one rounding
	tiny    float64 // the smallest positive value
	largest float64
}

// float describes a type of Go, if it is one of floats.
func float[T number]() floating[T] {
	value := func(x T) float64 { return float64(x) }
	switch any(T(0)).(type) {
	case float32:
		return floating[T]{value, 0x1p-24, math.SmallestNonzeroFloat32, math.MaxFloat32}
	case float64:
		return floating[T]{value, 0x1p-53, math.SmallestNonzeroFloat64, math.MaxFloat64}
	}
	return floating[T]{}
}

// check requires that got is the result of s on rank.
func (a arithmetic[T]) check(s step, rank, n int, got []T) error {
	want := a.result(s, rank, n)
	if !s.rounded || a.float.value == nil || s.kind != ReduceScatter && s.kind != AllReduce {
		return a.compare(s, rank, got, want)
	}
	srcs := a.sources(s, rank, n)
	for i := range want {
		if a.equal(got[i], want[i]) {
			continue
		}
		off, bound := math.Abs(a.float.value(got[i])-a.float.value(want[i])), a.float.bound(s.op, srcs, i)
		if !math.IsInf(bound, 1) && !(off <= bound) {
			return fmt.Errorf("%v: rank %d: element %d is %v, want %v within %g", s, rank, i, got[i], want[i], bound)
		}
	}
	return nil
}

// bound is how far two ways to reduce element i of srcs may be apart. Adding n numbers, in any
// order, is wrong by no more than n-1 roundings of the sum of their magnitudes (Higham, Accuracy
// and Stability of Numerical Algorithms, 4.2); an average takes two more, of 1/n and of the number
// multiplied by it. It is infinite if one order may overflow.
func (f floating[T]) bound(op comm.Op, srcs [][]T, i int) float64 {
	n, sum := float64(len(srcs)), 0.0
	for _, src := range srcs {
		sum += math.Abs(f.value(src[i]))
	}
	switch {
	case math.IsNaN(sum):
		return math.Inf(1)
	case op == comm.Max || op == comm.Min:
		return 0
	case op == comm.Avg:
		sum /= n
	}
	roundings := n + 1
	if sum*(1+roundings*f.unit) >= f.largest {
		return math.Inf(1)
	}
	return 2 * roundings * (f.unit*sum + f.tiny)
}
