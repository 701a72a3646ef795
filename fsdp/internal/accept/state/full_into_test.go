package state_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// largeModel has tensors that travel alone and some that travel together.
var largeModel = kit.Calls(kit.Call("a", kit.Having(kit.Initial(kit.Weight("w", 701, 499)), kit.Initial(kit.Weight("b", 7)))), kit.Call("b", kit.Having(kit.Initial(kit.Weight("w", 5, 11)), kit.Initial(kit.Weight("v", 300, 700)))))

// drawnState returns an optimizer with a state that a seed decides, whatever the number of ranks.
func drawnState(t require.TestingT, m *fsdp.Sharded, seed int) optim.Optimizer {
	opt, err := optim.AdamW{WeightDecay: float64(seed)}.New(m.Params())
	require.NoError(t, err)
	entries := opt.State()
	for i, e := range entries {
		kit.Edit(t, e.Data, func(k int, _ float64) float64 { return float64(kit.U24(e.Offset+k, seed+100*len(e.Name+e.Param))) })
		entries[i].Steps = 3
	}
	require.NoError(t, opt.Adopt(seed, entries))
	return opt
}

// memoryOf returns where the tensors of a state lie.
func memoryOf(full *optim.FullState) map[string]*float32 {
	at := make(map[string]*float32)
	for _, e := range full.Entries() {
		at[e.Name+":"+e.Param] = &e.Data.(optim.Host).F32[0]
	}
	return at
}

// TestInto collects a state into the memory of another, which other ranks may have made: it is that
// in new memory, to the bit.
func TestInto(t *testing.T) {
	var earlier *optim.FullState // of rank 0, by other numbers of ranks
	for _, world := range []int{2, 3, 1, 4} {
		for _, everywhere := range []bool{false, true} {
			var left *optim.FullState
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, largeModel, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach()})
				options := &fsdp.StateDictOptions{AllRanks: everywhere}
				first, err := m.OptimStateDict(ctx, drawnState(t, m, 1), options)
				require.NoError(t, err)
				opt := drawnState(t, m, 2)
				want, err := m.OptimStateDict(ctx, opt, options)
				require.NoError(t, err)
				require.Equal(t, everywhere || g.Rank() == 0, want != nil, "rank 0 is who gets it")
				if g.Rank() == 0 && earlier != nil {
					first = earlier
				}
				var at map[string]*float32
				if first != nil {
					at = memoryOf(first)
				}
				options.Into = first
				got, err := m.OptimStateDict(ctx, opt, options)
				require.NoError(t, err)
				if want == nil {
					require.Nil(t, got)
					return
				}
				require.Same(t, first, got)
				require.Equal(t, want, got)
				for name, p := range memoryOf(got) {
					require.Same(t, at[name], p)
				}
				if g.Rank() == 0 {
					left = got
				}
			})
			earlier = left
		}
	}
}

// TestIntoAllocates bounds what is allocated beside the result.
func TestIntoAllocates(t *testing.T) {
	kit.Needs(t, kit.HostMemory)
	const bytes = 2 * 4 * (701*499 + 300*700)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, largeModel, fsdp.Config{Group: g})
		opt := drawnState(t, m, 1)
		full, first := allocatedInto(t, ctx, g, m, opt, nil)
		_, next := allocatedInto(t, ctx, g, m, opt, full)
		require.Greater(t, first, uint64(bytes))
		require.Less(t, first, uint64(bytes*5/4))
		require.Less(t, next, uint64(bytes/8))
	})
}

// TestIntoAllocatesLittleForATensor bounds what two ranks allocate for each of many tensors: pages
// of new memory cost more than what is written there.
func TestIntoAllocatesLittleForATensor(t *testing.T) {
	const n = 1500
	var params []fsdp.Param
	for i := range n {
		params = append(params, kit.Weight(fmt.Sprintf("experts.%d.weight", i), 5))
	}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Calls(kit.Call("a", kit.Having(params...))), fsdp.Config{Group: g})
		opt := drawnState(t, m, 1)
		full, _ := allocatedInto(t, ctx, g, m, opt, nil)
		_, next := allocatedInto(t, ctx, g, m, opt, full)
		require.Less(t, next/(2*n), uint64(2500), "bytes for a tensor")
	})
}

// allocatedInto collects the state of opt and returns what all ranks have allocated.
func allocatedInto(t *testing.T, ctx context.Context, g comm.Group, m *fsdp.Sharded, opt optim.Optimizer, old *optim.FullState) (*optim.FullState, uint64) {
	var before, after runtime.MemStats
	require.NoError(t, g.Barrier(ctx))
	runtime.ReadMemStats(&before)
	require.NoError(t, g.Barrier(ctx))
	full, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Into: old})
	require.NoError(t, err)
	require.NoError(t, g.Barrier(ctx))
	runtime.ReadMemStats(&after)
	require.NoError(t, g.Barrier(ctx))
	return full, after.TotalAlloc - before.TotalAlloc
}

