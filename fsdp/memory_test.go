package fsdp_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// TestShardingDividesMemory checks that what a rank keeps shrinks with the number of ranks, up to
// padding.
func TestShardingDividesMemory(t *testing.T) {
	whole := wrap(t, tinyGPT(2), fsdp.Config{Wrap: blocks}).Memory().Live
	onRanks(t, 4, func(_ context.Context, g comm.Group) {
		m := wrap(t, tinyGPT(2), fsdp.Config{Group: g, Wrap: blocks})
		padding := 3 * 2 * 4 * 16 // groups, value and gradient, bytes, alignment of a shard in elements
		require.InDelta(t, whole/4, m.Memory().Live, float64(padding))
	})
}

// TestPlanAsText checks the table of a plan.
func TestPlanAsText(t *testing.T) {
	plan, err := wrap(t, tinyGPT(2), fsdp.Config{Wrap: blocks}).Plan(tinyBatch(0, 0, 1, 3)...)
	require.NoError(t, err)
	var b strings.Builder
	n, err := plan.WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	lines := strings.Split(b.String(), "\n")
	require.Equal(t, "2016 parameters in 3 groups over 1 ranks", lines[0])
	require.Equal(t, "root 272 parameters, 1.2 kB whole, ShardGradOp over 1", strings.Join(strings.Fields(lines[1]), " "))
	require.Equal(t, "blocks.1 872 parameters, 3.7 kB whole, FullShard over 1", strings.Join(strings.Fields(lines[3]), " "))
	require.Contains(t, lines[4], "per rank: 17.3 kB parameters and gradients, at most ")
	b.Reset()
	plan.StateBytes = 4e6
	_, err = plan.WriteTo(&b)
	require.NoError(t, err)
	require.Contains(t, b.String(), "gradients, 4.0 MB optimizer state, at most ")
	elements := 0
	for _, g := range plan.Groups {
		elements += g.Len
		require.GreaterOrEqual(t, g.Bytes, 4*g.Len)
	}
	require.Equal(t, plan.Params, elements)
	require.Zero(t, plan.Traffic, "one rank sends nothing")
	onRanks(t, 4, func(_ context.Context, g comm.Group) {
		plan, err := wrap(t, tinyGPT(1), fsdp.Config{
			Group: g, Wrap: blocks, Strategy: fsdp.HybridShard, ShardRanks: 2,
			Frozen: func(name string) bool { return name == "blocks.0.ln1.bias" },
		}).Plan(tinyBatch(0, 0, 1, 3)...)
		require.NoError(t, err)
		var b strings.Builder
		_, err = plan.WriteTo(&b)
		require.NoError(t, err)
		require.Contains(t, b.String(), "1144 parameters in 3 groups over 4 ranks\n")
		require.Contains(t, b.String(), " whole, HybridGradOp over 2, 2 replicas\n")
		require.Contains(t, b.String(), "blocks.0 (frozen)             8 parameters, 0.1 kB whole, HybridShard over 2, 2 replicas, frozen\n")
	})
}

// TestWrappingLowersThePeak checks that units need less memory than the whole model at once.
func TestWrappingLowersThePeak(t *testing.T) {
	peak := func(cfg fsdp.Config) int {
		plan, err := wrap(t, tinyGPT(8), cfg).Plan(tinyBatch(0, 0, 1, 3)...)
		require.NoError(t, err)
		return plan.PassBytes
	}
	root, units := peak(fsdp.Config{}), peak(fsdp.Config{Wrap: blocks})
	require.Less(t, 2*units, root)
	require.LessOrEqual(t, peak(fsdp.Config{Wrap: blocks, Prefetch: fsdp.NoPrefetch}), units)
	require.Less(t, units, peak(fsdp.Config{Wrap: blocks, Prefetch: 4}))
	require.Less(t, peak(fsdp.Config{Wrap: blocks, Checkpoint: blocks}), units)
}

