//go:build linux && cgo

package gpu_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// TestActivations has numbers of all sizes, and sizes around those that a thread and a block have.
func TestActivations(t *testing.T) {
	functions := []func(*G.Node) (*G.Node, error){ops.GELU, ops.GELUTanh, ops.SiLU, ops.Tanh, ops.Sigmoid, ops.ReLU}
	property(t, func(rt *rapid.T, u *use) {
		n := extent(rt, "n", 256, 2048)
		x, values := u.node(n), u.value(u.low(), n)
		u.set(values, func(_ int, x float64) float64 { return x * []float64{1, 1, 10, 0.01}[u.rand.IntN(4)] })
		y, err := functions[rapid.IntRange(0, len(functions)-1).Draw(rt, "function")](x)
		u.check(y, err, u.low(), values)
		u.check(gradient(u, y, 0, x), nil, u.low(), values, u.value(u.low(), n))
		y, err = ops.Scale(x, -0.7)
		u.check(y, err, u.low(), values)
	})
}

// TestSlopesAtTheEnds has the slopes of activations where they are saturated, as on the host.
func TestSlopesAtTheEnds(t *testing.T) {
	property(t, func(_ *rapid.T, u *use) {
		for _, f := range []struct {
			of   func(*G.Node) (*G.Node, error)
			want []float64
		}{
			{ops.GELU, []float64{1, 0}}, {ops.GELUTanh, []float64{1, 0}}, {ops.SiLU, []float64{1, 0}}, {ops.Tanh, []float64{0, 0}},
			{ops.Sigmoid, []float64{0, 0}}, {ops.ReLU, []float64{1, 0}},
		} {
			x, values, dy := u.node(4), u.value(u.low(), 4), u.value(u.low(), 4)
			u.set(values, func(i int, _ float64) float64 { return []float64{math.Inf(1), math.Inf(-1), 1e5, -1e5}[i] })
			u.set(dy, func(int, float64) float64 { return 1 })
			y, err := f.of(x)
			in, frame := u.instr(gradient(u, y, 0, x), err, u.low(), []exec.Value{values, dy})
			require.Equal(u, slices.Repeat(f.want, 2), u.Floats(u.Run(u, in, frame, false)), "%v", in.Op)
		}
	})
}

// TestGatedUnits has rows of ragged lengths.
func TestGatedUnits(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		rows, d, gate := extent(rt, "rows"), extent(rt, "d", 64), vec.Gate(rapid.IntRange(0, 4).Draw(rt, "gate"))
		x, up, packed := u.node(rows, d), u.node(rows, d), u.node(rows, 2*d)
		value := func(d int) exec.Value { return u.value(u.low(), rows, d) }
		y, err := ops.GLU(gate, x, up)
		u.check(y, err, u.low(), value(d), value(d))
		u.check(gradient(u, y, 0, x, up), nil, u.low(), value(d), value(d), value(d))
		y, err = ops.GLU(gate, packed, nil)
		u.check(y, err, u.low(), value(2*d))
		u.check(gradient(u, y, 0, packed), nil, u.low(), value(2*d), value(d))
	})
}
