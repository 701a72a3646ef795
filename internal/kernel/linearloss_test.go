package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/half"
)

func drawLoss(t *rapid.T, classes int) Loss {
	return Loss{
		Ignore:    rapid.SampledFrom([]int{-100, 0, classes}).Draw(t, "ignore"),
		Smoothing: rapid.SampledFrom([]float64{0, 0.1, 1}).Draw(t, "smoothing"),
		Z:         rapid.SampledFrom([]float64{0, 1e-2}).Draw(t, "z"),
	}
}

// targets returns classes, some of which are ignored.
func targets[T Float](t *rapid.T, src *source[T], n, classes int, l Loss) []int {
	list := src.ints(n, 0, classes)
	for i := range list {
		if rapid.IntRange(0, 3).Draw(t, "ignored") == 0 {
			list[i] = l.Ignore
		}
	}
	return list
}

// lossShape draws sizes, some beyond a block.
func lossShape(t *rapid.T) (n, d, classes int) {
	n, d, classes = rapid.IntRange(0, 6).Draw(t, "n"), rapid.IntRange(1, 9).Draw(t, "d"), rapid.IntRange(1, 30).Draw(t, "classes")
	switch rapid.IntRange(0, 9).Draw(t, "large") {
	case 0:
		n = lossRows + 3
	case 1:
		classes = 2*lossClasses + 5
	}
	return n, d, classes
}

// drawBias returns one for the classes, or nil.
func drawBias[T Float](t *rapid.T, src *source[T], classes int) []T {
	if rapid.Bool().Draw(t, "bias") {
		return src.normal(classes)
	}
	return nil
}

// slopeErrors bounds the error of a bias's gradient that comes from the slopes of all rows: a
// probability near 1 is off by its last place. With one class all probabilities are 1, all errors
// have one sign, and the slopes themselves cancel.
func slopeErrors[T Float](dlosses []T) (sum float64) {
	for _, d := range dlosses {
		sum += tolerance[T]() / 40 * math.Abs(float64(d))
	}
	return sum
}

func TestLinearLoss(t *testing.T) { both(t, checkLinearLoss[float32], checkLinearLoss[float64]) }

func checkLinearLoss[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, d, classes := lossShape(t)
	l := drawLoss(t, classes)
	x, w, dlosses, at := src.normal(n*d), src.normal(classes*d), src.normal(n), targets(t, src, min(n, 6), classes, l)
	for len(at) < n {
		at = append(at, len(at)%classes)
	}
	acc, bias := rapid.Bool().Draw(t, "acc"), drawBias(t, src, classes)
	dbias, wantBias := garbage[T](len(bias)), make([]float64, len(bias))
	dx, losses, lse, dw := garbage[T](n*d), garbage[T](n), garbage[T](n), src.result(classes*d, acc)
	wantX, wantLosses, wantLse, wantW := make([]float64, n*d), make([]float64, n), make([]float64, n), wide(dw)
	scratch := func() []T { return garbage[T](LinearLossScratch(n, d, classes)) }
	var c Context
	require.NoError(t, LinearLoss(&c, dx, losses, lse, x, w, bias, at, n, d, classes, l, true, scratch()))
	LinearLossGradW(&c, dw, dbias, x, w, bias, at, lse, dlosses, n, d, classes, l, acc, scratch())
	require.NoError(t, NaiveLinearLoss(nil, wantX, wantLosses, wantLse, wide(x), wide(w), wide(bias), at, n, d, classes, l, true, nil))
	NaiveLinearLossGradW(nil, wantW, wantBias, wide(x), wide(w), wide(bias), at, wantLse, wide(dlosses), n, d, classes, l, acc, nil)
	requireClose(t, "losses", wantLosses, losses)
	requireClose(t, "lse", wantLse, lse)
	requireWithin(t, "dx", 4*tolerance[T](), wantX, dx)
	slopes, most := slopeErrors(dlosses), 1.0
	for _, v := range x {
		most = max(most, math.Abs(float64(v)))
	}
	requireWithin(t, "dw", 8*tolerance[T]()+slopes*most, wantW, dw)
	requireWithin(t, "dbias", 8*tolerance[T]()+slopes, wantBias, dbias)

	again, zeros := garbage[T](n), garbage[T](n*d)
	require.NoError(t, LinearLoss(&c, zeros, again, lse, x, w, bias, at, n, d, classes, l, false, scratch()))
	requireBits(t, "losses in evaluation", losses, again)
	requireBits(t, "dx in evaluation", make([]T, n*d), zeros)
}

