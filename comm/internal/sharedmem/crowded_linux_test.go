package sharedmem

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// BenchmarkCrowdedProcesses is [BenchmarkCrowded] for two processes that share
// memory. To have them share a processor as well, run it under taskset -c 0.
func BenchmarkCrowdedProcesses(b *testing.B) {
	for i, c := range crowds {
		b.Run(c.name, func(b *testing.B) {
			var all pace
			for b.Loop() {
				g, child := fork(b, crowdRole(i), 0)
				p, err := c.run(g)
				require.NoError(b, err)
				require.NoError(b, g.Close())
				require.NoError(b, child.Wait())
				all.add(p)
			}
			all.Report(b)
		})
	}
}

func crowdRole(i int) string { return "crowd: " + crowds[i].name }

func init() {
	for i, c := range crowds {
		roles[crowdRole(i)] = func(t *testing.T, g transport.Group) {
			_, err := c.run(g)
			require.NoError(t, err)
		}
	}
}