// TestSteadyState checks that the memory kept from the runtime stops growing after the first steps,
// also when two batch shapes alternate.
func TestSteadyState(t *testing.T) {
	for name, cols := range map[string][]int{"one shape": {5}, "two shapes": {5, 3}} {
		t.Run(name, func(t *testing.T) {
			onRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := wrap(t, tinyGPT(3), fsdp.Config{Group: g, Wrap: blocks})
				update := updater(t, m, 1)
				var reserved int
				for step := range 14 {
					forwardBackward(t, ctx, m, tinyBatch(step, g.Rank(), 2, cols[step%len(cols)]))
					update(ctx)
					if step < 4 {
						reserved = m.Memory().Reserved
					}
					require.LessOrEqual(t, m.Memory().Reserved, reserved, "step %d", step)
				}
			})
		})
	}
}

// TestOldShapesAreForgotten checks that buffers of a big batch are given back when only small ones
// follow.
func TestOldShapesAreForgotten(t *testing.T) {
	m := wrap(t, tinyGPT(2), fsdp.Config{Wrap: blocks})
	for range 4 {
		forwardBackward(t, t.Context(), m, tinyBatch(0, 0, 1, 2))
	}
	small := m.Memory().Reserved
	forwardBackward(t, t.Context(), m, tinyBatch(0, 0, 40, 6))
	require.Greater(t, m.Memory().Reserved, 2*small)
	for range 4 {
		forwardBackward(t, t.Context(), m, tinyBatch(0, 0, 1, 2))
	}
	require.LessOrEqual(t, m.Memory().Reserved, small+small/8)
}

// TestReservedIsPlanned compares what is reserved after some steps with what was planned before the
// first, to the byte.
func TestReservedIsPlanned(t *testing.T) {
	for name, cfg := range map[string]fsdp.Config{
		"full":       {},
		"kept":       {Strategy: fsdp.ShardGradOp, Keep: blocks},
		"whole":      {Strategy: fsdp.NoShard},
		"hybrid":     {Strategy: fsdp.HybridShard, ShardRanks: 2},
		"checkpoint": {Prefetch: 3, Checkpoint: blocks},
		"frozen":     {Frozen: func(name string) bool { return strings.HasPrefix(name, "blocks.1.") }},
		"narrow":     {Precision: fsdp.Precision{Reduce: fsdp.BFloat16, Gather: fsdp.BFloat16}},
		"offload":    {OffloadDir: t.TempDir(), Spill: blocks},
	} {
		t.Run(name, func(t *testing.T) {
			onRanks(t, 4, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.Wrap = g, blocks
				m := wrap(t, tinyGPT(3), cfg)
				update := updater(t, m, 1)
				batch := tinyBatch(0, g.Rank(), 3, 5)
				plan, err := m.Plan(batch...)
				require.NoError(t, err)
				for range 5 {
					forwardBackward(t, ctx, m, batch)
					update(ctx)
				}
				require.GreaterOrEqual(t, plan.ReservedBytes, plan.RAMBytes)
				if cfg.OffloadDir == "" {
					require.Equal(t, plan.ReservedBytes, m.Memory().Reserved)
				}
				require.Greater(t, plan.Resident(), plan.ReservedBytes)
			})
		})
	}
}

// programsVariable tells TestProgramsAreCounted that its process is its own.
const programsVariable = "FSDP_TEST_PROGRAMS"