// TestIntoErrors checks what every rank hears of an earlier state that is none, and that nothing has
// changed.
func TestIntoErrors(t *testing.T) {
	entry := func(f *optim.FullState, param, name string, v optim.Host) { f.Params[param].Entries[name] = v }
	for name, c := range map[string]struct {
		change func(f *optim.FullState)
		want   string // "" if it is taken
	}{
		"empty":             {func(f *optim.FullState) { *f = optim.FullState{} }, ""},
		"parameter missing": {func(f *optim.FullState) { delete(f.Params, "b.w") }, ""},
		"entry missing":     {func(f *optim.FullState) { delete(f.Params["a.b"].Entries, "exp_avg") }, ""},
		"no entries":        {func(f *optim.FullState) { f.Params["a.b"] = optim.FullParam{} }, ""},
		"another size": {func(f *optim.FullState) {
			entry(f, "a.b", "exp_avg", optim.Host{F32: make([]float32, 6)})
		}, "option Into: exp_avg:a.b has 6 float32 and 0 float64 elements, want 7 of float32"},
		"another type": {func(f *optim.FullState) {
			entry(f, "a.b", "exp_avg", optim.Host{F64: make([]float64, 7)})
		}, "option Into: exp_avg:a.b has 0 float32 and 7 float64 elements, want 7 of float32"},
		"two types": {func(f *optim.FullState) {
			entry(f, "a.b", "exp_avg", optim.Host{F32: make([]float32, 7), F64: make([]float64, 1)})
		}, "option Into: exp_avg:a.b has 7 float32 and 1 float64 elements, want 7 of float32"},
		"another model":     {func(f *optim.FullState) { f.Params["z"] = f.Params["a.b"]; delete(f.Params, "a.b") }, "option Into: the earlier state has 2 tensors that this state does not have"},
		"another optimizer": {func(f *optim.FullState) { entry(f, "a.b", "max", optim.Host{}) }, "option Into: the earlier state has 1 tensors that this state does not have"},
		"shared memory": {func(f *optim.FullState) {
			entry(f, "a.b", "exp_avg", optim.Host{F32: f.Params["b.w"].Entries["exp_avg"].F32[48:]})
		}, "option Into: tensors of the earlier state share memory with each other or with the optimizer: give each its own memory"},
	} {
		for root := range 2 {
			t.Run(fmt.Sprint(name, " on rank ", root), func(t *testing.T) {
				kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
					m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
					opt := drawnState(t, m, 1)
					full, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Rank: root})
					require.NoError(t, err)
					if full != nil {
						c.change(full)
					}
					got, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Rank: root, Into: full})
					if c.want != "" {
						require.ErrorContains(t, err, c.want)
						require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", root))
					} else if require.NoError(t, err); g.Rank() == root {
						require.Same(t, full, got)
					}
					want, err := m.OptimStateDict(ctx, drawnState(t, m, 1), &fsdp.StateDictOptions{Rank: root})
					require.NoError(t, err)
					after, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Rank: root})
					require.NoError(t, err, "the model can be used")
					require.Equal(t, want, after)
					if got != nil {
						require.Equal(t, want, got)
					}
				})
			})
		}
	}
}

// TestIntoOptimizersMemory checks that state is not gathered over the state that it is gathered of.
func TestIntoOptimizersMemory(t *testing.T) {
	kit.Needs(t, kit.HostMemory)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		opt := drawnState(t, m, 1)
		full, err := m.OptimStateDict(ctx, opt, nil)
		require.NoError(t, err)
		if full != nil {
			for _, e := range opt.State() {
				if e.Data.Len() >= 7 {
					full.Params["a.b"].Entries["exp_avg"] = optim.Host{F32: e.Data.(optim.Host).F32[:7]}
				}
			}
		}
		_, err = m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Into: full})
		require.ErrorContains(t, err, "option Into: tensors of the earlier state share memory with each other or with the optimizer: give each its own memory")
		require.ErrorContains(t, err, "rank 0: ")
	})
}

// TestIntoKeepsExtra collects a state into an earlier one with values of the caller's: they stay.
func TestIntoKeepsExtra(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		full, err := m.OptimStateDict(ctx, opt, nil)
		require.NoError(t, err)
		if full != nil {
			full.Extra = map[string]any{"epoch": 3}
		}
		full, err = m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Into: full})
		require.NoError(t, err)
		if g.Rank() == 0 {
			require.Equal(t, map[string]any{"epoch": 3}, full.Extra)
		}
	})
}
