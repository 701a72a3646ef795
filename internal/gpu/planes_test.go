//go:build linux && cgo

package gpu_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// f32 are the storages of operations that have no kernel for bfloat16.
func (u *use) f32() {
	if u.half {
		u.half, u.tol = false, 1e-5
	}
}

// TestBatchNorm has images and rows, in training and in evaluation.
func TestBatchNorm(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		u.f32()
		n, c, area := rapid.IntRange(1, 9).Draw(rt, "n"), rapid.IntRange(1, 3).Draw(rt, "channels"), extent(rt, "area")
		x, channel := u.node(n, c, area), u.node(c)
		values := u.value(wide, n, c, area)
		u.set(values, func(i int, x float64) float64 { return x + float64(i/area%c) })
		gain, bias, mean, variance := u.value(wide, c), u.value(wide, c), u.value(wide, c), u.positive(c)
		y, next, _, err := ops.BatchNorm(x, channel, channel, channel, channel, 1e-5, 0.3)
		for _, train := range []bool{true, false} {
			in, f := u.instr(next, err, wide, []exec.Value{values, mean, variance})
			f.Train = train
			u.checkInstruction(in, f)
		}
		stats := u.positive(4 * c)
		u.check(y, err, wide, values, gain, bias, stats)
		u.check(gradient(u, y, 0, x, channel, channel, u.node(4*c)), nil, wide, values, gain, stats, u.value(wide, n, c, area))
	})
}

func TestGroupNorm(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		u.f32()
		n, groups, width, area := rapid.IntRange(1, 2).Draw(rt, "n"), rapid.IntRange(1, 3).Draw(rt, "groups"), rapid.IntRange(1, 9).Draw(rt, "width"), extent(rt, "area")
		c := groups * width
		x, channel := u.node(n, c, area), u.node(c)
		values, gain := u.value(wide, n, c, area), u.value(wide, c)
		y, err := ops.GroupNorm(x, channel, channel, groups, 1e-5)
		u.check(y, err, wide, values, gain, u.value(wide, c))
		u.check(gradient(u, y, 0, x, channel, channel), nil, wide, values, gain, u.value(wide, n*c*area+2*n*groups), u.value(wide, n, c, area))
	})
}

// positive returns random numbers above 0.
func (u *use) positive(shape ...int) exec.Value {
	v := u.value(wide, shape...)
	u.set(v, func(_ int, x float64) float64 { return 0.5 + x*x })
	return v
}
