package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// TestGroupMemory trains over groups that have memory to give, under every kind of configuration.
// Every flat buffer of every collective lies in that memory, which changes no bit; nothing else
// does; steps that repeat ask for no more; and Close gives all of it back.
func TestGroupMemory(t *testing.T) {
	kit.Needs(t, kit.Processor)
	knobs := map[string]fsdp.Config{
		"root only":       {},
		"blocks":          {WrapPolicy: kit.Blocks},
		"each":            {WrapPolicy: fsdp.WrapEach(), Prefetch: 2},
		"no prefetch":     {WrapPolicy: kit.Blocks, Prefetch: fsdp.NoPrefetch},
		"prefetch 3":      {WrapPolicy: kit.Blocks, Prefetch: 3},
		"poison":          {WrapPolicy: kit.Blocks, Poison: true},
		"poison, float64": {WrapPolicy: kit.Blocks, Poison: true, Prefetch: 2, Precision: kit.Float64s},
		"checkpoint":      {WrapPolicy: kit.Blocks, Activations: fsdp.Activations{Recompute: kit.Blocks}, Poison: true},
		"keep":            {WrapPolicy: kit.Blocks, Activations: fsdp.Activations{Save: fsdp.WrapEach()}, Poison: true},
		"ShardGradOp":     {WrapPolicy: kit.Blocks, Strategy: fsdp.ShardGradOp, Poison: true},
		"NoShard":         {WrapPolicy: kit.Blocks, Strategy: fsdp.NoShard, Poison: true},
		"bfloat16":        {WrapPolicy: kit.Blocks, Precision: fsdp.Precision{Gather: fsdp.BFloat16, Reduce: fsdp.BFloat16}, Poison: true},
		"computes":        {WrapPolicy: kit.Blocks, Precision: fsdp.BF16(), Poison: true},
		"frozen":          {WrapPolicy: kit.Blocks, Frozen: func(name string) bool { return name == "blocks.0.qkv.weight" }, Poison: true},
	}
	for name, cfg := range knobs {
		for world := 1; world <= 3; world++ {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				const steps = 8
				want := kit.Train(t, kit.TinyGPT(2), world, steps, 0.5, cfg)
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					mem, cfg := kit.NewMemoryGroup(g), cfg
					cfg.Group = mem
					m := kit.Wrap(t, kit.TinyGPT(2), cfg)
					update, warm := kit.Updater(t, m, 0.5), 0
					for step := range steps {
						kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
						update(ctx)
						_, err := m.Eval(ctx, kit.TinyBatch(step, g.Rank(), 1, 3)...)
						require.NoError(t, err)
						if step == 1 {
							warm = mem.Allocs
						}
					}
					require.Equal(t, warm, mem.Allocs, "allocations after two steps")
					requireFlatBuffersOnly(t, m, mem, cfg.Precision.Reduce == fsdp.BFloat16)
					kit.GradBits(t, ctx, m) // goes straight to tensors of the caller's, or together if small
					kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
					require.LessOrEqual(t, mem.Allocs, warm+2, "allocations after steps, but for two parcels under way")
					require.NoError(t, m.Close())
					require.Empty(t, mem.Out)
					require.Equal(t, fsdp.Memory{Peak: m.Memory().Peak}, m.Memory())
				})
			})
		}
	}
}

// requireFlatBuffersOnly checks that the memory of the group served flat buffers, and all of them. If
// gradients travel in bfloat16, whole ones may have that type.
func requireFlatBuffersOnly(t require.TestingT, m *fsdp.Sharded, mem *kit.MemoryGroup, halves bool) {
	require.Empty(t, mem.Strangers, "bytes of buffers that are not in the memory of the group")
	plan, err := m.Plan(kit.GoodBatch(0)...)
	require.NoError(t, err)
	if plan.Ranks > 1 {
		require.Positive(t, mem.Seen)
	}
	flat, half := map[int]bool{}, map[int]bool{}
	for _, g := range plan.Groups {
		master := g.Bytes // of shards and gradients
		if plan.Compute == fsdp.BFloat16 && !strings.Contains(g.Name, "(full)") {
			master *= 2
		}
		flat[g.Bytes], flat[master], flat[master/g.Ranks] = true, true, true
		half[master/2] = halves
	}
	served := maps.Clone(mem.Sizes)
	maps.DeleteFunc(served, func(size int, _ bool) bool { return half[size] && !flat[size] })
	require.Equal(t, flat, served)
}

