package kit_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// TestStrictGroupNotices breaks the contract on one of two ranks.
func TestStrictGroupNotices(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(dst, src []float64, wait func())
		wrong string
		open  int
	}{
		"honest":            {func(dst, src []float64, wait func()) { wait(); wait(); src[0], dst[0] = 9, 9 }, "", 0},
		"writes the source": {func(dst, src []float64, wait func()) { src[1] = 7; wait() }, `rank 1: all-gather of "x": the source was written`, 0},
		"writes too early":  {func(dst, src []float64, wait func()) { dst[3] = 7; wait() }, `rank 1: all-gather of "x": the destination was written`, 0},
		"does not wait":     {func(dst, src []float64, wait func()) {}, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				strict := kit.NewStrictGroup(g)
				dst, src := make([]float64, 4), []float64{1 + 2*float64(g.Rank()), 2 + 2*float64(g.Rank())}
				w := strict.AllGather(comm.Of(dst).Named("x"), comm.Of(src).Named("x"))
				require.True(t, math.IsNaN(dst[0]), "what is read too early")
				wait := func() { require.NoError(t, w.Wait(ctx)); require.Equal(t, []float64{1, 2, 3, 4}, dst) }
				if g.Rank() == 0 {
					wait()
					strict.Book.Require(t)
				} else {
					c.do(dst, src, wait)
					require.Equal(t, c.open, strict.Book.Open)
					require.Equal(t, c.wrong != "", len(strict.Book.Wrong) == 1)
					require.Contains(t, fmt.Sprint(strict.Book.Wrong), c.wrong)
				}
				require.NoError(t, g.Barrier(ctx))
			})
		})
	}
}
