package parity_test

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// crowd is a group of many ranks of which only one is there: its collectives end at once and leave
// buffers as they are, as if all ranks had said the same. It counts the bytes of those that carry
// no parameters or gradients, on this rank.
type crowd struct {
	comm.Group
	size  int
	bytes int
}

func (c *crowd) Rank() int { return 5 }
func (c *crowd) Size() int { return c.size }

func (c *crowd) done(buffers ...comm.Buffer) comm.Work {
	for _, b := range buffers {
		if l := b.Label(); l != "root" && !strings.HasPrefix(l, "blocks") {
			c.bytes += len(b.Bytes())
		}
	}
	return c
}

func (c *crowd) Wait(context.Context) error { return nil }

func (c *crowd) AllGather(dst, src comm.Buffer) comm.Work                { return c.done(dst, src) }
func (c *crowd) ReduceScatter(dst, src comm.Buffer, _ comm.Op) comm.Work { return c.done(dst, src) }
func (c *crowd) AllToAll(dst, src comm.Buffer) comm.Work                 { return c.done(dst, src) }
func (c *crowd) AllReduce(buf comm.Buffer, _ comm.Op) comm.Work          { return c.done(buf) }
func (c *crowd) Broadcast(buf comm.Buffer, _ int) comm.Work              { return c.done(buf) }
func (c *crowd) Gather(dst, src comm.Buffer, counts []int, root int) comm.Work {
	return c.done(dst, src)
}

// TestManyRanks bounds what a rank is told by 16,384 others when all is well: a few words for each
// method, whatever the number of ranks.
func TestManyRanks(t *testing.T) {
	said := func(ranks int) map[string]int {
		ctx, g := context.Background(), &crowd{Group: comm.Local(1)[0], size: ranks}
		bytes := make(map[string]int)
		after := func(method string, err error) {
			require.NoError(t, err, method)
			bytes[method], g.bytes = g.bytes, 0
		}
		m, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, GradAverage: fsdp.ByWeights})
		after("Wrap", err)
		for batch, err := range m.Join(ctx, kit.Batches(1, func(int) []fsdp.Tensor { return kit.GoodBatch(0) })) {
			after("Join", err)
			_, err = m.Forward(ctx, batch...)
			after("Forward", err)
			after("Backward", m.Backward(ctx, fsdp.Weight(3)))
			_, err = m.ClipGradNorm(ctx, 1)
			after("ClipGradNorm", err)
			after("SyncGrads", m.SyncGrads(ctx))
			_, err = m.Eval(ctx, batch...)
			after("Eval", err)
			break
		}
		require.NoError(t, m.Close())
		return bytes
	}
	many := said(16384)
	require.Len(t, many, 7)
	for method, bytes := range many {
		limit := 256
		if method == "Wrap" {
			limit += 40 // words for the instruction set and for memory
		}
		require.LessOrEqual(t, bytes, limit, method)
	}
	require.Equal(t, said(8), many)
}

// TestManyRanksOfOwnGroups bounds what a rank is told of groups of units: two words for each rank and
// group, in whatever many units a group is.
func TestManyRanksOfOwnGroups(t *testing.T) {
	said := func(ranks, layers int) int {
		g, own := &crowd{Group: comm.Local(1)[0], size: ranks}, &crowd{Group: comm.Local(1)[0], size: 8}
		m, err := fsdp.Wrap(kit.TinyGPT(layers), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Unit: kit.GroupOf(func(u fsdp.UnitConfig) comm.Group {
			if u.Root {
				return nil
			}
			return own
		})})
		require.NoError(t, err)
		require.NoError(t, m.Close())
		return g.bytes
	}
	few, many := said(16, 3), said(1<<14, 3)
	require.Equal(t, 16*(1<<14-16), many-few)
	require.Equal(t, many, said(1<<14, 1))
}

// TestGroupsThatSomeRanksShare gives two units the same group on two ranks, and on the two others a
// group each, of the same ranks: nothing else changes.
func TestGroupsThatSomeRanksShare(t *testing.T) {
	run := func(apart bool) [][]map[string][]float64 {
		result := make([][]map[string][]float64, 4)
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			cfg := kit.GroupedBy(t, ctx, g, "l1", 2)
			first := kit.UnitGroup(cfg, "l1")
			second, err := g.Split(ctx, g.Rank()/2, g.Rank())
			require.NoError(t, err)
			if !apart || g.Rank() < 2 {
				second = first
			}
			cfg.Unit = kit.GroupOf(func(u fsdp.UnitConfig) comm.Group { return map[string]comm.Group{"l1": first, "l3": second}[u.Name] })
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
			result[g.Rank()] = []map[string][]float64{kit.GradsOf(t, ctx, m)}
			require.NoError(t, m.Close())
		})
		return result
	}
	require.Equal(t, run(false), run(true))
}

// BenchmarkWrapOfManyRanks wraps GPTs on one of 16,384 ranks, and says what is in use then, with the rank's
// share of the parameters, and how much the garbage was.
func BenchmarkWrapOfManyRanks(b *testing.B) {
	for name, model := range map[string]*nn.GPT{
		"124M": {Vocab: 50257, Context: 1024, Layers: 12, Dim: 768, Heads: 12},
		"175B": {Vocab: 50257, Context: 2048, Layers: 96, Dim: 12288, Heads: 96},
	} {
		b.Run(name, func(b *testing.B) {
			g := &crowd{Group: comm.Local(1)[0], size: 1 << 14}
			inUse := func() (m runtime.MemStats) {
				runtime.GC()
				runtime.ReadMemStats(&m)
				return m
			}
			for b.Loop() {
				b.StopTimer()
				before := inUse()
				b.StartTimer()
				m, err := fsdp.Wrap(model, fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
				b.StopTimer()
				after := inUse()
				require.NoError(b, err)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB-in-use")
				b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6, "MB-allocated")
				b.ReportMetric(float64(m.Memory().Live)/1e6, "MB-parameters")
				require.NoError(b, m.Close())
				b.StartTimer()
			}
		})
	}
}
