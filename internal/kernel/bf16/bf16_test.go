package bf16

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/rng"
)

// Every kernel is compared with the one for float32 on the same values: what is bfloat16 has to be
// its result rounded, and the rest its bits. Results and scratch start full of NaN.

type source struct {
	stream rng.Stream
	next   uint64
}

func newSource(t *rapid.T) *source {
	return &source{stream: rng.New(rapid.Uint64().Draw(t, "seed"), "test data")}
}

// normal returns n standard normal elements.
func (s *source) normal(n int) []float32 {
	x := make([]float32, n)
	rng.FillNormal(x, s.stream, s.next, 0, 1)
	s.next += uint64(n)
	return x
}

// values returns n of them as bfloat16, and widened.
func (s *source) values(n int) (x []half.BFloat16, wide []float32) {
	x, wide = rounded(s.normal(n)), make([]float32, n)
	half.Widen(wide, x)
	return x, wide
}

func rounded(wide []float32) []half.BFloat16 {
	x := make([]half.BFloat16, len(wide))
	half.Narrow(x, wide)
	return x
}

// garbage returns n elements that no result may keep, and wideGarbage n of float32.
func garbage(n int) []half.BFloat16 { return rounded(wideGarbage(n)) }

func wideGarbage(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// length draws one around the blocks.
func length(t *rapid.T) int {
	return rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(wideBlock-2, wideBlock+20), rapid.Just(3*wideBlock)).Draw(t, "n")
}

func TestUnary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, wide := newSource(t).values(length(t))
		for name, k := range map[string]struct {
			low func(y, x []half.BFloat16) bool
			f   func(y, x []float32)
		}{
			"relu":      {vec.ReLUBFloat16, kernel.ReLU[float32]},
			"gelu":      {vec.GELUErfBFloat16, kernel.GELU[float32]},
			"gelu tanh": {vec.GELUTanhBFloat16, kernel.GELUTanh[float32]},
		} {
			want := wideGarbage(len(x))
			k.f(want, wide)
			for _, low := range []func(y, x []half.BFloat16) bool{k.low, nil} {
				y, over := garbage(len(x)), slices.Clone(x)
				Unary(low, k.f, y, x, wideGarbage(ElementScratch))
				Unary(low, k.f, over, over, wideGarbage(ElementScratch))
				require.Equal(t, rounded(want), y, name)
				require.Equal(t, y, over, "%s in place", name)
			}
		}
	})
}

func TestBinary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, n := newSource(t), length(t)
		x, wideX := src.values(n)
		y, wideY := src.values(n)
		for name, k := range map[string]struct {
			low func(z, x, y []half.BFloat16) bool
			f   func(z, x, y []float32)
		}{
			"add":       {vec.AddBFloat16, vec.Add[float32]},
			"relu":      {vec.ReLUGradBFloat16, kernel.ReLUGrad[float32]},
			"gelu":      {vec.GELUErfGradBFloat16, kernel.GELUGrad[float32]},
			"gelu tanh": {vec.GELUTanhGradBFloat16, kernel.GELUTanhGrad[float32]},
		} {
			want := wideGarbage(n)
			k.f(want, wideX, wideY)
			for _, low := range []func(z, x, y []half.BFloat16) bool{k.low, nil} {
				z, overX, overY := garbage(n), slices.Clone(x), slices.Clone(y)
				Binary(low, k.f, z, x, y, wideGarbage(ElementScratch))
				Binary(low, k.f, overX, overX, y, wideGarbage(ElementScratch))
				Binary(low, k.f, overY, x, overY, wideGarbage(ElementScratch))
				require.Equal(t, rounded(want), z, name)
				require.Equal(t, z, overX, "%s over x", name)
				require.Equal(t, z, overY, "%s over y", name)
			}
		}
	})
}

func TestGLUGrad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, n := newSource(t), length(t)
		x, wideX := src.values(n)
		up, wideUp := src.values(n)
		dy, wideDy := src.values(n)
		wantX, wantUp, dx, dup := wideGarbage(n), wideGarbage(n), garbage(n), garbage(n)
		vec.GLUGrad(vec.GateSiLU, wantX, wantUp, wideX, wideUp, wideDy)
		GLUGrad(vec.GateSiLU, dx, dup, x, up, dy, wideGarbage(GLUGradScratch))
		require.Equal(t, rounded(wantX), dx)
		require.Equal(t, rounded(wantUp), dup)
		GLUGrad(vec.GateSiLU, x, up, x, up, dy, wideGarbage(GLUGradScratch))
		require.Equal(t, dx, x, "in place")
		require.Equal(t, dup, up, "in place")
	})
}

