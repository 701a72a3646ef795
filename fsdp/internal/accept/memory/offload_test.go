//go:build linux || darwin

package memory_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/mapped"
	"github.com/gofsdp/gofsdp/optim"
)

// offloaded are configurations to be had with and without files.
var offloaded = map[string]fsdp.Config{
	"FullShard":   {WrapPolicy: kit.Blocks},
	"ShardGradOp": {WrapPolicy: kit.Blocks, Strategy: fsdp.ShardGradOp},
	"NoShard":     {WrapPolicy: kit.Blocks, Strategy: fsdp.NoShard},
	"HybridShard": {WrapPolicy: kit.Blocks, Strategy: fsdp.HybridShard, ShardRanks: 1},
	"bf16":        {WrapPolicy: fsdp.WrapEach(), Precision: fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}},
	"computes":    {WrapPolicy: fsdp.WrapEach(), Precision: fsdp.BF16()},
	"poison":      {Prefetch: 2, WrapPolicy: fsdp.WrapEach(), Poison: true},
}

// variedRun trains with all that may happen between steps: an evaluation, passes inside NoSync,
// clipping, a change of what is frozen with the optimizer's state moved. It returns the bits of
// parameters and losses.
func variedRun(t require.TestingT, ctx context.Context, cfg fsdp.Config) kit.Bits {
	model := kit.TinyGPT(2)
	model.Dropout = 0.1
	m := kit.Wrap(t, model, cfg)
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
	require.NoError(t, err)
	seen := make(kit.Bits)
	note := func(x float64) { seen["losses"] = append(seen["losses"], math.Float64bits(x)) }
	for step := range 6 {
		batch := func(k int) []fsdp.Tensor { return kit.TinyBatch(10*step+k, cfg.Group.Rank(), 2, kit.TinyContext) }
		if step == 3 {
			entries, err := m.Freeze(ctx, func(name string) bool { return strings.HasPrefix(name, "blocks.0") }, opt)
			require.NoError(t, err)
			steps := opt.Steps()
			opt, err = optim.AdamW{WeightDecay: 0.1}.New(m.Params())
			require.NoError(t, err)
			require.NoError(t, opt.Adopt(steps, entries))
		}
		out, err := m.Eval(ctx, batch(0)...)
		require.NoError(t, err)
		note(kit.Elements(out[0])[0])
		if step%2 == 1 {
			require.NoError(t, m.NoSync(func() error {
				note(kit.ForwardBackward(t, ctx, m, batch(1)))
				return nil
			}))
		}
		note(kit.ForwardBackward(t, ctx, m, batch(2)))
		_, err = m.ClipGradNorm(ctx, 0.5)
		require.NoError(t, err)
		require.NoError(t, opt.Step(1e-2))
		m.ZeroGrad()
	}
	for name, b := range kit.StateBits(t, ctx, m) {
		seen[name] = b
	}
	if cfg.Offload.Dir != "" {
		require.Positive(t, m.Memory().Mapped)
	} else {
		require.Zero(t, m.Memory().Mapped)
	}
	require.NoError(t, m.Close())
	require.Zero(t, m.Memory().Mapped)
	return seen
}

// TestOffloadDoesNotChangeBits compares every rank's run with and without files.
func TestOffloadDoesNotChangeBits(t *testing.T) {
	kit.Needs(t, kit.Processor)
	for name, base := range offloaded {
		for world := 1; world <= 3; world++ {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				want := make([]kit.Bits, world)
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					cfg := base
					cfg.Group = g
					want[g.Rank()] = variedRun(t, ctx, cfg)
				})
				for how, offload := range kit.Offloads {
					dir := t.TempDir()
					kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
						cfg := base
						cfg.Group = g
						offload(&cfg, dir)
						kit.RequireSameBits(t, want[g.Rank()], variedRun(t, ctx, cfg), how)
					})
					requireEmpty(t, dir)
				}
			})
		}
	}
}