// TestLinearLossGradients holds both gradients against central differences of the losses.
func TestLinearLossGradients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float64](t)
		const n, d, classes = 3, 4, 5
		l := drawLoss(t, classes)
		x, w, bias, at, dlosses := src.normal(n*d), src.normal(classes*d), src.normal(classes), targets(t, src, n, classes, l), src.normal(n)
		var c Context
		dx, losses, lse, dw, dbias := make([]float64, n*d), make([]float64, n), make([]float64, n), make([]float64, classes*d), make([]float64, classes)
		scratch := make([]float64, LinearLossScratch(n, d, classes))
		sum := func() float64 {
			require.NoError(t, LinearLoss(&c, dx, losses, lse, x, w, bias, at, n, d, classes, l, true, scratch))
			return dot(losses, dlosses)
		}
		sum()
		LinearLossGradW(&c, dw, dbias, x, w, bias, at, lse, dlosses, n, d, classes, l, false, scratch)
		gradX := make([]float64, n*d)
		for i := range gradX {
			gradX[i] = dx[i] * dlosses[i/d]
		}
		requireGradient(t, "x", x, gradX, sum)
		requireGradient(t, "w", w, dw, sum)
		requireGradient(t, "bias", bias, dbias, sum)
	})
}

// TestLinearLossBFloat16 computes with values in bfloat16 what those in float32 give, up to the
// rounding of weights to 8 bits.
func TestLinearLossBFloat16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src := newSource[float32](t)
		n, d, classes := lossShape(t)
		l := drawLoss(t, classes)
		l.Smoothing = min(l.Smoothing, 0.1) // more would leave nothing but the rounding of a class alone
		at := make([]int, n)
		for i := range at {
			at[i] = i % classes
		}
		low := func(x []float32) []half.BFloat16 {
			y := make([]half.BFloat16, len(x))
			half.Narrow(y, x)
			half.Widen(x, y)
			return y
		}
		wideX, wideW, dlosses := src.normal(n*d), src.normal(classes*d), src.normal(n)
		x, w := low(wideX), low(wideW)
		bias := drawBias(t, src, classes)
		dbias, wantBias := garbage[float32](len(bias)), garbage[float32](len(bias))
		var c Context
		dx, losses, lse, dw := make([]half.BFloat16, n*d), garbage[float32](n), garbage[float32](n), garbage[float32](classes*d)
		wantX, wantLosses, wantLse, wantW := garbage[float32](n*d), garbage[float32](n), garbage[float32](n), garbage[float32](classes*d)
		scratch := garbage[float32](LinearLossBFloat16Scratch(n, d, classes))
		require.NoError(t, LinearLoss(&c, dx, losses, lse, x, w, bias, at, n, d, classes, l, true, scratch))
		LinearLossGradW(&c, dw, dbias, x, w, bias, at, lse, dlosses, n, d, classes, l, false, scratch)
		scratch = garbage[float32](LinearLossScratch(n, d, classes))
		require.NoError(t, LinearLoss(&c, wantX, wantLosses, wantLse, wideX, wideW, bias, at, n, d, classes, l, true, scratch))
		LinearLossGradW(&c, wantW, wantBias, wideX, wideW, bias, at, wantLse, dlosses, n, d, classes, l, false, scratch)
		got := make([]float32, n*d)
		half.Widen(got, dx)
		requireClose(t, "losses", wide(wantLosses), losses)
		requireWithin(t, "dx", 0.02, wide(wantX), got)
		requireWithin(t, "dw", 0.02, wide(wantW), dw)
		requireWithin(t, "dbias", 0.02, wide(wantBias), dbias)
	})
}

// TestRowLosses covers the losses of logits that are there.
func TestRowLosses(t *testing.T) { both(t, checkRowLosses[float32], checkRowLosses[float64]) }

func checkRowLosses[T Float](t *rapid.T) {
	src := newSource[T](t)
	n := rapid.IntRange(0, 6).Draw(t, "n")
	classes := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(classBlock-1, 2*classBlock+1)).Draw(t, "classes")
	l := drawLoss(t, classes)
	logits, dlosses, at := src.normal(n*classes), src.normal(n), targets(t, src, n, classes, l)
	losses, lse, d := garbage[T](n), garbage[T](n), garbage[T](n*classes)
	scratch := garbage[T](CrossEntropyScratch(classes))
	require.NoError(t, RowLosses(losses, lse, logits, at, n, classes, l, scratch))
	RowLossesGrad(d, logits, at, lse, dlosses, n, classes, l, scratch)
	wantLosses, wantLse, want := make([]float64, n), make([]float64, n), make([]float64, n*classes)
	require.NoError(t, NaiveRowLosses(wantLosses, wantLse, wide(logits), at, n, classes, l, nil))
	NaiveRowLossesGrad(want, wide(logits), at, wantLse, wide(dlosses), n, classes, l, nil)
	requireClose(t, "losses", wantLosses, losses)
	requireClose(t, "lse", wantLse, lse)
	requireClose(t, "dlogits", want, d)
	RowLossesGrad(logits, logits, at, lse, dlosses, n, classes, l, scratch)
	requireBits(t, "dlogits in place", d, logits)

	mean, sum, n2 := float64(MeanLoss(losses, at, l.Ignore)), 0.0, 0.0
	dmean := garbage[T](n)
	MeanLossGrad(dmean, at, l.Ignore, 3)
	for i, t := range at {
		if t != l.Ignore {
			sum += float64(losses[i])
			n2++
		}
	}
	require.InDelta(t, sum/max(1, n2), mean, 1e-6*(1+math.Abs(mean)))
	for i, got := range dmean {
		want := 3 / n2
		if at[i] == l.Ignore {
			want = 0
		}
		require.InDelta(t, want, got, 1e-6)
	}
}

