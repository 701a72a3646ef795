//go:build linux && cgo

package gpu_test

import (
	"math"
	"testing"

	G "gorgonia.org/gorgonia"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// targets returns n classes, some of which are -1.
func (u *use) targets(n, classes int) exec.Value {
	v := u.index(n, classes)
	for i := range n {
		if u.rand.IntN(4) == 0 {
			exec.Data[int](v.Bytes)[i] = -1
		}
	}
	return v
}

func TestCrossEntropy(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		n, classes := extent(rt, "n"), extent(rt, "classes", 16, 256, 2056)
		x, targets := u.value(u.low(), n, classes), u.targets(n, classes)
		for _, special := range []float64{math.Inf(-1), math.NaN(), 300, -300} {
			if rapid.IntRange(0, 3).Draw(rt, "special") == 0 {
				at := u.rand.IntN(n * classes)
				u.set(x, func(i int, v float64) float64 {
					if i == at {
						return special
					}
					return v
				})
			}
		}
		logits, index := u.node(n, classes), u.ints(n)
		_, err := ops.CrossEntropy(logits, index, -1)
		loss := u.of(ops.KindCrossEntropy)
		packed := u.check(loss, err, wide, x, targets)
		u.check(gradient(u, loss, 0, logits, index), nil, u.low(), x, targets, packed, u.value(wide, 1))
	})
}

// TestRowLosses checks losses with smoothing and z-loss, and their mean.
func TestRowLosses(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		u.half = false // without a kernel for it
		n, classes := extent(rt, "n"), extent(rt, "classes", 256)
		l := kernel.Loss{Ignore: -1, Smoothing: rapid.SampledFrom([]float64{0, 0.1, 1}).Draw(rt, "smoothing"), Z: rapid.SampledFrom([]float64{0, 0.01}).Draw(rt, "z")}
		x, targets := u.value(wide, n, classes), u.targets(n, classes)
		logits, index := u.node(n, classes), u.ints(n)
		_, err := ops.SmoothCrossEntropy(logits, index, l)
		rows := u.of(ops.KindRowLosses)
		packed := u.check(rows, err, wide, x, targets)
		u.check(gradient(u, rows, 0, logits, index), nil, wide, x, targets, packed, u.value(wide, n))

		u.graph = G.NewGraph()
		n = extent(rt, "losses", 1024, 5000)
		logits, index = u.node(n, 1), u.ints(n)
		_, err = ops.SmoothCrossEntropy(logits, index, l)
		mean := u.of(ops.KindMeanLoss)
		targets = u.targets(n, 9)
		u.check(mean, err, wide, u.value(wide, n), targets)
		u.check(gradient(u, mean, 0, u.node(n), index), nil, wide, targets, u.value(wide, 1))
	})
}

func TestPairLosses(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		u.half = false // without a kernel for it
		n := extent(rt, "n", 256, 1024, 5000)
		x, target, w := u.node(n), u.node(n), (*G.Node)(nil)
		args, nodes := []exec.Value{u.value(wide, n), u.value(wide, n)}, G.Nodes{x, target}
		grads := append(args[:2:2], u.value(wide, 1))
		if rapid.Bool().Draw(rt, "weighted") {
			v := u.value(wide, n)
			some := float64(rapid.IntRange(0, 1).Draw(rt, "some"))
			u.set(v, func(int, float64) float64 { return float64(u.rand.IntN(3)) * some })
			w = u.node(n)
			args, grads, nodes = append(args, v), append(grads, v), append(nodes, w)
		}
		loss, kind := ops.MSE, ops.KindMSE
		if rapid.Bool().Draw(rt, "binary") {
			loss, kind = ops.BCE, ops.KindBCE
		}
		y, err := loss(x, target, w)
		u.check(y, err, wide, args...)
		u.check(gradient(u, u.of(kind), 0, nodes...), nil, wide, grads...)
	})
}