// requireEmpty requires that nothing is left in a directory.
func requireEmpty(t require.TestingT, dir string) {
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestOffloadIsCounted holds what is counted at every operation against the plan: shards and state
// always lie in files, what calls keep lies there if it is spilled, and all of it is counted once.
func TestOffloadIsCounted(t *testing.T) {
	kit.Needs(t, kit.Processor)
	plans := make(map[string]*fsdp.Plan)
	spill := func(c *fsdp.Config) { c.Activations.Offload = fsdp.WrapEach() }
	for name, turn := range map[string]func(*fsdp.Config){
		"shards":      func(*fsdp.Config) {},
		"activations": spill,
		"kept":        func(c *fsdp.Config) { spill(c); c.Activations.Save = fsdp.WrapEach() },
		"checkpoints": func(c *fsdp.Config) { spill(c); c.Activations.Recompute = kit.Blocks },
		"nothing":     func(c *fsdp.Config) { c.Offload.Dir = "" },
	} {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			var m *fsdp.Sharded
			inFiles, elsewhere := 0, 0
			cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Offload: fsdp.Offload{Dir: t.TempDir()}, Observers: []fsdp.Observer{fsdp.TraceFunc(func(fsdp.Event) {
				now := m.Memory()
				inFiles, elsewhere = max(inFiles, now.Mapped), max(elsewhere, now.Live-now.Mapped)
			})}}
			turn(&cfg)
			m = kit.Wrap(t, kit.TinyGPT(4), cfg)
			update := kit.Updater(t, m, 1)
			batch := kit.TinyBatch(0, g.Rank(), 8, kit.TinyContext)
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			m.ResetPeak()
			kit.ForwardBackward(t, ctx, m, batch)
			update(ctx)

			require.Equal(t, plan.Peak(), m.Memory().Peak, name)
			require.Equal(t, plan.MappedBytes, inFiles, name)
			require.LessOrEqual(t, elsewhere, plan.RAMBytes, name)
			require.LessOrEqual(t, plan.RAMBytes, plan.Peak(), name)
			require.LessOrEqual(t, plan.Peak(), plan.RAMBytes+plan.MappedBytes, name)
			if always := plan.ShardBytes + plan.StateBytes; name == "nothing" {
				require.Zero(t, m.Memory().Mapped)
				require.Equal(t, plan.Peak(), plan.RAMBytes)
			} else {
				require.Equal(t, always, m.Memory().Mapped, "after a step")
			}
			if g.Rank() == 0 {
				plans[name] = plan
			}
			require.NoError(t, m.Close())
		})
	}
	shards := plans["shards"]
	require.Equal(t, shards.ShardBytes+shards.StateBytes, shards.MappedBytes)
	require.Equal(t, plans["nothing"].RAMBytes-shards.MappedBytes, shards.RAMBytes)
	require.Less(t, 2*plans["activations"].RAMBytes, shards.RAMBytes, "what calls keep is most of a pass")
	require.Less(t, plans["checkpoints"].MappedBytes, plans["activations"].MappedBytes, "they keep less")
	require.Less(t, plans["activations"].MappedBytes, plans["kept"].MappedBytes, "they keep more")
	require.Contains(t, shards.String(), "of these in files, at most, and ")
	require.NotContains(t, plans["nothing"].String(), "files")
}

// TestOffloadDirRefused: a directory that cannot be used is an error of Wrap on every rank, also
// when it is that of one rank only.
func TestOffloadDirRefused(t *testing.T) {
	kit.Needs(t, kit.Processor)
	missing, file := filepath.Join(t.TempDir(), "missing"), filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	cases := map[string]error{missing: os.ErrNotExist, file: syscall.ENOTDIR}
	if os.Getuid() != 0 { // whom no mode stops
		locked := t.TempDir()
		require.NoError(t, os.Chmod(locked, 0o500))
		cases[locked] = os.ErrPermission
	}
	for dir, want := range cases {
		for world := 1; world <= 3; world++ {
			bad := world - 1
			for rank, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
				cfg := fsdp.Config{Group: g}
				if g.Rank() == bad {
					cfg.Offload.Dir = dir
				}
				_, err := fsdp.WrapContext(ctx, kit.TinyGPT(1), cfg)
				return err
			}) {
				require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", rank))
				require.ErrorContains(t, err, "Config.Offload.Dir: mapped: making a directory: ")
				require.ErrorContains(t, err, dir)
				if rank == bad {
					require.ErrorIs(t, err, want)
					continue
				}
				var peer *fsdp.PeerError
				require.ErrorAs(t, err, &peer)
				require.Equal(t, bad, peer.Rank)
			}
		}
	}
	_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Activations: fsdp.Activations{Offload: kit.Blocks}})
	require.EqualError(t, err, "fsdp: rank 0: Config.Activations.Offload selects calls, but Config.Offload.Dir names no directory")
}

// TestOffloadNeedsRoom: a model that the disk has no place for is refused by every rank before
// anything is written, and leaves nothing behind.
func TestOffloadNeedsRoom(t *testing.T) {
	kit.Needs(t, kit.Processor)
	huge := kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 1<<20, 1<<24))))
	dir := t.TempDir()
	for rank, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		_, err := fsdp.WrapContext(ctx, huge, fsdp.Config{Group: g, Offload: fsdp.Offload{Dir: dir}})
		return err
	}) {
		require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: group root: allocating 35184372088832 bytes of shard memory: mapped: no place", rank))
		require.ErrorContains(t, err, dir)
		require.ErrorIs(t, err, syscall.ENOSPC)
		var space *mapped.SpaceError
		require.ErrorAs(t, err, &space)
		require.Positive(t, space.Free)
		require.Equal(t, 1<<45, space.Size)
	}
	requireEmpty(t, dir)
}

// TestOffloadAfterFailure: a model whose Wrap failed elsewhere, one that failed in the middle of a
// pass, and one that is closed after a forward leave nothing behind.
func TestOffloadAfterFailure(t *testing.T) {
	kit.Needs(t, kit.Processor)
	dir := t.TempDir()
	kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		_, err := fsdp.WrapContext(ctx, kit.TinyGPT(1+g.Rank()), fsdp.Config{Group: g, Offload: fsdp.Offload{Dir: dir}})
		return err
	})
	requireEmpty(t, dir)
	for _, traced := range []string{"backward", "nothing"} {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, Offload: fsdp.Offload{Dir: dir}, Activations: fsdp.Activations{Offload: kit.Blocks}, WrapPolicy: kit.Blocks, Observers: []fsdp.Observer{fsdp.TraceFunc(func(e fsdp.Event) {
				if e.Rank == 1 && e.Kind == traced {
					panic("no more")
				}
			})}})
			_, err := m.Forward(ctx, kit.TinyBatch(0, g.Rank(), 2, 3)...)
			require.NoError(t, err)
			if traced == "backward" {
				require.ErrorContains(t, m.Backward(ctx), "no more")
			}
			require.NoError(t, m.Close())
			require.NoError(t, m.Close())
		})
		requireEmpty(t, dir)
	}
}
