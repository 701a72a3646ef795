package parity_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// TestMemoryCheckpointFrozen: frozen parameters whose values change are copied again, by a load, by
// a program and by Freeze.
func TestMemoryCheckpointFrozen(t *testing.T) {
	const name = "wte.weight"
	frozen := func(n string) bool { return n == name }
	for how, change := range map[string]func(t require.TestingT, ctx context.Context, m *fsdp.Sharded){
		"not": func(require.TestingT, context.Context, *fsdp.Sharded) {},
		"LoadStateDict": func(t require.TestingT, ctx context.Context, m *fsdp.Sharded) {
			ones := tensor.Ones(tensor.Float32, kit.TinyVocab, 8)
			require.NoError(t, m.LoadStateDict(ctx, 0, map[string]*tensor.Dense{name: ones}))
		},
		"FrozenParams": func(t require.TestingT, ctx context.Context, m *fsdp.Sharded) {
			for _, p := range m.FrozenParams() {
				kit.Edit(t, p.Value, func(i int, x float64) float64 { return x + 1 })
			}
		},
		"Freeze": func(t require.TestingT, ctx context.Context, m *fsdp.Sharded) {
			_, err := m.Freeze(ctx, func(n string) bool { return n == "wpe.weight" }, nil)
			require.NoError(t, err)
		},
	} {
		t.Run(how, func(t *testing.T) {
			kit.OnRanks(t, 3, func(ctx context.Context, all comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: all, Frozen: frozen})
				var last fsdp.MemoryCheckpoint
				require.NoError(t, last.Save(ctx, m, nil, nil))
				require.NoError(t, last.Save(ctx, m, nil, nil))
				change(t, ctx, m)
				require.NoError(t, last.Save(ctx, m, nil, nil))
				want := kit.StateBits(t, ctx, m)
				color := comm.Detached
				if all.Rank() == 1 { // it is lost
					color = -1
				}
				g, err := all.Split(ctx, color, all.Rank())
				require.NoError(t, err)
				require.NoError(t, m.Close())
				if g == nil {
					return
				}
				m = kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, Seed: 9})
				c, err := last.Load(ctx, m, nil)
				require.NoError(t, err)
				require.Equal(t, 3, c.World)
				kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
				require.NoError(t, m.Close())
			})
		})
	}
}

// TestMemoryCheckpointBuffers: a rank keeps its own buffers. A rank that joins gets the buffers of
// the lost one.
func TestMemoryCheckpointBuffers(t *testing.T) {
	kit.OnRanks(t, 4, func(ctx context.Context, all comm.Group) {
		group := func(in bool) comm.Group {
			color := -1
			if in {
				color = comm.Detached
			}
			g, err := all.Split(ctx, color, all.Rank())
			require.NoError(t, err)
			return g
		}
		var last fsdp.MemoryCheckpoint
		var here []float64
		if g := group(all.Rank() < 3); g != nil {
			m := kit.Wrap(t, kit.Statistics, fsdp.Config{Group: g, Precision: kit.Float64s})
			_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx))
			m.ZeroGrad()
			require.NoError(t, last.Save(ctx, m, nil, nil))
			here = buffersOf(t, ctx, m)
			require.NotEmpty(t, here)
			require.NoError(t, m.Close())
		}
		if g := group(all.Rank() != 1); g != nil {
			m := kit.Wrap(t, kit.Statistics, fsdp.Config{Group: g, Seed: 5, Precision: kit.Float64s})
			_, err := last.Load(ctx, m, nil)
			require.NoError(t, err)
			if now := buffersOf(t, ctx, m); all.Rank() == 3 {
				here = now
			} else {
				require.Equal(t, here, now, "rank %d", all.Rank())
			}
			require.NoError(t, m.Close())
		}
		every := make([]float64, 4*len(here))
		require.NoError(t, all.AllGather(comm.Of(every), comm.Of(here)).Wait(ctx))
		require.Equal(t, every[len(here):2*len(here)], every[3*len(here):])
		require.NotEqual(t, every[:len(here)], every[3*len(here):])
	})
}

