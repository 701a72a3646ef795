package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

func TestLinear(t *testing.T) { both(t, checkLinearTwin[float32], checkLinearTwin[float64]) }

func checkLinearTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, in, out := rapid.IntRange(0, 40).Draw(t, "n"), rapid.IntRange(1, 40).Draw(t, "in"), rapid.IntRange(1, 40).Draw(t, "out")
	acc := rapid.Bool().Draw(t, "acc")
	x, w, dy := src.normal(n*in), src.normal(in*out), src.normal(n*out)
	var b []T
	if rapid.Bool().Draw(t, "bias") {
		b = src.normal(out)
	}
	var c Context
	y := garbage[T](n * out)
	Linear(&c, y, x, w, b, n, in, out)
	var wideB []float64
	if b != nil {
		wideB = wide(b)
	}
	want := make([]float64, n*out)
	NaiveLinear(nil, want, wide(x), wide(w), wideB, n, in, out)
	requireClose(t, "y", want, y)
	LinearAdd(&c, y, x, w, n, in, out)
	NaiveLinearAdd(nil, want, wide(x), wide(w), n, in, out)
	requireClose(t, "y and y added", want, y)

	dx, dw, db := garbage[T](n*in), src.result(in*out, acc), src.result(out, acc)
	wantX, wantW, wantB := make([]float64, n*in), wide(dw), wide(db)
	LinearGradX(&c, dx, dy, w, n, in, out)
	LinearGradW(&c, dw, dy, x, n, in, out, acc)
	LinearGradB(db, dy, n, out, acc)
	NaiveLinearGradX(nil, wantX, wide(dy), wide(w), n, in, out)
	NaiveLinearGradW(nil, wantW, wide(dy), wide(x), n, in, out, acc)
	NaiveLinearGradB(wantB, wide(dy), n, out, acc)
	requireClose(t, "dx", wantX, dx)
	requireClose(t, "dw", wantW, dw)
	requireClose(t, "db", wantB, db)
}

// TestLinearBFloat16 compares with the twins on the values that bfloat16 has. Results in bfloat16 are
// rounded to 8 bits.
func TestLinearBFloat16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float32](t)
		n, in, out := rapid.IntRange(0, 40).Draw(t, "n"), rapid.IntRange(1, 40).Draw(t, "in"), rapid.IntRange(1, 40).Draw(t, "out")
		acc := rapid.Bool().Draw(t, "acc")
		values := func(n int) (x []half.BFloat16, exact []float64) {
			wide32 := src.normal(n)
			x = make([]half.BFloat16, n)
			half.Narrow(x, wide32)
			half.Widen(wide32, x)
			return x, wide(wide32)
		}
		requireRounded := func(name string, want []float64, got []half.BFloat16) {
			wide32 := make([]float32, len(got))
			half.Widen(wide32, got)
			requireWithin(t, name, 0x1p-8, want, wide32)
		}
		x, wideX := values(n * in)
		w, wideW := values(in * out)
		b, wideB := values(out)
		dy, wideDy := values(n * out)
		var c Context
		y, want := make([]half.BFloat16, n*out), make([]float64, n*out)
		Linear(&c, y, x, w, b, n, in, out)
		NaiveLinear(nil, want, wideX, wideW, wideB, n, in, out)
		requireRounded("y", want, y)
		Linear(&c, y, x, w, nil, n, in, out)
		LinearAdd(&c, y, x, w, n, in, out)
		NaiveLinear(nil, want, wideX, wideW, nil, n, in, out)
		NaiveLinearAdd(nil, want, wideX, wideW, n, in, out)
		requireRounded("y without bias, and added", want, y)

		dx, dw := make([]half.BFloat16, n*in), src.result(in*out, acc)
		wantX, wantW := make([]float64, n*in), wide(dw)
		LinearGradX(&c, dx, dy, w, n, in, out)
		LinearGradW(&c, dw, dy, x, n, in, out, acc)
		NaiveLinearGradX(nil, wantX, wideDy, wideW, n, in, out)
		NaiveLinearGradW(nil, wantW, wideDy, wideX, n, in, out, acc)
		requireRounded("dx", wantX, dx)
		requireClose(t, "dw", wantW, dw)
	})
}

func TestLinearGradient(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float64](t)
		const n, in, out = 3, 4, 5
		x, w, b, dy := src.normal(n*in), src.normal(in*out), src.normal(out), src.normal(n*out)
		var c Context
		y, dx, dw, db := make([]float64, n*out), make([]float64, n*in), make([]float64, in*out), make([]float64, out)
		loss := func() float64 { Linear(&c, y, x, w, b, n, in, out); return dot(y, dy) }
		LinearGradX(&c, dx, dy, w, n, in, out)
		LinearGradW(&c, dw, dy, x, n, in, out, false)
		LinearGradB(db, dy, n, out, false)
		requireGradient(t, "x", x, dx, loss)
		requireGradient(t, "w", w, dw, loss)
		requireGradient(t, "b", b, db, loss)
	})
}

func TestContextBytes(t *testing.T) {
	var c Context
	require.Zero(t, c.Bytes())
	const n = 200
	x := make([]float32, n*n)
	Linear(&c, make([]float32, n*n), x, x, nil, n, n, n)
	grown := c.Bytes()
	require.Positive(t, grown)
	Linear(&c, make([]float32, n*n), x, x, nil, n, n, n)
	require.Equal(t, grown, c.Bytes())
}

func TestBadShapesPanic(t *testing.T) {
	var c Context
	x := make([]float32, 6)
	require.PanicsWithValue(t, "kernel: Linear: len(x) is 6, want 8", func() { Linear(&c, x, x, x, nil, 2, 4, 3) })
	require.PanicsWithValue(t, "kernel: LayerNorm: len(stats) is 6, want 4", func() { LayerNorm(x, x, x, x[:3], nil, 2, 3, 1e-5) })
	require.PanicsWithValue(t, "kernel: CrossEntropy: len(scratch) is 1, want 3", func() {
		_, _, _ = CrossEntropy(x[:2], x, []int{0, 0}, 2, 3, -100, x[:1])
	})
	require.PanicsWithValue(t, "kernel: Attention: len(k) is 5, want at least 6", func() {
		a := Attention{Batch: 1, QLen: 2, KLen: 2, Heads: 1, HeadDim: 3, QStride: 3, KStride: 3, VStride: 3, OutStride: 3}
		AttentionForward(&c, a, x, x[:2], x, x[:5], x, nil, nil, x)
	})
	require.PanicsWithValue(t, "kernel: Attention: stride 2 of v is less than its 3 columns", func() {
		a := Attention{Batch: 1, QLen: 2, KLen: 2, Heads: 1, HeadDim: 3, QStride: 3, KStride: 3, VStride: 2, OutStride: 3}
		AttentionForward(&c, a, x, x[:2], x, x, x, nil, nil, x)
	})
}
