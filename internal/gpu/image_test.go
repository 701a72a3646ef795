//go:build linux && cgo

package gpu_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// pair draws rows and columns of something.
func pair(rt *rapid.T, name string, least, most int) [2]int {
	return [2]int{rapid.IntRange(least, most).Draw(rt, name), rapid.IntRange(least, most).Draw(rt, name)}
}

func TestConvolutions(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		u.f32()
		k, a := pair(rt, "kernel", 1, 3), exec.Conv{
			Stride: pair(rt, "stride", 1, 3), Pad: pair(rt, "pad", 0, 2), Dilation: pair(rt, "dilation", 1, 2),
			Groups: rapid.IntRange(1, 2).Draw(rt, "groups"),
		}
		n, size := rapid.IntRange(1, 2).Draw(rt, "n"), pair(rt, "size", 5, 9)
		in, out := a.Groups*rapid.IntRange(1, 2).Draw(rt, "in"), a.Groups*rapid.IntRange(1, 2).Draw(rt, "out")
		x, w, bias := u.node(n, in, size[0], size[1]), u.node(out, in/a.Groups, k[0], k[1]), u.node(out)
		values, weights := u.value(wide, x.Shape()...), u.value(wide, w.Shape()...)
		y, err := ops.Conv2D(x, w, nil, a)
		u.check(y, err, wide, values, weights)
		y, err = ops.Conv2D(x, w, bias, a)
		u.check(y, err, wide, values, weights, u.value(wide, out))
		dy := u.value(wide, y.Shape()...)
		u.check(gradient(u, y, 0, x, w, bias), nil, wide, dy, weights)
		u.check(gradient(u, y, 1, x, w, bias), nil, wide, dy, values)
		u.check(gradient(u, y, 2, x, w, bias), nil, wide, dy)
	})
}

// TestPooling has windows that overlap, with elements that are equal.
func TestPooling(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		u.f32()
		k := pair(rt, "kernel", 1, 4)
		p := exec.Pool{Kernel: k, Stride: pair(rt, "stride", 1, 3), Pad: [2]int{rapid.IntRange(0, k[0]/2).Draw(rt, "pad"), k[1] / 2}}
		size := pair(rt, "size", 4, 15)
		x := u.node(2, 2, size[0], size[1])
		values := u.value(wide, x.Shape()...)
		u.set(values, func(_ int, x float64) float64 { return float64(int(3 * x)) })
		y, err := ops.MaxPool2D(x, p)
		u.check(y, err, wide, values)
		u.check(gradient(u, y, 0, x), nil, wide, values, u.value(wide, y.Shape()...))
		y, err = ops.AvgPool2D(x, p)
		u.check(y, err, wide, values)
		u.check(gradient(u, y, 0, x), nil, wide, u.value(wide, y.Shape()...))
	})
}

func TestPatches(t *testing.T) {
	table := ops.Table()
	row := table[slices.IndexFunc(table, func(r *exec.Row) bool { return r.Kind == exec.KindPatches })]
	property(t, func(rt *rapid.T, u *use) {
		u.f32()
		size := pair(rt, "size", 5, 9)
		x := u.node(2, 2, size[0], size[1])
		y, err := row.Apply(exec.Patches{
			Kernel: pair(rt, "kernel", 1, 3), Pad: pair(rt, "pad", 0, 2), Stride: pair(rt, "stride", 1, 3), Dilation: pair(rt, "dilation", 1, 2),
		}, x)
		u.check(y, err, wide, u.value(wide, x.Shape()...))
		u.check(gradient(u, y, 0, x), nil, wide, u.value(wide, y.Shape()...))
	})
}
