package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/rng"
)

// Every kernel is compared in three ways: with its naive twin (naive.go, float64) for both element
// types on random shapes; its gradient with central differences of its own forward in float64; and
// all of it starting from results full of NaN, so that an element left unwritten shows.

// both runs a property for both element types.
func both(t *testing.T, f32, f64 func(*rapid.T)) {
	t.Run("float32", func(t *testing.T) { rapid.Check(t, f32) })
	t.Run("float64", func(t *testing.T) { rapid.Check(t, f64) })
}

// tolerance is the error allowed against the naive twin, relative to the largest magnitude of the
// result: some tens of roundings. For float32 it includes the approximated exp and erf, good to
// about 1e-6.
func tolerance[T Float]() float64 {
	var x T
	if _, ok := any(x).(float32); ok {
		return 5e-6
	}
	return 2e-14
}

// source draws test data. The seed is drawn, the elements come from a stream: drawing each would
// drown rapid.
type source[T Float] struct {
	stream rng.Stream
	next   uint64
}

func newSource[T Float](t *rapid.T) *source[T] {
	return &source[T]{stream: rng.New(rapid.Uint64().Draw(t, "seed"), "test data")}
}

// normal returns n standard normal elements.
func (s *source[T]) normal(n int) []T {
	x := make([]T, n)
	rng.FillNormal(x, s.stream, s.next, 0, 1)
	s.next += uint64(n)
	return x
}

// ints returns n integers in [lo, hi).
func (s *source[T]) ints(n, lo, hi int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = lo + int(s.stream.Uint64(s.next)%uint64(hi-lo))
		s.next++
	}
	return x
}

// garbage returns n elements that no result may keep.
func garbage[T Float](n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(math.NaN())
	}
	return x
}

// result returns the buffer of a parameter gradient for either value of acc: what to add to, or
// garbage.
func (s *source[T]) result(n int, acc bool) []T {
	if acc {
		return s.normal(n)
	}
	return garbage[T](n)
}

// wide converts to float64, where the twins compute. It always copies.
func wide[T Float](x []T) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// clone copies x, nil to nil.
func clone[T Float](x []T) []T { return append([]T(nil), x...) }

// requireClose compares a result with its twin's; -Inf must match -Inf.
func requireClose[T Float](t require.TestingT, name string, want []float64, got []T) {
	requireWithin(t, name, tolerance[T](), want, got)
}

// requireWithin is requireClose with another tolerance.
func requireWithin[T Float](t require.TestingT, name string, tol float64, want []float64, got []T) {
	require.Len(t, got, len(want), name)
	scale := 1.0
	for _, w := range want {
		if !math.IsInf(w, 0) {
			scale = max(scale, math.Abs(w))
		}
	}
	for i, w := range want {
		g := float64(got[i])
		if w == g || math.Abs(w-g) <= tol*scale {
			continue
		}
		require.Failf(t, "result differs from the twin", "%s[%d] is %v, want %v (scale %g)", name, i, g, w, scale)
	}
}

// requireGradient compares grad with central differences of loss with respect to x, each element of
// which is moved in turn.
func requireGradient(t require.TestingT, name string, x, grad []float64, loss func() float64) {
	const h = 1e-4 // error h²·f''' + eps/h ≈ 1e-8
	for i, was := range x {
		x[i] = was + h
		up := loss()
		x[i] = was - h
		down := loss()
		x[i] = was
		want := (up - down) / (2 * h)
		require.InDelta(t, want, grad[i], 2e-6*(1+math.Abs(want)), "d%s[%d]", name, i)
	}
}

// dot is the scalar loss of the gradient checks: a random projection of a result.
func dot(a, b []float64) (s float64) {
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// requireBits demands equal bits.
func requireBits[T Float](t require.TestingT, name string, want, got []T) {
	require.Len(t, got, len(want), name)
	for i := range want {
		require.Equal(t, math.Float64bits(float64(want[i])), math.Float64bits(float64(got[i])), "%s[%d]", name, i)
	}
}