// TestProgramsAreCounted holds the bytes counted for compiled programs against those that the Go
// heap has more, for passes of many shapes. It does so in a process of its own, where nothing that
// other tests have left is collected meanwhile.
func TestProgramsAreCounted(t *testing.T) {
	if os.Getenv(programsVariable) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProgramsAreCounted$")
		child.Env = append(os.Environ(), programsVariable+"=yes")
		out, err := child.CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	eval := func(m *fsdp.Sharded, batch []fsdp.Tensor) error { _, err := m.Eval(t.Context(), batch...); return err }
	plan := func(m *fsdp.Sharded, batch []fsdp.Tensor) error { _, err := m.Plan(batch...); return err }
	for _, c := range []struct {
		layers int
		run    func(*fsdp.Sharded, []fsdp.Tensor) error
	}{{1, eval}, {12, eval}, {1, plan}, {12, plan}} {
		m := wrap(t, tinyGPT(c.layers), fsdp.Config{Wrap: blocks})
		var heap, counted int
		for rows := range 30 {
			if rows == 10 { // what is made once has been made
				heap, counted = heapBytes()-m.Memory().Reserved, m.Memory().Programs
			}
			require.NoError(t, c.run(m, tinyBatch(0, 0, 1+rows, c.layers%5+1)))
		}
		heap, counted = heapBytes()-m.Memory().Reserved-heap, m.Memory().Programs-counted
		require.InEpsilon(t, heap, counted, 0.2, "%d layers", c.layers)
		require.NoError(t, m.Close())
		require.Zero(t, m.Memory().Programs)
	}
}

// TestDroppedPassesChangeNoBit trains on batches of three shapes, while no rank keeps a pass but the
// last, and rank 1 compiles others between a Forward and its Backward.
func TestDroppedPassesChangeNoBit(t *testing.T) {
	run := func(crowded bool) (states [2]bits) {
		onRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := wrap(t, tinyGPT(2), fsdp.Config{Group: g, Wrap: blocks})
			update := updater(t, m, 1)
			for step := range 6 {
				_, err := m.Forward(ctx, tinyBatch(step, g.Rank(), 2+g.Rank(), 2+step%3)...)
				require.NoError(t, err)
				if crowded && g.Rank() == 1 {
					_, err := m.Plan(tinyBatch(0, 0, 7, 1+step)...)
					require.NoError(t, err)
				}
				require.NoError(t, m.Backward(ctx))
				update(ctx)
			}
			states[g.Rank()] = stateBits(t, ctx, m)
		})
		return states
	}
	want := run(false)
	defer fsdp.KeepPasses(0)()
	got := run(true)
	for r := range want {
		requireSameBits(t, want[r], got[r])
	}
}

// TestOldPassesHoldNoBuffers checks that passes which are kept compiled, of 30 batch shapes with
// about a megabyte of buffers each, do not hold the buffers that they had.
func TestOldPassesHoldNoBuffers(t *testing.T) {
	m := wrap(t, tinyGPT(1), fsdp.Config{})
	eval := func(rows int) {
		_, err := m.Eval(t.Context(), tinyBatch(0, 0, rows, 6)...)
		require.NoError(t, err)
	}
	eval(400)
	before := heapBytes() - m.Memory().Reserved
	for rows := range 30 {
		eval(400 + rows)
	}
	require.Less(t, heapBytes()-m.Memory().Reserved-before, 4<<20)
}

// heapBytes returns the bytes of the Go heap that are in use.
func heapBytes() int {
	var s runtime.MemStats
	for range 2 { // what sync.Pool has goes in the second
		runtime.GC()
	}
	runtime.ReadMemStats(&s)
	return int(s.HeapAlloc)
}

// TestStepAllocatesLittle bounds what a step on one rank asks of the Go heap, once it is warm:
// nothing that grows with the model's width or the batch, and little for each operation.
func TestStepAllocatesLittle(t *testing.T) {
	ctx := context.Background()
	m := wrap(t, tinyGPT(3), fsdp.Config{Wrap: blocks})
	batch := tinyBatch(0, 0, 2, 5)
	step := func() {
		if _, err := m.Forward(ctx, batch...); err != nil {
			panic(err)
		}
		if err := m.Backward(ctx); err != nil {
			panic(err)
		}
		if _, err := m.ClipGradNorm(ctx, 1); err != nil {
			panic(err)
		}
		m.ZeroGrad()
	}
	for range 5 {
		step()
	}
	require.LessOrEqual(t, testing.AllocsPerRun(20, step), 24.0, "allocations a step")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const steps = 50
	for range steps {
		step()
	}
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)/steps, uint64(2048), "bytes a step")
}
