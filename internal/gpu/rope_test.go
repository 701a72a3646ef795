//go:build linux && cgo

package gpu_test

import (
	"math"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/ops"
)

func TestRope(t *testing.T) {
	property(t, func(rt *rapid.T, u *use) {
		between := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(rt, name) }
		batch, n, unused := between("batch", 1, 2), extent(rt, "n"), between("unused rows", 0, 3)
		unit := rapid.SampledFrom([]int{2, 8, 16}).Draw(rt, "unit") // of columns
		r := kernel.Rotary{Dims: unit * between("turned", 1, 3), Interleaved: rapid.Bool().Draw(rt, "interleaved")}
		r.HeadDim = r.Dims + unit*between("not turned", 0, 2)
		heads, others := between("heads", 1, 3), between("other heads", 0, 1)
		if others > 0 {
			r.Heads = heads
		}
		shape := []int{batch, n, (heads + others) * r.HeadDim}
		x, table := u.node(shape...), u.node(n+unused, r.Dims)
		nodes, args := []*G.Node{x, table}, []exec.Value{angles(u, n+unused, r.Dims)}
		positions := nodes[:0:0]
		if rapid.Bool().Draw(rt, "positions") {
			p := u.index(batch*n, n+unused)
			p.Shape = tensor.Shape{batch, n}
			args, positions = append(args, p), []*G.Node{u.ints(batch, n)}
			nodes = append(nodes, positions...)
		}
		y, err := ops.Rope(x, append(positions, nil)[0], ops.Angles{Rows: n + unused, Base: 10000, Factor: 1}, r)
		u.check(y, err, u.low(), append([]exec.Value{u.value(u.low(), shape...)}, args...)...)
		u.check(gradient(u, y, 0, nodes...), nil, u.low(), append([]exec.Value{u.value(u.low(), shape...)}, args...)...)
	})
}

// angles returns the cosines of some angles in each row, and then their sines.
func angles(u *use, rows, dims int) exec.Value {
	v := u.value(wide, rows, dims)
	for i := range rows * dims {
		x := math.Cos(float64(i/dims + 3*(i%dims%(dims/2))))
		if i%dims >= dims/2 {
			x = math.Sin(float64(i/dims + 3*(i%dims%(dims/2))))
		}
		if u.dtype == tensor.Float64 {
			exec.Data[float64](v.Bytes)[i] = x
		} else {
			exec.Data[float32](v.Bytes)[i] = float32(x)
		}
	}
	return v
}