func TestRope(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, n, first := newSource(t), rapid.IntRange(0, 9).Draw(t, "n"), rapid.IntRange(0, 9).Draw(t, "first")
		r := kernel.Rotary{Heads: 2, HeadDim: 7, Dims: 6, Interleaved: rapid.Bool().Draw(t, "interleaved")}
		const d, rows = 17, 4
		var positions []int
		if rapid.Bool().Draw(t, "positions") {
			positions = make([]int, n)
			for i := range positions {
				positions[i] = (3*i + first) % rows
			}
		}
		x, wideX := src.values(n * d)
		table, want, y := src.normal(rows*r.Dims), wideGarbage(n*d), garbage(n*d)
		kernel.Rope(want, wideX, table, positions, n, d, first, rows, r, false)
		Rope(y, x, table, positions, n, d, first, rows, r, false, wideGarbage(RopeScratch(d)))
		require.Equal(t, rounded(want), y)
		Rope(x, x, table, positions, n, d, first, rows, r, false, wideGarbage(RopeScratch(d)))
		require.Equal(t, y, x, "in place")
	})
}

func TestDropout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, wide := newSource(t).values(length(t))
		base := rapid.SampledFrom([]uint64{0, 17, 1<<32 - 100}).Draw(t, "base")
		want, y := wideGarbage(len(x)), garbage(len(x))
		kernel.Dropout(want, wide, 3, base, 0.25)
		Dropout(y, x, 3, base, 0.25, wideGarbage(ElementScratch))
		require.Equal(t, rounded(want), y)
	})
}

func TestNorms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource(t)
		n, d := rapid.IntRange(0, 9).Draw(t, "n"), rapid.IntRange(2, 70).Draw(t, "d")
		x, wideX := src.values(n * d)
		dy, wideDy := src.values(n * d)
		gain, bias := src.normal(d), src.normal(d)
		if rapid.Bool().Draw(t, "no bias") {
			bias = nil
		}
		scratch := wideGarbage(NormScratch(d))

		want, wantStats, wantGain, wantBias := wideGarbage(n*d), wideGarbage(2*n), wideGarbage(d), wideGarbage(d)
		y, stats, dgain, dbias := slices.Clone(x), wideGarbage(2*n), wideGarbage(d), wideGarbage(d)
		kernel.LayerNorm(want, wantStats, wideX, gain, bias, n, d, 1e-5)
		LayerNorm(y, stats, y, gain, bias, n, d, 1e-5, scratch)
		require.Equal(t, rounded(want), y)
		require.Equal(t, wantStats, stats)
		kernel.LayerNormGrad(want, wantGain, wantBias, wideX, gain, stats, wideDy, n, d)
		dx := slices.Clone(dy)
		LayerNormGrad(dx, dgain, dbias, x, gain, stats, dx, n, d, scratch)
		require.Equal(t, rounded(want), dx)
		require.Equal(t, wantGain, dgain)
		require.Equal(t, wantBias, dbias)

		y, stats, wantStats, dgain = garbage(n*d), wideGarbage(n), wideGarbage(n), wideGarbage(d)
		kernel.RMSNorm(want, wantStats, wideX, gain, n, d, 1e-5)
		RMSNorm(y, stats, x, gain, n, d, 1e-5, scratch)
		require.Equal(t, rounded(want), y)
		require.Equal(t, wantStats, stats)
		kernel.RMSNormGrad(want, wantGain, wideX, gain, stats, wideDy, n, d)
		dx = garbage(n * d)
		RMSNormGrad(dx, dgain, x, gain, stats, dy, n, d, scratch)
		require.Equal(t, rounded(want), dx)
		require.Equal(t, wantGain, dgain)
	})
}

