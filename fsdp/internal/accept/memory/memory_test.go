package memory_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/text"
)

// TestShardingDividesMemory checks that what a rank keeps shrinks with the number of ranks, up to
// padding.
func TestShardingDividesMemory(t *testing.T) {
	whole := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{WrapPolicy: kit.Blocks}).Memory().Live
	kit.OnRanks(t, 4, func(_ context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
		padding := 3 * 2 * 4 * 16 // groups, value and gradient, bytes, alignment of a shard in elements
		require.InDelta(t, whole/4, m.Memory().Live, float64(padding))
	})
}

// TestPlanAsText checks the table of a plan, with everything that it may have.
func TestPlanAsText(t *testing.T) {
	plan := &fsdp.Plan{
		Params: 100_000_000_000, Ranks: 64, ShardBytes: 12_500_000_000, StateBytes: 4e6, SnapshotBytes: 999_949, PassBytes: 15_800,
		MappedBytes: 7e9, RAMBytes: 9e9, ReservedBytes: 9.5e9, BesideBytes: 5e8,
		Gathers: 21000, Reduces: 10000, AllReduces: 10000, Traffic: 123_400_000_000, Schedule: make([]string, 100_000),
	}
	group := func(name string, strategy fsdp.Strategy, ranks, replicas int) {
		plan.Groups = append(plan.Groups, fsdp.GroupPlan{Name: name, Strategy: strategy, Params: 2, Len: 1000, Bytes: 4096, Ranks: ranks, Replicas: replicas})
	}
	group("root", fsdp.ShardGradOp, 64, 1)
	for layer := range 3 {
		group(fmt.Sprintf("layers.%d.attention (frozen)", layer), fsdp.FullShard, 64, 1)
		for expert := range 500 {
			group(fmt.Sprintf("layers.%d.experts.%d", layer, expert), fsdp.HybridGradOp, 16, 1024)
		}
	}
	group("layers.7.experts.9", fsdp.HybridGradOp, 32, 2)
	for layer := range 2 {
		group(fmt.Sprintf("layers.%d.mlp (gather bfloat16, reduce float16)", layer), fsdp.FullShard, 64, 1)
		group(fmt.Sprintf("layers.%d.mlp (gather bfloat16, reduce float32)", layer), fsdp.FullShard, 64, 1)
	}
	group("layers.1.mlp (frozen gather float16, reduce float32)", fsdp.FullShard, 64, 1)
	group("a name that has more runes than the column – by far", fsdp.NoShard, 1, 64)
	plan.Groups = append(plan.Groups, fsdp.GroupPlan{Name: "norm (buffers)", Len: 99_999_999_999, Bytes: 399_999_999_996, Buffers: true, Ranks: 1, Replicas: 64})
	want := `parameters 100000000000, groups 1512, ranks 64
  group                        parameters     whole  strategy     ranks
  root                               1000    4.1 kB  ShardGradOp  64
  3 × layers.*.…ion (frozen)         1000    4.1 kB  FullShard    64
  1500 × layers.*.experts.*          1000    4.1 kB  HybridGradOp 16 × 1024
  layers.7.experts.9                 1000    4.1 kB  HybridGradOp 32 × 2
  2 × layers.*.mlp                   1000    4.1 kB  FullShard    64
    (gather bfloat16, reduce float16)
  2 × layers.*.mlp                   1000    4.1 kB  FullShard    64
    (gather bfloat16, reduce float32)
  layers.1.mlp                       1000    4.1 kB  FullShard    64
    (frozen gather float16, reduce float32)
  a name that h…umn – by far         1000    4.1 kB  NoShard      1 × 64
  norm (buffers)              99999999999 400.00 GB  whole        each
each rank
   12.50 GB  parameters and gradients
     4.0 MB  optimizer state
   999.9 kB  snapshot
    15.8 kB  buffers of a pass, at most: groups, gradients, activations
   12.51 GB  together
    7.00 GB  of these in files, at most, and 9.00 GB elsewhere
   10.00 GB  in RAM: buffers, freed ones included, and 500.0 MB beside
  123.40 GB  sent in a pass, in 41000 collectives`
	require.Equal(t, want, plan.String())
	require.Empty(t, text.Wider(plan.String(), 76))
	for layer := range 3 {
		plan.Stock = append(plan.Stock, fsdp.StockOp{Op: "Sort<axis 1>", Call: fmt.Sprint("layers.", layer), Runs: 2, Bytes: 5000, Reason: "stock operations of Gorgonia's"})
	}
	want += `
slow: stock operations of Gorgonia's, with the bytes they move
    15.0 kB  6 × Sort<axis 1> in layers.*`
	require.Equal(t, want, plan.String())
	for i := range 9 {
		plan.Stock = append(plan.Stock, fsdp.StockOp{Op: strings.Repeat("im2col<", i+1), Call: strings.Repeat("a name", i+1), Runs: 1e6, Bytes: 999e9, Reason: strings.Repeat("a reason ", 9)})
	}
	require.True(t, strings.HasSuffix(plan.String(), " 1000000 × im2col<im2c…ol<im2col< in a namea nam…namea name\n"+
		"  … and 2 more kinds of slow operations"), plan.String())
	require.Empty(t, text.Wider(plan.String(), 76))
	require.NotContains(t, plan.String(), " \n")

	few := &fsdp.Plan{Params: 7, Ranks: 1, ShardBytes: 56, PassBytes: 100}
	require.Equal(t, few.String(), fmt.Sprintf("%v", few))
	for i := range 26 {
		few.Groups = append(few.Groups, fsdp.GroupPlan{Name: string(rune('a' + i)), Len: 1})
	}
	require.Contains(t, few.String(), "\n  … and 2 more kinds of groups\neach rank\n")
	require.NotContains(t, few.String(), "sent")
}