// TestLinearLossFarLogits: the largest logit may be in any block, and far from the others.
func TestLinearLossFarLogits(t *testing.T) {
	const classes = 2*lossClasses + 7
	var c Context
	for _, at := range []int{0, lossClasses, classes - 1} {
		w := make([]float32, classes)
		for i := range w {
			w[i] = float32(i%5) * 100
		}
		w[at] = 1e4
		dx, losses, lse := make([]float32, 2), make([]float32, 2), make([]float32, 2)
		err := LinearLoss(&c, dx, losses, lse, []float32{1, -1}, w, nil, []int{at, 1}, 2, 1, classes, Loss{Ignore: -1}, true,
			make([]float32, LinearLossScratch(2, 1, classes)))
		require.NoError(t, err)
		require.InDelta(t, 0, losses[0], 1e-2)
		require.Equal(t, float32(1e4), lse[0])
		require.InDelta(t, 100+math.Log((classes+4)/5), losses[1], 0.1)
		require.False(t, math.IsNaN(float64(dx[0]+dx[1])))
		err = LinearLoss(&c, dx, losses, lse, []float32{1, -1}, w, nil, []int{classes, 1}, 2, 1, classes, Loss{Ignore: -1}, true,
			make([]float32, LinearLossScratch(2, 1, classes)))
		require.EqualError(t, err, "target 2055 of row 0 is outside the 2055 classes, which are 0 to 2054")
	}
}

func TestPairLosses(t *testing.T) { both(t, checkPairLosses[float32], checkPairLosses[float64]) }

func checkPairLosses[T Float](t *rapid.T) {
	src := newSource[T](t)
	n := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(classBlock-1, 2*classBlock+1)).Draw(t, "n")
	x, target := src.normal(n), src.normal(n)
	var weight []T
	if rapid.Bool().Draw(t, "weighted") {
		weight = make([]T, n)
		for i := range weight {
			weight[i] = T(rapid.SampledFrom([]float64{0, 1, 2.5}).Draw(t, "weight"))
		}
	}
	for _, f := range []struct {
		name  string
		f     func(x, t, w, scratch []T) T
		grad  func(dx, x, t, w []T, dloss T)
		twin  func(x, t, w, scratch []float64) float64
		slope func(dx, x, t, w []float64, dloss float64)
	}{
		{"mse", MeanSquares[T], MeanSquaresGrad[T], NaiveMeanSquares, NaiveMeanSquaresGrad},
		{"bce", MeanBinary[T], MeanBinaryGrad[T], NaiveMeanBinary, NaiveMeanBinaryGrad},
	} {
		want := f.twin(wide(x), wide(target), wide(weight), nil)
		require.InDelta(t, want, f.f(x, target, weight, garbage[T](PairLossScratch(n))), tolerance[T]()*(1+math.Abs(want)), f.name)
		dx, wantDx := garbage[T](n), make([]float64, n)
		f.grad(dx, x, target, weight, 3)
		f.slope(wantDx, wide(x), wide(target), wide(weight), 3)
		requireClose(t, f.name, wantDx, dx)
		over := clone(x)
		f.grad(over, over, target, weight, 3)
		requireBits(t, f.name+" in place", dx, over)
	}
}

// TestMeanBinaryFar has logits whose exponentials overflow, and sure answers that are right, whose
// losses are small.
func TestMeanBinaryFar(t *testing.T) {
	scratch := make([]float32, PairLossScratch(4))
	require.InDelta(t, 250, MeanBinary([]float32{1000, -1000, 1000, -1000}, []float32{0, 0, 1, 1}, nil, scratch)/2, 1e-3)
	require.InEpsilon(t, math.Exp(-20), MeanBinary([]float32{20, -20}, []float32{1, 0}, nil, scratch), 1e-6)
	dx := make([]float32, 2)
	MeanBinaryGrad(dx, []float32{1000, -1000}, []float32{0, 0}, nil, 1)
	require.Equal(t, []float32{0.5, 0}, dx)
}
