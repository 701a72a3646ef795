//go:build linux && cgo

package nccl

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// counted is a group that counts the all-gathers of it and of what is split from it, and their
// bytes.
type counted struct {
	comm.Group
	gathers, bytes *int
}

// Split implements comm.Group.
func (c *counted) Split(ctx context.Context, color, key int) (comm.Group, error) {
	g, err := c.Group.Split(ctx, color, key)
	return &counted{g, c.gathers, c.bytes}, err
}

// AllGather implements comm.Group.
func (c *counted) AllGather(dst, src comm.Buffer) comm.Work {
	*c.gathers++
	*c.bytes += len(src.Bytes())
	return c.Group.AllGather(dst, src)
}

// A collective costs one exchange of 72 bytes a rank over the host group, in however many pieces it
// goes through NCCL; the note "Calls are compared one by one" says why.
func TestGroupMeetsOnce(t *testing.T) {
	_, lib := doubles(t)
	boot := comm.Local(2)
	launches := lib.Calls("ncclAllReduce")
	for r, err := range each(2, func(r int) error {
		var gathers, bytes int
		dev := must(OpenDevice(r))
		g := must(New(t.Context(), &counted{boot[r], &gathers, &bytes}, dev, pieces))
		require.Zero(&rank{}, gathers)
		x := must(dev.Alloc(64))
		host, whole, shard := make([]float32, 10_000), f32s(x.Addr(), 16), f32s(x.Addr()+uintptr(32*r), 8)
		works := []comm.Work{
			g.AllGather(whole, shard), g.ReduceScatter(shard, whole, comm.Sum), g.AllReduce(whole, comm.Max),
			g.AllReduce(comm.Of(host), comm.Sum), g.Broadcast(whole.Slice(0, 0), 0),
		}
		for _, w := range works {
			check(w.Wait(t.Context()))
		}
		check(g.Barrier(t.Context()))
		require.Equal(&rank{}, len(works)+1, gathers)
		require.Equal(&rank{}, 72*gathers, bytes)
		return errors.Join(g.Close(), x.Free(), dev.Close())
	}) {
		require.NoError(t, err, "rank %d", r)
	}
	require.Greater(t, lib.Calls("ncclAllReduce")-launches, 2*10, "the host buffer goes in pieces")
}

// Calls that differ are an error that names both sides on every rank, before NCCL is asked for
// anything.
func TestGroupMismatchLaunchesNothing(t *testing.T) {
	_, lib := doubles(t)
	functions := []string{"ncclGroupStart", "ncclAllReduce", "ncclBroadcast"}
	calls := func() (list []int) {
		for _, f := range functions {
			list = append(list, lib.Calls(f))
		}
		return list
	}
	before := calls()
	for r, err := range groupOf(t, 3, GroupConfig{}, func(m *member) (err error) {
		m.me.alloc(16, func(x uintptr) {
			buf := f32s(x, 4)
			if m.Rank() == 2 {
				err = m.Broadcast(buf, 0).Wait(m.me.ctx)
			} else {
				err = m.AllReduce(buf, comm.Sum).Wait(m.me.ctx)
			}
		})
		return err
	}) {
		var mismatch *comm.MismatchError
		require.ErrorAs(t, err, &mismatch, "rank %d", r)
		require.Equal(t, [2]int{0, 2}, mismatch.Ranks, "rank %d", r)
		require.Equal(t, [2]string{`all-reduce float32[4] sum "x"`, `broadcast float32[4] from 0 "x"`}, mismatch.Calls, "rank %d", r)
	}
	require.Equal(t, before, calls())
}
