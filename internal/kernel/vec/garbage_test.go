//go:build !race

package vec

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTreeSumReusesScratch: sums of many sources leave no garbage, nested ones neither.
// Under the race detector they do, as it lets pools drop at random what they are given.
func TestTreeSumReusesScratch(t *testing.T) {
	for _, n := range []int{8, 9, 64, 65, 200} {
		srcs := make([][]float64, n)
		for k := range srcs {
			srcs[k] = make([]float64, 2500)
		}
		require.Zero(t, testing.AllocsPerRun(100, func() { TreeSum(srcs[0], srcs, 1) }), "%d sources", n)
	}
}

// TestUpdates16ReuseScratch: updates with state in bfloat16 leave no garbage.
func TestUpdates16ReuseScratch(t *testing.T) {
	const n = 3 * block16
	p, m := make([]float32, n), Halves(make([]float32, Words16(n)), n)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		Adam16(p, p, m, m, 1, 0, AdamHyper{BiasCorrection1: 1, BiasCorrection2Sqrt: 1, Eps: 1})
		SGD16(p, p, m, 1, 0, SGDHyper{Momentum: 0.9})
	}))
}