// TestGroupMemoryIsGivenBackEarly: what steps stop using returns to the group before Close.
func TestGroupMemoryIsGivenBackEarly(t *testing.T) {
	kit.Needs(t, kit.Processor)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		mem := kit.NewMemoryGroup(g)
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: mem, WrapPolicy: kit.Blocks})
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		require.Zero(t, mem.Frees)
		for range 4 { // forwards alone have no gradients
			_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
			require.NoError(t, err)
		}
		require.Positive(t, mem.Frees)
		require.NoError(t, m.Close())
		require.Empty(t, mem.Out)
	})
}

// TestGroupMemoryRefusesBlock: memory that a group does not take back is an error of the step that
// gives it back.
func TestGroupMemoryRefusesBlock(t *testing.T) {
	kit.Needs(t, kit.Processor)
	for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) (err error) {
		mem := kit.NewMemoryGroup(g)
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: mem, WrapPolicy: kit.Blocks})
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		if g.Rank() == 1 {
			mem.FailFree = errors.New("I do not want it")
		}
		for i := 0; i < 6 && err == nil; i++ {
			_, err = m.Forward(ctx, kit.GoodBatch(g.Rank())...)
		}
		return err
	}) {
		require.ErrorContains(t, err, "giving memory back: I do not want it")
		require.ErrorContains(t, err, "rank 1")
	}
}

// TestNoGroupMemory lets every Alloc in a training run fail in turn, on one rank. Every rank
// returns an error that says so, and gives back what it has.
func TestNoGroupMemory(t *testing.T) {
	for world := 1; world <= 3; world++ {
		for k, failed := 1, true; failed; k++ {
			require.Less(t, k, 100)
			failed = false
			errs := make([]error, world)
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				mem := kit.NewMemoryGroup(g)
				if g.Rank() == world-1 {
					mem.FailAlloc = k
				}
				errs[g.Rank()] = useOnce(ctx, mem)
				require.Empty(t, mem.Out)
			})
			for r, err := range errs {
				failed = failed || err != nil
				if failed {
					require.NotErrorIs(t, err, context.DeadlineExceeded)
					require.Regexp(t, `allocating \d+ bytes of (shard|gathered|gradient) memory: `+kit.ErrMemoryFull.Error(), err, "rank %d", r)
					require.ErrorContains(t, err, fmt.Sprintf("rank %d", world-1))
				}
			}
		}
	}
}

// useOnce makes, uses and closes a model.
func useOnce(ctx context.Context, g comm.Group) error {
	m, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
	if err != nil {
		return err
	}
	use := func() error {
		if _, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...); err != nil {
			return err
		}
		if err := m.Backward(ctx); err != nil {
			return err
		}
		if _, err := m.Eval(ctx, kit.GoodBatch(g.Rank())...); err != nil {
			return err
		}
		_, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true}) // a rank that was done already is told now
		return err
	}
	return errors.Join(use(), m.Close())
}

// TestSetFullWithoutMemory: that there is no memory for what is on its way does not cost the model.
func TestSetFullWithoutMemory(t *testing.T) {
	kit.Needs(t, kit.Processor)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		mem := kit.NewMemoryGroup(g)
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: mem, WrapPolicy: kit.Blocks})
		if g.Rank() == 1 {
			mem.FailAlloc = mem.Allocs + 1
		}
		err := m.LoadStateDict(ctx, 0, nil)
		require.Regexp(t, `fsdp: rank \d: LoadStateDict: (rank 1: )?allocating \d+ bytes of gathered memory: `+kit.ErrMemoryFull.Error(), err)
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		kit.StateBits(t, ctx, m)
		require.NoError(t, m.Close())
		require.Empty(t, mem.Out)
	})
}

