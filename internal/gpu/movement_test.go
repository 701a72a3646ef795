//go:build linux && cgo

package gpu_test

import (
	"testing"

	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// TestTranspose moves up to five axes, of which two are longer than a square.
func TestTranspose(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		shape := make(tensor.Shape, rapid.IntRange(1, 5).Draw(rt, "axes"))
		for i := range shape {
			shape[i] = rapid.IntRange(1, 3).Draw(rt, "length")
		}
		for range 2 {
			if exec.Numel(shape) < 30 {
				shape[rapid.IntRange(0, len(shape)-1).Draw(rt, "long axis")] = extent(rt, "long", 40, 64)
			}
		}
		order, y := make([]byte, len(shape)), make(tensor.Shape, len(shape))
		for i, axis := range u.rand.Perm(len(shape)) {
			order[i], y[i] = byte(axis), shape[axis]
		}
		u.checkOp(u.op(exec.KindTranspose, exec.Order{Order: kernel.Order(order)}, y, shape), u.low(), u.value(u.low(), shape...))
	})
}

// TestSlice takes slices, puts them back, and adds them.
func TestSlice(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		x := tensor.Shape{extent(rt, "outer"), extent(rt, "n"), extent(rt, "inner", 16)}
		n := rapid.IntRange(1, x[1]).Draw(rt, "count")
		s := exec.Slice{Axis: 1, Step: rapid.IntRange(1, x[1]/n).Draw(rt, "step")}
		s.Start = rapid.IntRange(0, x[1]-1-(n-1)*s.Step).Draw(rt, "start")
		y := tensor.Shape{x[0], n, x[2]}
		part := u.value(u.low(), y...)
		u.checkOp(u.op(exec.KindSlice, s, y, x), u.low(), u.value(u.low(), x...))
		u.checkOp(u.op(exec.KindSliceGrad, s, x, y), u.low(), part)
		if s.Step == 1 {
			u.checkOp(u.op(exec.KindSliceAdd, s, x, x, y), u.low(), u.value(u.low(), x...), part)
		}
	})
}

func TestConcat(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		outer, inner, sum := extent(rt, "outer"), extent(rt, "inner", 16), 0
		var shapes []tensor.Shape
		var values []exec.Value
		for range rapid.IntRange(2, 4).Draw(rt, "arguments") {
			x := tensor.Shape{outer, extent(rt, "n"), inner}
			shapes, values, sum = append(shapes, x), append(values, u.value(u.low(), x...)), sum+x[1]
		}
		u.checkOp(u.op(exec.KindConcat, exec.Axis(1), tensor.Shape{outer, sum, inner}, shapes...), u.low(), values...)
	})
}
