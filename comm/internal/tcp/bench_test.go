package tcp

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// BenchmarkRemote prints, for two ranks over loopback, the bytes of the full
// tensor per second, how many times longer the portable pump takes, and how many
// times longer it takes with checksums than without, measured in turn (best of the
// rounds).
func BenchmarkRemote(b *testing.B) {
	const n = 2
	kinds := map[string]func(g transport.Group, full, shard transport.Buffer) transport.Work{
		"AllGather": func(g transport.Group, full, shard transport.Buffer) transport.Work { return g.AllGather(full, shard) },
		"ReduceScatter": func(g transport.Group, full, shard transport.Buffer) transport.Work {
			return g.ReduceScatter(shard, full, transport.Sum)
		},
		"AllReduce": func(g transport.Group, full, _ transport.Buffer) transport.Work {
			return g.AllReduce(full, transport.Sum)
		},
		"Broadcast": func(g transport.Group, full, _ transport.Buffer) transport.Work { return g.Broadcast(full, 0) },
		"Gather": func(g transport.Group, full, shard transport.Buffer) transport.Work {
			return g.Gather(full, shard, []int{shard.Len(), shard.Len()}, 0)
		},
	}
	for _, name := range []string{"AllGather", "ReduceScatter", "AllReduce", "Broadcast", "Gather"} {
		for _, bytes := range []int{16, 64 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", name, bytes), func(b *testing.B) {
				pumps := [][]transport.Group{RemoteGroups(b, n, Wiring{}), RemoteGroups(b, n, Wiring{Portable: true}), RemoteGroups(b, n, Wiring{Unsummed: true})}
				var full, shard [n]transport.Buffer
				for r := range n {
					full[r], shard[r] = grouptest.Floats(bytes/4), grouptest.Floats(bytes/4/n)
					clear(full[r].Bytes()) // give it pages
				}
				rounds := max(1, min(1000, 64<<20/bytes))
				best := [3]float64{math.Inf(1), math.Inf(1), math.Inf(1)}
				for b.Loop() {
					for i, gs := range pumps {
						best[i] = min(best[i], grouptest.TimeRanks(gs, rounds, func(g transport.Group) {
							if err := kinds[name](g, full[g.Rank()], shard[g.Rank()]).Wait(context.Background()); err != nil {
								b.Error(err)
							}
						}))
					}
				}
				b.ReportMetric(best[0]*1e6, "us/collective")
				b.ReportMetric(float64(bytes)/best[0]/1e9, "GB/s")
				b.ReportMetric(best[1]/best[0], "x-portable")
				b.ReportMetric(best[0]/best[2], "x-unsummed")
				b.ReportMetric(0, "ns/op") // of all rounds: says nothing
				for _, gs := range pumps {
					grouptest.CloseRanks(b, gs)
				}
			})
		}
	}
}
