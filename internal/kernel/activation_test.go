package kernel

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

func TestActivations(t *testing.T) {
	both(t, checkActivationTwins[float32], checkActivationTwins[float64])
}

func checkActivationTwins[T Float](t *rapid.T) {
	src := newSource[T](t)
	n := rapid.IntRange(0, 70).Draw(t, "n")
	x, dy := src.normal(n), src.normal(n)
	for _, f := range []struct {
		name    string
		forward func(y, x []T)
		grad    func(dx, x, dy []T)
		twin    func(y, x []float64)
		slope   func(dx, x, dy []float64)
	}{
		{"tanh", vec.Tanh[T], vec.TanhGrad[T], NaiveTanh, NaiveTanhGrad},
		{"sigmoid", vec.Sigmoid[T], vec.SigmoidGrad[T], NaiveSigmoid, NaiveSigmoidGrad},
		{"silu", SiLU[T], SiLUGrad[T], NaiveSiLU, NaiveSiLUGrad},
		{"relu", ReLU[T], ReLUGrad[T], NaiveReLU, NaiveReLUGrad},
		{"gelu", GELU[T], GELUGrad[T], NaiveGELU, NaiveGELUGrad},
		{"gelu tanh", GELUTanh[T], GELUTanhGrad[T], NaiveGELUTanh, NaiveGELUTanhGrad},
	} {
		y, dx := garbage[T](n), garbage[T](n)
		f.forward(y, x)
		f.grad(dx, x, dy)
		want, wantGrad := make([]float64, n), make([]float64, n)
		f.twin(want, wide(x))
		f.slope(wantGrad, wide(x), wide(dy))
		requireClose(t, f.name, want, y)
		requireClose(t, f.name+" gradient", wantGrad, dx)

		overX, overDy, y2 := clone(x), clone(dy), clone(x)
		f.forward(y2, y2)
		f.grad(overX, overX, dy)
		f.grad(overDy, x, overDy)
		requireBits(t, f.name+" in place", y, y2)
		requireBits(t, f.name+" gradient over x", dx, overX)
		requireBits(t, f.name+" gradient over dy", dx, overDy)
	}
}

func TestGLU(t *testing.T) { both(t, checkGLUTwin[float32], checkGLUTwin[float64]) }

func checkGLUTwin[T Float](t *rapid.T) {
	src := newSource[T](t)
	n, gate := rapid.IntRange(0, 70).Draw(t, "n"), rapid.SampledFrom([]vec.Gate{vec.GateSiLU, vec.GateGELUErf, vec.GateGELUTanh, vec.GateReLU, vec.GateSigmoid}).Draw(t, "gate")
	x, up, dy := src.normal(n), src.normal(n), src.normal(n)
	y, dx, dup := garbage[T](n), garbage[T](n), garbage[T](n)
	vec.GLU(gate, y, x, up)
	vec.GLUGrad(gate, dx, dup, x, up, dy)
	want, wantX, wantUp := make([]float64, n), make([]float64, n), make([]float64, n)
	NaiveGLU(gate, want, wide(x), wide(up))
	NaiveGLUGrad(gate, wantX, wantUp, wide(x), wide(up), wide(dy))
	requireClose(t, "y", want, y)
	requireClose(t, "dx", wantX, dx)
	requireClose(t, "dup", wantUp, dup)
	overX, overUp := clone(x), src.normal(n)
	wantX, wantUp = make([]float64, n), make([]float64, n)
	NaiveGLUGrad(gate, wantX, wantUp, wide(overX), wide(overUp), wide(y))
	vec.GLUGrad(gate, overX, overUp, overX, overUp, y)
	requireClose(t, "dx over x", wantX, overX)
	requireClose(t, "dup over up", wantUp, overUp)
}

// The mask depends on positions alone: any cut of a tensor drops the same elements, and on the
// whole the wanted share.
func TestDropout(t *testing.T) {
	const n, rate = 1 << 14, 0.25
	ones, y := make([]float32, n), garbage[float32](n)
	for i := range ones {
		ones[i] = 1
	}
	Dropout(y, ones, 1, 0, rate)
	var kept float64
	for _, v := range y {
		if v != 0 {
			require.InDelta(t, 1/(1-rate), v, 1e-6)
			kept++
		}
	}
	require.InDelta(t, 1-rate, kept/n, 5*math.Sqrt(rate*(1-rate)/n))
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.IntRange(0, n).Draw(t, "lo")
		part := ones[lo:min(lo+100, n)]
		got := clone(part)
		Dropout(got, got, 1, uint64(lo), rate)
		requireBits(t, "part", y[lo:lo+len(part)], got)
	})
	want := make([]float64, n)
	NaiveDropout(want, wide(ones), 1, 0, rate)
	requireClose(t, "y", want, y)
	Dropout(y, ones, 1, 0, 0)
	require.Equal(t, ones, y)
}
