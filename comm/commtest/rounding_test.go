package commtest

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// wrong is a group whose all-reduces of float32 are changed in the end.
type wrong struct {
	comm.Group
	change func(g comm.Group, own, x []float32, op comm.Op)
}

func (w wrong) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	x, err := comm.Slice[float32](buf)
	if err != nil {
		return w.Group.AllReduce(buf, op)
	}
	own := slices.Clone(x) // before the operation may write to x
	return changed{w.Group.AllReduce(buf, op), w, own, x, op}
}

type changed struct {
	comm.Work
	in     wrong
	own, x []float32
	op     comm.Op
}

func (c changed) Wait(ctx context.Context) error {
	err := c.Work.Wait(ctx)
	c.in.change(c.in.Group, c.own, c.x, c.op)
	return err
}

// The bound holds for sums in another order, and for nothing worse.
func TestRounded(t *testing.T) {
	backwards := func(g comm.Group, own, x []float32, op comm.Op) {
		all := make([]float32, g.Size()*len(x))
		_ = g.AllGather(comm.Of(all), comm.Of(own)).Wait(context.Background())
		for i := range x {
			x[i] = 0
			for r := g.Size() - 1; r >= 0; r-- {
				x[i] += all[r*len(x)+i]
			}
		}
	}
	for name, c := range map[string]struct {
		change         func(g comm.Group, own, x []float32, op comm.Op)
		exact, rounded bool
	}{
		"right":     {func(comm.Group, []float32, []float32, comm.Op) {}, true, true},
		"backwards": {backwards, false, true},
		"one term":  {func(_ comm.Group, own, x []float32, _ comm.Op) { copy(x, own) }, false, false},
		"off":       {func(_ comm.Group, _, x []float32, _ comm.Op) { x[0] *= 1.0001 }, false, false},
		"NaN":       {func(_ comm.Group, _, x []float32, _ comm.Op) { x[0] = float32(math.NaN()) }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			for rounded, right := range map[bool]bool{false: c.exact, true: c.rounded} {
				gs := comm.Local(5)
				for r, g := range gs {
					gs[r] = wrong{g, c.change}
				}
				errs := each(gs, func(ctx context.Context, g comm.Group) error {
					w, check := step{kind: AllReduce, dtype: comm.Float32, len: 1000, seed: 3, rounded: rounded}.issue(g)
					if err := w.Wait(ctx); err != nil {
						return err
					}
					return check()
				})
				require.Equal(t, right, errs[0] == nil, "rounded %t: %v", rounded, errs[0])
			}
		})
	}
}
