package fsdp_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
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
		m, err := fsdp.Wrap(tinyGPT(1), fsdp.Config{Group: g, Divide: fsdp.ByWeights})
		after("Wrap", err)
		for batch, err := range m.Join(ctx, batches(1, func(int) []fsdp.Tensor { return good(0) })) {
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
		require.LessOrEqual(t, bytes, 256, method)
	}
	require.Equal(t, said(8), many)
}
