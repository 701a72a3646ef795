package local

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// BenchmarkLocal prints, for two ranks, the bytes of the full tensor per second
// and how that compares with the least that plain copy needs for the same result,
// every rank filling its share of the memory that is written, measured in turn
// with it (best of the rounds).
func BenchmarkLocal(b *testing.B) {
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
	// Tensors, over all ranks.
	written := map[string]int{"AllGather": 2, "ReduceScatter": 1, "AllReduce": 2, "Broadcast": 1, "Gather": 1}
	for _, name := range []string{"AllGather", "ReduceScatter", "AllReduce", "Broadcast", "Gather"} {
		for _, bytes := range []int{16, 64 << 10, 1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", name, bytes), func(b *testing.B) {
				gs := groups(n)
				var full, shard, spare [n]transport.Buffer
				for r := range n {
					full[r], shard[r] = grouptest.Floats(bytes/4), grouptest.Floats(bytes/4/n)
					spare[r] = grouptest.Floats(bytes / 4)
					for _, b := range []transport.Buffer{full[r], shard[r], spare[r]} {
						clear(b.Bytes()) // give it pages: memory never written is one page of zeros
					}
				}
				rounds := max(1, min(2000, 64<<20/bytes))
				share := written[name] * bytes / n
				best, bestCopy := math.Inf(1), math.Inf(1)
				for b.Loop() {
					best = min(best, grouptest.TimeRanks(gs, rounds, func(g transport.Group) {
						if err := kinds[name](g, full[g.Rank()], shard[g.Rank()]).Wait(context.Background()); err != nil {
							b.Error(err)
						}
					}))
					bestCopy = min(bestCopy, grouptest.TimeRanks(gs, rounds, func(g transport.Group) {
						copy(full[g.Rank()].Bytes()[:share], spare[g.Rank()].Bytes())
					}))
				}
				b.ReportMetric(best*1e6, "us/collective")
				b.ReportMetric(float64(bytes)/best/1e9, "GB/s")
				b.ReportMetric(best/bestCopy, "x-copy")
				b.ReportMetric(0, "ns/op") // of all rounds: says nothing
			})
		}
	}
}
