package stats

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestMedianAndGeomean(t *testing.T) {
	require.Equal(t, 3.0, Median([]float64{9, 1, 3}))
	require.Equal(t, 2.0, Median([]float64{3, 1}))
	require.Equal(t, 5.0, Median([]float64{5}))
	require.InDelta(t, 4, Geomean([]float64{2, 8}), 1e-12)
	samples := []float64{3, 1, 2}
	Median(samples)
	require.Equal(t, []float64{3, 1, 2}, samples, "samples stay in the order of the rounds")
}

func TestStatisticsAreMeans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SliceOfN(rapid.Float64Range(1e-7, 1e3), 1, 20).Draw(t, "samples")
		for name, m := range map[string]float64{"median": Median(s), "geomean": Geomean(s)} {
			require.GreaterOrEqual(t, m, slices.Min(s)*(1-1e-9), name)
			require.LessOrEqual(t, m, slices.Max(s)*(1+1e-9), name)
		}
		inverse := make([]float64, len(s))
		for i, x := range s {
			inverse[i] = 1 / x
		}
		require.InEpsilon(t, 1, Geomean(s)*Geomean(inverse), 1e-9, "it does not matter who is the anchor")
	})
}

func TestRatio(t *testing.T) {
	a, b := []time.Duration{2, 40, 900}, []time.Duration{1, 10, 1000}
	require.Equal(t, 2.0, Ratio(a, b), "of neighbours, not of medians")
	require.Equal(t, "2.000 (0.900..4.000)", RatioSpread(a, b))
	require.Equal(t, "4.500 (3.000..6.000)", RatioSpread([]float64{8, 1, 7, 2, 6, 3, 5, 4}, []float64{1, 1, 1, 1, 1, 1, 1, 1}))
	require.Equal(t, "2.000 (2.000..2.000)", RatioSpread(a[:1], b[:1]))
}

func TestSpread(t *testing.T) {
	require.Equal(t, "2.0 (1.0..9.0, 3)", Spread([]time.Duration{9e6, 1e6, 2e6}))
	require.Equal(t, 1.5, MB(1_500_000))
}