// TestPlanCountsElements compares a plan's groups with its totals.
func TestPlanCountsElements(t *testing.T) {
	kit.OnRanks(t, 4, func(_ context.Context, g comm.Group) {
		plan, err := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks}).Plan(kit.TinyBatch(0, 0, 1, 3)...)
		require.NoError(t, err)
		elements := 0
		for _, g := range plan.Groups {
			elements += g.Len
			require.GreaterOrEqual(t, g.Bytes, 4*g.Len)
		}
		require.Equal(t, plan.Params, elements)
		require.True(t, strings.HasPrefix(plan.String(), "parameters 2016, groups 3, ranks 4\n"))
	})
}

// TestPlanCountsFLOPs compares the arithmetic of a plan with the formula of the model, which counts
// products only, and what a mask hides; and with that of passes that compute activations again.
func TestPlanCountsFLOPs(t *testing.T) {
	const length, rows = 32, 2
	m := &nn.GPT{Vocab: 64, Context: length, Layers: 2, Dim: 64, Heads: 4}
	flops := func(cfg fsdp.Config) float64 {
		tokens := tensor.New(tensor.WithShape(rows, length), tensor.Of(tensor.Int))
		plan, err := kit.Wrap(t, m, cfg).Plan(tokens, tokens)
		require.NoError(t, err)
		return float64(plan.FLOPs)
	}
	formula := float64(m.FLOPs(length) * rows * length)
	whole := flops(fsdp.Config{Activations: fsdp.Activations{Save: kit.Blocks}})
	require.InEpsilon(t, formula, whole, 0.05)
	again := flops(fsdp.Config{Activations: fsdp.Activations{Recompute: kit.Blocks}}) / whole
	require.Greater(t, again, 1.2)
	require.Less(t, again, 1.34)
}

// TestWrappingLowersThePeak checks that units need less memory than the whole model at once.
func TestWrappingLowersThePeak(t *testing.T) {
	peak := func(cfg fsdp.Config) (n int) {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			cfg := cfg
			cfg.Group = g
			plan, err := kit.Wrap(t, kit.TinyGPT(8), cfg).Plan(kit.TinyBatch(0, g.Rank(), 1, 3)...)
			require.NoError(t, err)
			if g.Rank() == 0 {
				n = plan.PassBytes
			}
		})
		return n
	}
	root, units := peak(fsdp.Config{}), peak(fsdp.Config{WrapPolicy: kit.Blocks})
	require.Less(t, 2*units, root)
	require.LessOrEqual(t, peak(fsdp.Config{WrapPolicy: kit.Blocks, Prefetch: fsdp.NoPrefetch}), units)
	require.Less(t, units, peak(fsdp.Config{WrapPolicy: kit.Blocks, Prefetch: 4}))
	require.Less(t, peak(fsdp.Config{WrapPolicy: kit.Blocks, Activations: fsdp.Activations{Recompute: kit.Blocks}}), units)
}