func TestParameterGradients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource(t)
		n, d, acc := rapid.IntRange(0, 40).Draw(t, "n"), rapid.IntRange(1, 40).Draw(t, "d"), rapid.Bool().Draw(t, "acc")
		dy, wide := src.values(n * d)
		result := func(n int) []float32 {
			if acc {
				return src.normal(n)
			}
			return wideGarbage(n)
		}
		db := result(d)
		want := slices.Clone(db)
		kernel.LinearGradB(want, wide, n, d, acc)
		LinearGradB(db, dy, n, d, acc, wideGarbage(ColumnScratch(d)))
		require.Equal(t, want, db)

		const rows = 7
		idx, dtable := make([]int, n), result(rows*d)
		for i := range idx {
			idx[i] = i * i % rows
		}
		want = slices.Clone(dtable)
		kernel.EmbeddingGrad(want, wide, idx, rows, d, acc)
		EmbeddingGrad(dtable, dy, idx, rows, d, acc, wideGarbage(d))
		require.Equal(t, want, dtable)
	})
}

func TestCrossEntropy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource(t)
		n := rapid.IntRange(0, 6).Draw(t, "n")
		classes := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(1023, 2100)).Draw(t, "classes")
		logits, wide := src.values(n * classes)
		const ignore = -100
		targets := make([]int, n)
		for i := range targets {
			targets[i] = i * 31 % classes
			if rapid.Bool().Draw(t, "ignored") {
				targets[i] = ignore
			}
		}
		scratch := wideGarbage(CrossEntropyScratch(classes))
		wantLse, lse := wideGarbage(n), wideGarbage(n)
		want, wantCounted, err := kernel.CrossEntropy(wantLse, wide, targets, n, classes, ignore, wideGarbage(kernel.CrossEntropyScratch(classes)))
		require.NoError(t, err)
		loss, counted, err := CrossEntropy(lse, logits, targets, n, classes, ignore, scratch)
		require.NoError(t, err)
		require.Equal(t, want, loss)
		require.Equal(t, wantCounted, counted)
		require.Equal(t, wantLse, lse)

		grad := wideGarbage(n * classes)
		kernel.CrossEntropyGrad(grad, wide, lse, targets, n, classes, ignore, counted, 2)
		CrossEntropyGrad(logits, logits, lse, targets, n, classes, ignore, counted, 2, scratch)
		require.Equal(t, rounded(grad), logits)
	})
	lse := []float32{7, 7}
	_, _, err := CrossEntropy(lse, make([]half.BFloat16, 6), []int{0, 3}, 2, 3, -1, make([]float32, CrossEntropyScratch(3)))
	require.EqualError(t, err, "target 3 of row 1 is outside the 3 classes, which are 0 to 2")
	require.Equal(t, []float32{7, 7}, lse)
}

func TestBadShapesPanic(t *testing.T) {
	x, w := make([]half.BFloat16, 6), make([]float32, 6)
	require.PanicsWithValue(t, "bf16: Unary: len(y) is 6, want 5", func() { Unary(nil, kernel.ReLU[float32], x, x[:5], nil) })
	require.PanicsWithValue(t, "bf16: LayerNorm: len(stats) is 6, want 4", func() { LayerNorm(x, w, x, w[:3], nil, 2, 3, 1e-5, w) })
	require.PanicsWithValue(t, "bf16: RMSNormGrad: len(scratch) is 5, want 6", func() {
		RMSNormGrad(x, w[:3], x, w[:3], w[:2], x, 2, 3, w[:5])
	})
}

func TestNothingIsAllocated(t *testing.T) {
	const n, d = 3, 16
	x, y, w, stats := make([]half.BFloat16, n*d), make([]half.BFloat16, n*d), make([]float32, d), make([]float32, 2*n)
	dgain, dbias, scratch, row := make([]float32, d), make([]float32, d), make([]float32, ElementScratch), make([]float32, NormScratch(d))
	require.Zero(t, testing.AllocsPerRun(3, func() {
		Unary(vec.GELUErfBFloat16, kernel.GELU[float32], y, x, scratch)
		Binary(vec.GELUErfGradBFloat16, kernel.GELUGrad[float32], y, x, x, scratch)
		LayerNorm(y, stats, x, w, w, n, d, 1e-5, row)
		LayerNormGrad(y, dgain, dbias, x, w, stats, x, n, d, row)
		RMSNormGrad(y, dgain, x, w, stats[:n], x, n, d, row)
	}))
}
