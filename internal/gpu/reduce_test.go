//go:build linux && cgo

package gpu_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/gpu/gputest"
)

// special replaces elements of v, rarely, by others.
func (u *use) special(v exec.Value, by ...float64) exec.Value {
	u.set(v, func(_ int, x float64) float64 {
		if u.rand.IntN(50) == 0 {
			return by[u.rand.IntN(len(by))]
		}
		return x
	})
	return v
}

// TestReduce folds any axes of a value of some.
func TestReduce(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		u.half = false // without a kernel for it
		shape, axes := tensor.Shape{}, exec.Axes(0)
		for i := range rapid.IntRange(1, 6).Draw(rt, "axes") {
			shape = append(shape, rapid.SampledFrom([]int{1, 2, 3, 5}).Draw(rt, "length"))
			axes |= exec.Axes(rapid.IntRange(0, 1).Draw(rt, "folded")) << i
		}
		long := rapid.IntRange(0, len(shape)-1).Draw(rt, "long axis")
		if n := exec.Numel(shape) / shape[long]; n < 40 {
			shape[long] = extent(rt, "long", 70, 33000/n)
		}
		var left tensor.Shape
		for i, n := range shape {
			if axes>>i&1 == 0 {
				left = append(left, n)
			}
		}
		x := u.value(wide, shape...)
		u.checkOp(u.op(exec.KindSum, axes, left, shape), wide, x)
		y := u.checkOp(u.op(exec.KindMax, axes, left, shape), wide, u.special(x, math.NaN(), math.Inf(-1), 1e30))
		u.checkOp(u.op(exec.KindMaxGrad, axes, shape, shape, left, left), wide, x, y, u.value(wide, left...))
	})
}

func TestRepeat(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		outer, times, inner := extent(rt, "outer"), extent(rt, "times"), extent(rt, "inner")
		u.checkOp(u.op(exec.KindRepeat, exec.Axes(1<<1), tensor.Shape{outer, times, inner}, tensor.Shape{outer, 1, inner}), u.low(),
			u.value(u.low(), outer, 1, inner))
	})
}

func TestSoftmax(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		shape := tensor.Shape{extent(rt, "outer"), extent(rt, "n", 257, 2056), 1}
		if shape[1] < 40 {
			shape[2] = extent(rt, "inner")
		}
		s := exec.Softmax{Axis: 1, Log: rapid.Bool().Draw(rt, "log")}
		x := u.value(u.low(), shape...)
		if rapid.Bool().Draw(rt, "special") {
			u.special(x, math.NaN(), math.Inf(1), math.Inf(-1), 1e4, -1e30)
		}
		if rapid.Bool().Draw(rt, "nothing") {
			u.set(x, func(i int, v float64) float64 {
				if i/shape[2]/shape[1] == 0 {
					return math.Inf(-1)
				}
				return v
			})
		}
		u.checkOp(u.op(exec.KindSoftmax, s, shape, shape), u.low(), x)
		y := u.value(u.low(), shape...)
		u.set(y, func(_ int, v float64) float64 { return -math.Abs(v) / 16 })
		u.checkOp(u.op(exec.KindSoftmaxGrad, s, shape, shape, shape), u.low(), u.value(u.low(), shape...), y)
	})
}

// TestReduceOfMany compiles sums that are so long that their pieces fill a grid.
func TestReduceOfMany(t *testing.T) {
	m := gputest.New(t)
	u := &use{T: t, Machine: m, dtype: tensor.Float32}
	for _, x := range []tensor.Shape{{48 << 10, 50304}, {48 << 10, 50304, 2}} {
		left := x[2:]
		op := u.op(exec.KindSum, exec.Axes(3), left, x)
		in := exec.Instr{Op: op, In: []exec.Operand{{Shape: x, DType: u.dtype, Bytes: 4 * exec.Numel(x)}},
			Out: exec.Operand{Shape: left, DType: u.dtype, Bytes: 4 * exec.Numel(left)}}
		p, err := m.Engine.Assemble(func(yield func(exec.Instr) bool) { yield(in) }, nil)
		require.NoError(t, err)
		require.NoError(t, p.Free())
	}
}
