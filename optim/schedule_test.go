package optim_test

import (
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/optim"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestScheduleCorners(t *testing.T) {
	cosine, linear := optim.WarmupCosine(1, 0.25, 3, 11), optim.WarmupLinear(1, 0.25, 3, 11)
	for _, c := range []struct {
		step           int
		cosine, linear float64
	}{
		{0, 0.25, 0.25}, {1, 0.5, 0.5}, {2, 0.75, 0.75}, // warmup
		{3, 1, 1}, // peak
		{5, 0.25 + 0.375*(1+math.Sqrt2/2), 0.8125},
		{7, 0.625, 0.625}, // half way
		{11, 0.25, 0.25}, {12, 0.25, 0.25}, {math.MaxInt, 0.25, 0.25},
	} {
		require.InDelta(t, c.cosine, cosine(c.step), 1e-15, "cosine, step %d", c.step)
		require.InDelta(t, c.linear, linear(c.step), 1e-15, "linear, step %d", c.step)
	}
	require.Equal(t, 0.3, optim.Constant(0.3)(0))
	require.Equal(t, 0.3, optim.Constant(0.3)(math.MaxInt))

	require.Equal(t, 1.0, optim.WarmupCosine(1, 0, 0, 4)(0), "no warmup begins at the peak")
	late := optim.WarmupLinear(1, 0, 4, 4)
	require.InDelta(t, 0.8, late(3), 1e-15)
	require.Zero(t, late(4), "no decay left")
	require.Zero(t, optim.WarmupCosine(1, 0, 0, 0)(0))
}

func TestScheduleRisesThenFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		peak := rapid.Float64Range(1e-6, 10).Draw(t, "peak")
		floor := rapid.Float64Range(0, 1).Draw(t, "floor") * peak
		warmup := rapid.IntRange(0, 20).Draw(t, "warmup")
		total := warmup + rapid.IntRange(1, 30).Draw(t, "decay")
		for _, s := range []optim.Schedule{optim.WarmupCosine(peak, floor, warmup, total), optim.WarmupLinear(peak, floor, warmup, total)} {
			require.InEpsilon(t, peak, s(warmup), 1e-15)
			require.Equal(t, floor, s(total))
			for step := range total + 2 {
				require.GreaterOrEqual(t, s(step), min(floor, s(0)))
				if step < warmup {
					require.Less(t, s(step), s(step+1))
				} else {
					require.GreaterOrEqual(t, s(step), s(step+1))
				}
			}
		}
	})
}
