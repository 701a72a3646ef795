//go:build linux && cgo

package gpu_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// TestNorms has rows of a part of a warp up to the longest that the fastest kernels have, and
// longer ones, and more rows than a sum has parts.
func TestNorms(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		n, d := extent(rt, "n"), extent(rt, "d", 256)
		switch rapid.IntRange(0, 20).Draw(rt, "large") {
		case 0:
			n, d = 3, rapid.SampledFrom([]int{1600, 8192, 8200}).Draw(rt, "long row")
		case 1:
			n, d = extent(rt, "many", 520, 1030), min(d, 9)
		}
		x, gain, bias := u.node(n, d), u.node(d), u.node(d)
		values, gains := u.value(u.low(), n, d), u.value(wide, d)
		checkGradient := func(y *G.Node, sums, statistics int, in ...*G.Node) {
			args := []exec.Value{values, gains, u.value(u.tail(statistics), n*d+statistics), u.value(u.low(), n, d)}
			grad := gradient(u, y, 0, in...)
			u.check(grad, nil, u.tail(sums), args...)
			op := packed(u, y).Op().(*exec.Op)
			added, err := op.Gradient(packed(u, grad).Op().(*exec.Op).Merged[exec.KindAdd], u.node(n, d), x, gain, packed(u, y), u.node(n, d))
			require.NoError(u, err)
			u.check(added[0], nil, u.tail(sums), append([]exec.Value{u.value(u.low(), n, d)}, args...)...)
		}
		if rapid.Bool().Draw(rt, "layer norm") {
			y, err := ops.LayerNorm(x, gain, bias, 1e-5)
			u.check(y, err, u.tail(2*n), values, gains, u.value(wide, d))
			checkGradient(y, 2*d, 2*n, x, gain, bias)
			return
		}
		y, err := ops.RMSNorm(x, gain, 1e-6)
		u.check(y, err, u.tail(n), values, gains)
		checkGradient(y, d, n, x, gain)
	})
}

// TestNormsFarFromZero has rows whose mean is large beside what they differ by, of one value, and
// with a NaN.
func TestNormsFarFromZero(t *testing.T) {
	property(t, func(_ *rapid.T, u *use) {
		const n, d = 3, 40
		values := u.value(u.low(), n, d)
		u.set(values, func(i int, x float64) float64 {
			if i == 2*d+7 {
				return math.NaN()
			}
			return []float64{100 + 4*float64(i%3), 5, x}[i/d]
		})
		y, err := ops.LayerNorm(u.node(n, d), u.node(d), u.node(d), 1e-5)
		u.check(y, err, u.tail(2*n), values, u.value(wide, d), u.value(wide, d))
	})
}
