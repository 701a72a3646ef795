package fsdp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// TestExportImport writes values and optimizer state under every layout, reads the file with an
// independent parser, and imports it under another layout, to the bit where the type is that of the
// computation.
func TestExportImport(t *testing.T) {
	renamed := func(name string) string { return "h." + strings.ReplaceAll(name, ".w", ".weight") }
	for _, world := range []int{1, 3, 4} {
		for n, layout := range kit.SortedKeys(kit.StateLayouts(world)) {
			experts := strings.Contains(layout, "experts") // which do not fit another layout
			for _, precision := range []fsdp.Precision{{}, kit.Float64s} {
				t.Run(fmt.Sprintf("%d ranks/%s/%v", world, layout, precision.Compute), func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "model.safetensors")
					kind := kit.SortedKeys(kit.StateOptimizers)[n%len(kit.StateOptimizers)]
					var want kit.Bits
					var state *optim.FullState
					kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
						cfg := kit.StateLayouts(world)[layout](t, ctx, g)
						cfg.Precision, cfg.Poison, cfg.Seed = precision, true, 3
						m := kit.Wrap(t, kit.StateModel, cfg)
						fsdp.PoisonPadding(m)
						before, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
						require.NoError(t, err)
						opt := kit.FiveUpdates(t, m.Params(), fullNames(before, g.Rank()), kit.StateOptimizers[kind])
						values, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
						require.NoError(t, err)
						full, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
						require.NoError(t, err)
						own := path // of rank 0; that of the others does not matter
						if g.Rank() > 0 {
							own = "elsewhere"
						}
						live := m.Memory().Live
						to, from := kit.ToGPT2(), kit.FromGPT2()
						to.Optimizer, to.Metadata, from.Optimizer = opt, map[string]string{"a": "b"}, opt
						require.NoError(t, m.Export(ctx, own, to))
						require.Equal(t, live, m.Memory().Live)
						require.NoError(t, m.Import(ctx, path, from))
						again, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
						require.NoError(t, err)
						for name := range again {
							if name != "bn.mean" { // that of rank 0 now
								require.Equal(t, kit.BitsOf(values)[name], kit.BitsOf(again)[name], name)
							}
						}
						if g.Rank() == 0 {
							want, state = kit.BitsOf(values), full
							checkFile(t, path, values, full, renamed)
						}
						left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
						require.NoError(t, err)
						require.Equal(t, []string{path}, left)
					})
					if experts {
						return
					}
					kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
						m := kit.Wrap(t, kit.StateModel, fsdp.Config{Group: g, Precision: precision, Seed: 99, WrapPolicy: fsdp.WrapEach()})
						fsdp.PoisonPadding(m)
						opt, err := kit.StateOptimizers[kind](m.Params())
						require.NoError(t, err)
						from := kit.FromGPT2()
						from.Optimizer = opt
						require.NoError(t, m.Import(ctx, path, from))
						kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
						got, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
						require.NoError(t, err)
						kit.RequireSameState(t, state, got)
					})
				})
			}
		}
	}
}

// checkFile compares a file, whose matrices b.w and experts.up lie transposed, with what was
// exported.
func checkFile(t require.TestingT, path string, values kit.Params, state *optim.FullState, renamed func(string) string) {
	tensors, about := kit.ParseFile(t, path)
	require.Equal(t, "pt", about["format"])
	require.Equal(t, "b", about["a"])
	var counts struct {
		Steps   int
		Updates map[string]int
	}
	require.NoError(t, json.Unmarshal([]byte(about["gofsdp.optimizer"]), &counts))
	require.Equal(t, state.Steps, counts.Steps)
	entries := 0
	check := func(name, inFile string, data []float64) {
		shape := slices.Clone([]int(values[name].Shape()))
		if name == "b.w" || strings.HasPrefix(name, "experts.up") {
			data = kit.Turned(data, shape[0], shape[1])
			slices.Reverse(shape)
		}
		require.Contains(t, tensors, inFile)
		if name != "b.s" { // a scalar
			require.Equal(t, shape, tensors[inFile].Shape, inFile)
		}
		require.Equal(t, data, tensors[inFile].Data, inFile)
	}
	for name, v := range values {
		check(name, renamed(name), kit.Elements(v))
	}
	for name, p := range state.Params {
		require.Equal(t, p.Steps, counts.Updates[renamed(name)])
		for entry, v := range p.Entries {
			entries++
			check(name, entry+":"+renamed(name), kit.AsFloat64(v))
		}
	}
	require.Len(t, tensors, len(values)+entries)
}

// whole are the pieces of one process that has the values of a full state, buffers and what is
// frozen apart.
func whole(state kit.Params, frozen func(string) bool) (pieces []optim.Param) {
	for _, name := range slices.Sorted(maps.Keys(state)) {
		if name == "bn.mean" || frozen(name) {
			continue
		}
		p := optim.Param{Name: name, Shape: state[name].Shape()}
		switch data := state[name].Data().(type) {
		case []float32:
			p.Value, p.Grad = optim.Host{F32: slices.Clone(data)}, optim.Host{F32: make([]float32, len(data))}
		case []float64:
			p.Value, p.Grad = optim.Host{F64: slices.Clone(data)}, optim.Host{F64: make([]float64, len(data))}
		}
		pieces = append(pieces, p)
	}
	return pieces
}

