//go:build !race

package vec

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/half"
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

// TestUpdates16ReuseScratch: updates of bfloat16 leave no garbage.
func TestUpdates16ReuseScratch(t *testing.T) {
	const n = 3 * block16
	p, m := Numbers{F32: make([]float32, n)}, Numbers{F16: make([]half.BFloat16, n), Seed: 1}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		Adam16(p, p, m, m, 0, AdamHyper{BiasCorrection1: 1, BiasCorrection2Sqrt: 1, Eps: 1})
		Adam16(m, m, p, p, 0, AdamHyper{BiasCorrection1: 1, BiasCorrection2Sqrt: 1, Eps: 1})
		SGD16(m, p, m, 0, SGDHyper{Momentum: 0.9})
	}))
}