// TestSteadyState checks that the memory kept from the runtime stops growing after the first steps,
// also when two batch shapes alternate.
func TestSteadyState(t *testing.T) {
	for name, cols := range map[string][]int{"one shape": {5}, "two shapes": {5, 3}} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
				update := kit.Updater(t, m, 1)
				var reserved int
				for step := range 14 {
					kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, cols[step%len(cols)]))
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
	m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{WrapPolicy: kit.Blocks})
	for range 4 {
		kit.ForwardBackward(t, t.Context(), m, kit.TinyBatch(0, 0, 1, 2))
	}
	small := m.Memory().Reserved
	kit.ForwardBackward(t, t.Context(), m, kit.TinyBatch(0, 0, 40, 6))
	require.Greater(t, m.Memory().Reserved, 2*small)
	for range 4 {
		kit.ForwardBackward(t, t.Context(), m, kit.TinyBatch(0, 0, 1, 2))
	}
	require.LessOrEqual(t, m.Memory().Reserved, small+small/8)
}

// TestReservedIsPlanned compares what is reserved after some steps with what was planned before the
// first, to the byte.
func TestReservedIsPlanned(t *testing.T) {
	for name, cfg := range map[string]fsdp.Config{
		"full":       {},
		"kept":       {Strategy: fsdp.ShardGradOp, Activations: fsdp.Activations{Save: kit.Blocks}},
		"whole":      {Strategy: fsdp.NoShard},
		"hybrid":     {Strategy: fsdp.HybridShard, ShardRanks: 2},
		"secondary":  {Strategy: kit.LastStrategy, ShardRanks: 2, Precision: fsdp.Precision{Gather: fsdp.BFloat16}},
		"checkpoint": {Prefetch: 3, Activations: fsdp.Activations{Recompute: kit.Blocks}},
		"frozen":     {Frozen: func(name string) bool { return strings.HasPrefix(name, "blocks.1.") }},
		"narrow":     {Precision: fsdp.Precision{Reduce: fsdp.BFloat16, Gather: fsdp.BFloat16}},
		"computes":   {Precision: fsdp.BF16()},
		"offload":    {Offload: fsdp.Offload{Dir: t.TempDir()}, Activations: fsdp.Activations{Offload: kit.Blocks}},
		"threads":    {Threads: 3},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy = g, kit.Blocks
				m := kit.Wrap(t, kit.TinyGPT(3), cfg)
				update := kit.Updater(t, m, 1)
				batch := kit.TinyBatch(0, g.Rank(), 3, 5)
				plan, err := m.Plan(batch...)
				require.NoError(t, err)
				for range 5 {
					kit.ForwardBackward(t, ctx, m, batch)
					update(ctx)
				}
				require.GreaterOrEqual(t, plan.ReservedBytes, plan.RAMBytes)
				if cfg.Offload.Dir == "" {
					require.Equal(t, plan.ReservedBytes, m.Memory().Reserved)
				}
				require.Greater(t, plan.Resident(), plan.ReservedBytes)
				require.NoError(t, m.Close())
			})
		})
	}
}

// TestWholeGradientsInBFloat16: whole gradients that travel in bfloat16 take half the memory. Units
// with a parameter that several calls use hold them in float32, and so do units in which one
// gradient that is no product, such as an embedding's, has most elements. So does every unit with
// Float16, because these gradients are divided when they are sent.
func TestWholeGradientsInBFloat16(t *testing.T) {
	repeated := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("wte", &nn.Embedding{Rows: 20, Dim: 32}, in[0])
		x = t.Call("once", &nn.Block{Dim: 32, Heads: 2}, x)
		x = t.Again("twice", t.Call("twice", &nn.Block{Dim: 32, Heads: 2}, x))
		return []fsdp.Ref{t.Call("head", &nn.Head{Dim: 32, Classes: 20}, x, in[1])}, nil
	})
	gpt := func(tied bool) *nn.GPT {
		return &nn.GPT{Vocab: 20, Context: 16, Layers: 1, Dim: 32, Heads: 2, Tied: tied}
	}
	whole := func(model fsdp.Model, policy fsdp.Policy, compute, reduce fsdp.DType) map[string]int {
		shape := fsdp.Ints(2, 16)
		p, err := fsdp.Planner{
			Model: model, Batch: []fsdp.Shape{shape, shape},
			Config: fsdp.Config{Group: comm.World{Ranks: 2}, WrapPolicy: policy, Precision: fsdp.Precision{Compute: compute, Reduce: reduce}},
		}.Plan()
		require.NoError(t, err)
		bytes := make(map[string]int)
		for _, b := range p.Pass.Buffers {
			if b.Held.Gradient > 0 {
				bytes[b.Name] = b.Held.Gradient
			}
		}
		return bytes
	}
	for name, c := range map[string]struct {
		model  fsdp.Model
		policy fsdp.Policy
		halved []string // groups
	}{
		"blocks":   {gpt(false), kit.Blocks, []string{"blocks.0", "root"}},
		"tied":     {gpt(true), kit.Blocks, []string{"blocks.0"}},
		"calls":    {gpt(false), fsdp.WrapEach(), []string{"blocks.0", "head"}},
		"repeated": {repeated, fsdp.WrapEach(), []string{"once", "head"}},
	} {
		for compute, wide := range map[fsdp.DType]fsdp.DType{fsdp.Float32: fsdp.Float16, fsdp.BFloat16: fsdp.Float32} {
			t.Run(fmt.Sprint(name, " in ", compute), func(t *testing.T) {
				want := whole(c.model, c.policy, compute, wide)
				for _, name := range c.halved {
					if name == "head" && compute == fsdp.Float32 && !kit.GroupsCarryPasses {
						continue // the only gradient is a product of float32, which a GPU does not round
					}
					require.Contains(t, want, name)
					want[name] /= 2
				}
				require.Equal(t, want, whole(c.model, c.policy, compute, fsdp.BFloat16))
			})
		}
	}
}