// TestClosedModel: a closed model returns errors at once, whatever the other ranks do, and leaves
// the group as it is.
func TestClosedModel(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		for _, g := range []comm.Group{g, kit.NewMemoryGroup(g)} {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Poison: true})
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
			require.NoError(t, m.Close())
			require.NoError(t, m.Close(), "again")
			if g.Rank() == 0 {
				closed := "fsdp: rank 0: %s: the model is closed: call Close after the last use, or Wrap again"
				_, err := m.Forward(ctx, kit.GoodBatch(0)...)
				require.EqualError(t, err, fmt.Sprintf(closed, "Forward"))
				require.EqualError(t, m.Backward(ctx), fmt.Sprintf(closed, "Backward"))
				_, err = m.Eval(ctx, kit.GoodBatch(0)...)
				require.EqualError(t, err, fmt.Sprintf(closed, "Eval"))
				_, err = m.ClipGradNorm(ctx, 1)
				require.EqualError(t, err, fmt.Sprintf(closed, "ClipGradNorm"))
				_, err = m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				require.EqualError(t, err, fmt.Sprintf(closed, "StateDict"))
				_, err = m.FullGrads(ctx)
				require.EqualError(t, err, fmt.Sprintf(closed, "FullGrads"))
				require.Empty(t, m.Params())
				m.ZeroGrad()
			}
			require.NoError(t, g.Barrier(ctx))
		}
	})
}

// TestCloseWaitsForGathers: a forward without a backward has gathers in flight, whose memory is not
// given back before.
func TestCloseWaitsForGathers(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		mem := kit.NewMemoryGroup(g)
		m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{Group: mem, WrapPolicy: kit.Blocks, Prefetch: 2})
		_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
		require.NoError(t, err)
		flying := func(w *kit.MemoryWork) bool { return !w.Waited }
		require.True(t, slices.ContainsFunc(mem.Working, flying))
		require.NoError(t, m.Close())
		require.False(t, slices.ContainsFunc(mem.Working, flying))
		require.Empty(t, mem.Out)
		require.NoError(t, g.Barrier(ctx))
	})
}

// TestGroupClosedBeforeModel: the memory of a group that is closed may not be there any more. The
// model returns errors, and writes to none of it.
func TestGroupClosedBeforeModel(t *testing.T) {
	kit.Needs(t, kit.Processor)
	forward := func(ctx context.Context, m *fsdp.Sharded) error {
		_, err := m.Forward(ctx, kit.GoodBatch(0)...)
		return err
	}
	state := func(ctx context.Context, m *fsdp.Sharded) error {
		_, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		return err
	}
	for i, after := range []string{"Wrap", "Wrap", "Forward", "Forward", "Backward", "Backward"} {
		order := []func(context.Context, *fsdp.Sharded) error{forward, state}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			mem := kit.NewMemoryGroup(g)
			m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{Group: mem, WrapPolicy: kit.Blocks, Prefetch: 2, Poison: true})
			if after == "Forward" {
				_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
				require.NoError(t, err)
			} else if after == "Backward" {
				kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
			}
			require.NoError(t, g.Barrier(ctx))
			require.NoError(t, mem.Close())
			for _, use := range order {
				require.ErrorIs(t, use(ctx, m), comm.ErrClosed)
			}
			require.ErrorContains(t, m.Close(), fmt.Sprintf("fsdp: rank %d: Close: giving memory back: the group is closed, so its memory is freed", g.Rank()))
			require.NoError(t, m.Close(), "again")
			for _, b := range mem.Out {
				require.Equal(t, len(b), bytes.Count(b, []byte{kit.Untouched}), "memory that has gone was written to")
			}
		})
	}
}
