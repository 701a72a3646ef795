//go:build linux && cgo

package gpu

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/optim"
)

// small is a layout of three groups: a trained one of 256 elements, a frozen one of 20 and buffers.
func small(t require.TestingT, places, place, replicas int) *layout.Layout {
	l := &layout.Layout{Groups: []layout.Group{*flat(t, 256, places, place), *flat(t, 20, places, place), *flat(t, 10, 1, 0)}}
	l.Groups[0].Name, l.Groups[1].Name = "block", "head"
	l.Groups[1].Kind.Frozen = true
	l.Groups[2].Name, l.Groups[2].Kind = "norm", layout.Kind{Frozen: true, Buffer: true}
	for i := range l.Groups {
		l.Groups[i].Ranks.Replicas = replicas
	}
	return l
}

// lonely returns the meshes of one rank.
func lonely() []ranks.Mesh {
	g := comm.Local(1)[0]
	return slices.Repeat([]ranks.Mesh{{Shard: g, Peers: g}}, 3)
}

// TestNewShards counts memory, all zero, and lets each call of the driver fail once: then nothing
// is left, and the error names the group.
func TestNewShards(t *testing.T) {
	cuda := double(t)
	l := small(t, 1, 0, 1)
	for _, call := range []string{"cuMemAlloc", "cuMemsetD8Async"} {
		d := open(t, Options{})
		before, live, calls := d.held, cuda.Live("bytes"), cuda.Calls(call)
		s, err := d.NewShards(t.Context(), l, lonely())
		require.NoError(t, err)
		calls = cuda.Calls(call) - calls
		require.Equal(t, 4, calls)
		require.Equal(t, before+l.ShardBytes(), d.held)
		require.Equal(t, l.ShardBytes(), cuda.Live("bytes")-live)
		require.Equal(t, l.ShardBytes(), d.counts.Stats().Live[arena.Shard])
		require.Nil(t, s.Grad(1))
		for _, v := range []optim.Vec{s.Value(0), s.Grad(0), s.Value(1)} {
			same(t, optim.Host{F32: make([]float32, v.Len())}, v)
		}
		state, err := s.Alloc(0, 50)
		require.NoError(t, err)
		require.Equal(t, 50, state.Len())
		require.Equal(t, 200, d.counts.Stats().Live[arena.State])
		s.Free()
		require.NoError(t, d.err())
		require.Equal(t, before, d.held)
		require.Zero(t, d.counts.Stats().Total)
		for nth := range calls {
			d := open(t, Options{})
			cuda.Fail(call, nth+1, 2)
			_, err := d.NewShards(t.Context(), l, lonely())
			require.ErrorContains(t, err, "group "+l.Groups[[]int{0, 0, 1, 2}[nth]].Name)
			require.ErrorContains(t, err, call)
			require.Equal(t, before, d.held)
		}
	}
}

// TestReduceWhole sums and averages over ranks in all roles of a hybrid mesh, two shards of two
// replicas.
func TestReduceWhole(t *testing.T) {
	doubles(t)
	const places, n = 2, 256
	for i, reduce := range []comm.DType{comm.Float32, comm.BFloat16, comm.Float32, comm.BFloat16} {
		boots := comm.Local(4)
		rows, columns := [][]comm.Group{comm.Local(2), comm.Local(2)}, [][]comm.Group{comm.Local(2), comm.Local(2)}
		errs := world(t, boots, Options{Offload: reduce == comm.BFloat16}, func(m *member) error {
			r := m.boot.Rank()
			place, replica := r%places, r/places
			l := small(m, places, place, 2)
			l.Groups[0].Reduce, l.Groups[0].Round = reduce, reduce
			if i > 1 {
				l.Groups[0].Store, l.Groups[0].Read, l.Groups[0].Gather = comm.BFloat16, comm.BFloat16, comm.BFloat16
			}
			mesh := ranks.Mesh{Shard: rows[replica][place], Replica: columns[place][replica], Peers: m.boot}
			s, err := m.NewShards(m.ctx, l, []ranks.Mesh{mesh, mesh, {Shard: comm.Local(1)[0], Peers: m.boot}})
			if err != nil {
				return err
			}
			defer s.Free()
			require.False(m, s.Whole(0))
			g := s.(*shards).groups[0]
			g.whole = must(m.alloc(4*n, arena.Gradient))
			grads := make([]float32, n)
			for i := range grads {
				grads[i] = float32((r + 1) * (i % 8))
			}
			ok(m.vector(g.whole, 4).Write(optim.Host{F32: grads}))
			require.True(m, s.Whole(0))
			ok(s.ReduceWhole(m.ctx, 0, 0.5, 2))
			require.False(m, s.Whole(0))

			sum, want := float32(1+2+3+4), make([]float32, n/places)
			for i := range want {
				want[i] = 2 * sum * float32((place*len(want)+i)%8)
				if reduce == comm.BFloat16 {
					want[i] /= 2
				}
			}
			same(m, optim.Host{F32: want}, s.Grad(0))

			v := s.Value(2)
			ok(v.Write(optim.Host{F32: slices.Repeat([]float32{float32(r)}, v.Len())}))
			ok(s.Average(m.ctx, 2))
			same(m, optim.Host{F32: slices.Repeat([]float32{1.5}, v.Len())}, v)

			g.whole = must(m.alloc(4*n, arena.Gradient))
			s.DropWhole()
			require.False(m, s.Whole(0))
			return m.err()
		})
		for _, err := range errs {
			require.NoError(t, err)
		}
	}
}

// TestReduceWholeFails: a context that ends is the error of the call, and what was given up is
// freed.
func TestReduceWholeFails(t *testing.T) {
	cuda := double(t)
	for _, call := range []string{"cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent"} {
		d, l := open(t, Options{}), small(t, 1, 0, 1)
		s, err := d.NewShards(t.Context(), l, lonely())
		require.NoError(t, err)
		g := s.(*shards).groups[0]
		g.whole, err = d.alloc(l.Groups[0].GradBytes(), arena.Gradient)
		require.NoError(t, err)
		cuda.Fail(call, 1, 2)
		require.ErrorContains(t, s.ReduceWhole(context.Background(), 0, 1, 1), call)
		require.ErrorContains(t, d.err(), call, "the device has ended")
		s.DropWhole()
		s.Free()
	}
}