// TestMemoryCheckpointRefuses: a state that does not fit is an error on all ranks, and Load can be
// called again.
func TestMemoryCheckpointRefuses(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		opt, err := adamw(m.Params())
		require.NoError(t, err)
		var last, empty fsdp.MemoryCheckpoint
		_, err = empty.Load(ctx, m, opt)
		require.ErrorIs(t, err, fsdp.ErrNoCheckpoint)
		require.ErrorContains(t, err, "no rank has a step in memory")
		require.ErrorContains(t, last.Save(ctx, m, opt, map[string]any{"f": func() {}}), `extra("f")`)
		require.NoError(t, last.Save(ctx, m, opt, map[string]any{"next": 5}))
		sgd, err := optim.SGD{Momentum: 0.9}.New(m.Params())
		require.NoError(t, err)
		_, err = last.Load(ctx, m, sgd)
		require.ErrorContains(t, err, "saved by another kind of optimizer: AdamW -> SGD")
		other := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g})
		_, err = last.Load(ctx, other, nil)
		require.ErrorContains(t, err, "missing blocks.1")
		c, err := last.Load(ctx, m, opt)
		require.NoError(t, err)
		next := 0
		require.NoError(t, c.Extra("next", &next))
		require.Equal(t, 5, next)
		require.NoError(t, m.Close())
		_, err = last.Load(ctx, m, nil)
		require.ErrorContains(t, err, "the model is closed")
		require.NoError(t, other.Close())
	})
}

// TestMemoryCheckpointDivisor: rank 2 of four is lost, and three ranks do not divide the virtual
// ranks. All three load the last step, two of them train, and rank 3 waits. When rank 1 is lost,
// ranks 0 and 3 train. The bits are the bits of a training without a loss.
func TestMemoryCheckpointDivisor(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	stays := moving{phases: slices.Repeat([][]int{{0, 1, 2, 3}}, 3)} // of two steps
	want := stays.train(t, onGoroutines)
	var got kit.Bits
	kit.OnRanks(t, universe, func(ctx context.Context, all comm.Group) {
		var last fsdp.MemoryCheckpoint
		for phase, left := range [][]int{{0, 1, 2, 3}, {0, 1, 3}, {0, 3}} {
			color := -1
			if slices.Contains(left, all.Rank()) {
				color = comm.Detached
			}
			world, err := all.Split(ctx, color, all.Rank())
			require.NoError(t, err)
			if world == nil {
				continue
			}
			now := divide(t, ctx, world, &last)
			if now.m == nil {
				continue // it waits
			}
			for step := 2 * phase; step < 2*phase+2; step++ {
				now.step(t, ctx, step)
				require.NoError(t, last.Save(ctx, now.m, now.opt, nil))
			}
			if b := now.bits(t, ctx); now.g.Rank() == 0 {
				got = b
			}
			require.NoError(t, now.m.Close())
		}
	})
	kit.RequireSameBits(t, want, got)
}

// divide loads the last step on all ranks of world, and gives it to as many of them as divide the
// virtual ranks. The others get no model.
func divide(t *testing.T, ctx context.Context, world comm.Group, last *fsdp.MemoryCheckpoint) (now member) {
	v, n, virtual := moving{}, world.Size(), universe
	for universe%n != 0 {
		n, virtual = n-1, 0
	}
	all := v.wrap(t, world, virtual)
	if _, err := last.Load(ctx, all.m, all.opt); !errors.Is(err, fsdp.ErrNoCheckpoint) { // at the beginning
		require.NoError(t, err)
	}
	if n == world.Size() {
		return all
	}
	color := comm.Detached
	if world.Rank() >= n {
		color = -1
	}
	g, err := world.Split(ctx, color, world.Rank())
	require.NoError(t, err)
	if g != nil {
		now = v.wrap(t, g, universe)
	}
	require.NoError(t, fsdp.CopyState(ctx, all.m, now.m, all.opt, now.opt))
	require.NoError(t, all.m.Close())
	return now
}