// stateOf is the state of an optimizer over whole parameters.
func stateOf(opt optim.Optimizer) *optim.FullState {
	full := &optim.FullState{Steps: opt.Steps(), Params: make(map[string]optim.FullParam)}
	for _, e := range opt.State() {
		if _, ok := full.Params[e.Param]; !ok {
			full.Params[e.Param] = optim.FullParam{Shape: e.Shape, Steps: e.Steps, Entries: make(map[string]optim.Host)}
		}
		full.Params[e.Param].Entries[e.Name] = e.Data.(optim.Host)
	}
	return full
}

// fullNames returns the names of a rank's parameters in a full state: those of experts have the
// first rank of its group.
func fullNames(state kit.Params, rank int) func(string) string {
	return func(name string) string {
		for leader := rank; leader >= 0; leader-- {
			if own := fmt.Sprintf("%s@%d", name, leader); state[own] != nil {
				return own
			}
		}
		return name
	}
}

// TestFullStateIsThatOfOneProcess compares values and optimizer state, collected after five
// updates, with those of one process, to the bit; on one rank and on all. A new optimizer that is
// given that state has it.
func TestFullStateIsThatOfOneProcess(t *testing.T) {
	frozen := []func(string) bool{func(string) bool { return false }, func(name string) bool { return strings.HasPrefix(name, "b.w") || name == "a.b" }}
	kinds := slices.Sorted(maps.Keys(kit.StateOptimizers))
	for _, world := range []int{1, 2, 3, 4, 5, 8} {
		layouts := kit.StateLayouts(world)
		for n, layout := range slices.Sorted(maps.Keys(layouts)) {
			for k, kind := range kinds {
				t.Run(fmt.Sprintf("%d ranks/%s/%s", world, layout, kind), func(t *testing.T) {
					frozen, root := frozen[(n+k)%2], (n+k)%world
					kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
						cfg := layouts[layout](t, ctx, g)
						cfg.Poison, cfg.Frozen, cfg.Seed = true, frozen, 3
						if (n+k)%3 == 0 {
							cfg.Precision = kit.Float64s
						}
						m := kit.Wrap(t, kit.StateModel, cfg)
						fsdp.PoisonPadding(m)
						before, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
						require.NoError(t, err)
						opt := kit.FiveUpdates(t, m.Params(), fullNames(before, g.Rank()), kit.StateOptimizers[kind])

						alone := whole(before, frozen)
						single := kit.FiveUpdates(t, alone, func(name string) string { return name }, kit.StateOptimizers[kind])
						want := stateOf(single)
						values := kit.BitsOf(before)
						for _, p := range alone {
							values[p.Name] = kit.BitsOf(kit.Params{p.Name: tensor.New(tensor.WithShape(p.Value.Len()), tensor.WithBacking(anySlice(p.Value.(optim.Host))))})[p.Name]
						}

						checkFull(t, ctx, g, m, opt, root, values, want)
						next, err := kit.StateOptimizers[kind](m.Params())
						require.NoError(t, err)
						var given *optim.FullState
						if g.Rank() == root {
							given = want
						}
						require.NoError(t, m.LoadOptimStateDict(ctx, root, next, given, nil))
						checkFull(t, ctx, g, m, next, (root+1)%world, values, want)
						require.NoError(t, m.Close())
					})
				})
			}
		}
	}
}

func anySlice(v optim.Host) any {
	if v.F64 != nil {
		return v.F64
	}
	return v.F32
}

// checkFull collects values and state on all ranks and on one, and compares them.
func checkFull(t require.TestingT, ctx context.Context, g comm.Group, m *fsdp.Sharded, opt optim.Optimizer, root int, values kit.Bits, want *optim.FullState) {
	all, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	kit.RequireSameBits(t, values, kit.BitsOf(all))
	require.NoError(t, m.LoadStateDict(ctx, root, map[int]kit.Params{root: all}[g.Rank()]), "what StateDict returns, LoadStateDict takes")
	again, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	kit.RequireSameBits(t, values, kit.BitsOf(again))
	state, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	kit.RequireSameState(t, want, state)
	for _, p := range state.Params {
		clear(p.Shape) // it is the caller's
	}
	one, err := m.StateDict(ctx, &fsdp.StateDictOptions{Rank: root})
	require.NoError(t, err)
	state, err = m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{Rank: root})
	require.NoError(t, err)
	if g.Rank() != root {
		require.Nil(t, one)
		require.Nil(t, state)
		return
	}
	kit.RequireSameBits(t, values, kit.BitsOf(one))
	kit.RequireSameState(t, want, state)
}