// programsVariable tells TestProgramsAreCounted that its process is its own.
const programsVariable = "FSDP_TEST_PROGRAMS"

// TestProgramsAreCounted holds the bytes counted for compiled programs against those that the Go
// heap has more, for passes of many shapes. It does so in a process of its own, where nothing that
// other tests have left is collected meanwhile.
func TestProgramsAreCounted(t *testing.T) {
	kit.Needs(t, kit.Processor)
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
		m := kit.Wrap(t, kit.TinyGPT(c.layers), fsdp.Config{WrapPolicy: kit.Blocks})
		var heap, counted int
		for rows := range 30 {
			if rows == 10 { // what is made once has been made
				heap, counted = kit.HeapBytes()-m.Memory().Reserved, m.Memory().Programs
			}
			require.NoError(t, c.run(m, kit.TinyBatch(0, 0, 1+rows, c.layers%5+1)))
		}
		heap, counted = kit.HeapBytes()-m.Memory().Reserved-heap, m.Memory().Programs-counted
		require.InEpsilon(t, heap, counted, 0.2, "%d layers", c.layers)
		require.NoError(t, m.Close())
		require.Zero(t, m.Memory().Programs)
	}
}

// TestDroppedPassesChangeNoBit trains on batches of three shapes, while no rank keeps a pass but
// the last, and rank 1 compiles others between a Forward and its Backward.
func TestDroppedPassesChangeNoBit(t *testing.T) {
	run := func(crowded bool) (states [2]kit.Bits) {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
			update := kit.Updater(t, m, 1)
			for step := range 6 {
				_, err := m.Forward(ctx, kit.TinyBatch(step, g.Rank(), 2+g.Rank(), 2+step%3)...)
				require.NoError(t, err)
				if crowded && g.Rank() == 1 {
					_, err := m.Plan(kit.TinyBatch(0, 0, 7, 1+step)...)
					require.NoError(t, err)
				}
				require.NoError(t, m.Backward(ctx))
				update(ctx)
			}
			states[g.Rank()] = kit.StateBits(t, ctx, m)
		})
		return states
	}
	want := run(false)
	defer kit.KeepPasses(0)()
	got := run(true)
	for r := range want {
		kit.RequireSameBits(t, want[r], got[r])
	}
}

// TestOldPassesHoldNoBuffers checks that passes which are kept compiled, of 30 batch shapes with
// about a megabyte of buffers each, do not hold the buffers that they had.
func TestOldPassesHoldNoBuffers(t *testing.T) {
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{})
	eval := func(rows int) {
		_, err := m.Eval(t.Context(), kit.TinyBatch(0, 0, rows, 6)...)
		require.NoError(t, err)
	}
	eval(400)
	before := kit.HeapBytes() - m.Memory().Reserved
	for rows := range 30 {
		eval(400 + rows)
	}
	require.Less(t, kit.HeapBytes()-m.Memory().Reserved-before, 4<<20)
}

// TestStepAllocatesLittle bounds what a step on one rank asks of the Go heap, once it is warm:
// nothing that grows with the model's width or the batch, and little for each operation.
func TestStepAllocatesLittle(t *testing.T) {
	kit.Needs(t, kit.HostMemory)
	for _, threads := range []int{1, 4} {
		t.Run(fmt.Sprint(threads, " threads"), func(t *testing.T) { kit.StepAllocatesLittle(t, threads) })
	}
}
