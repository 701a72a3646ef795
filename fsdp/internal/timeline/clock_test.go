package timeline

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOffset compares clocks that tick whenever one is looked at, so that the true order of all
// looks is known, and that are far from each other.
func TestOffset(t *testing.T) {
	for name, skews := range map[string][]int64{
		"one":   {5e15},
		"equal": {7e12, 7e12, 7e12},
		"apart": {0, 3e15, -4e12, 1e6},
	} {
		t.Run(name, func(t *testing.T) {
			var ticks atomic.Int64
			got := make([]time.Duration, len(skews))
			err := comm.Run(t.Context(), len(skews), func(ctx context.Context, g comm.Group) (err error) {
				now := func() time.Time { return time.Unix(0, ticks.Add(1)+skews[g.Rank()]) }
				got[g.Rank()], err = offset(ctx, g, now)
				return err
			})
			require.NoError(t, err)
			for r, o := range got {
				// The times of one round lie between those of the rounds beside it.
				require.InDelta(t, skews[0]-skews[r], o.Nanoseconds(), float64(4*len(skews)), "rank %d", r)
				if skews[r] == skews[0] {
					require.Zero(t, o, "rank %d: clocks that agree are left alone", r)
				}
			}
		})
	}
}
