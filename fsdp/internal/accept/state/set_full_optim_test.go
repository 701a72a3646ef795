package state_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// smallModel is cut so that rank 0 of three has nothing of b.w.
var smallModel = kit.Calls(kit.Call("a", kit.Having(kit.Initial(kit.Weight("w", 31, 3)), kit.Initial(kit.Weight("b", 7)))), kit.Call("b", kit.Having(kit.Initial(kit.Weight("w", 5, 11)))))

// fullAdam returns a state for smallModel.
func fullAdam() *optim.FullState {
	full := &optim.FullState{Steps: 9, Params: make(map[string]optim.FullParam), Extra: map[string]any{"mine": 1}}
	for name, shape := range map[string][]int{"a.w": {31, 3}, "a.b": {7}, "b.w": {5, 11}} {
		n := 1
		for _, d := range shape {
			n *= d
		}
		p := optim.FullParam{Shape: shape, Steps: 5 + len(shape), Entries: make(map[string]optim.Host)}
		for k, entry := range []string{"exp_avg", "exp_avg_sq"} {
			v := optim.Host{F32: make([]float32, n)}
			for i := range v.F32 {
				v.F32[i] = float32(1 + kit.U24(i, k+len(name)+int(name[0]))%1000)
			}
			p.Entries[entry] = v
		}
		full.Params[name] = p
	}
	return full
}

// TestSetFullOptimErrors checks what every rank hears, and that nothing has changed.
func TestSetFullOptimErrors(t *testing.T) {
	const root = 1
	all := func(string) bool { return true }
	for name, c := range map[string]struct {
		change func(full *optim.FullState)
		call   func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, rank int) error
		want   string
	}{
		"parameter missing": {change: func(f *optim.FullState) { delete(f.Params, "b.w") },
			want: "the optimizer's state on rank 1 does not fit the model: missing exp_avg:b.w, exp_avg_sq:b.w"},
		"entry missing": {change: func(f *optim.FullState) { delete(f.Params["a.b"].Entries, "exp_avg") }, want: "missing exp_avg:a.b"},
		"an entry may be missing, but not alone": {func(f *optim.FullState) { delete(f.Params["a.b"].Entries, "exp_avg") },
			func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, _ int) error {
				return m.LoadOptimStateDict(ctx, root, opt, full, &fsdp.LoadOptions{AllowMissing: all})
			}, "missing exp_avg:a.b"},
		"extra parameter": {change: func(f *optim.FullState) { f.Params["z"] = f.Params["a.b"] }, want: "extra exp_avg:z, exp_avg_sq:z"},
		"extra entry":     {change: func(f *optim.FullState) { f.Params["a.b"].Entries["max"] = f.Params["a.b"].Entries["exp_avg"] }, want: "extra max:a.b"},
		"other shape": {change: func(f *optim.FullState) {
			p := f.Params["b.w"]
			p.Shape = []int{11, 5}
			f.Params["b.w"] = p
		}, want: "reshaped exp_avg:b.w [11 5] -> [5 11], exp_avg_sq:b.w [11 5] -> [5 11]"},
		"too few elements": {change: func(f *optim.FullState) { f.Params["a.b"].Entries["exp_avg"] = optim.Host{F32: make([]float32, 6)} },
			want: "the full state has 6 float32 and 0 float64 elements of exp_avg of parameter a.b [7]"},
		"negative dimension": {change: func(f *optim.FullState) {
			p := f.Params["b.w"]
			p.Shape = []int{-5, -11}
			f.Params["b.w"] = p
		}, want: "the full state: "},
		"negative steps": {change: func(f *optim.FullState) { f.Steps = -1 }, want: "the number of steps in the full state is -1: it must not be negative"},
		"settings": {change: func(f *optim.FullState) { f.Groups = []optim.Group{{Settings: optim.Settings{Eps: math.NaN()}}} },
			want: "the settings in the full state: "},
		"no updates": {change: func(f *optim.FullState) {
			p := f.Params["b.w"]
			p.Steps = 0
			f.Params["b.w"] = p
		}, want: "of parameter b.w that is not zero after 0 updates"},
		"nil": {call: func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, _ *optim.FullState, _ int) error {
			return m.LoadOptimStateDict(ctx, root, opt, nil, nil)
		}, want: "the full state is nil"},
		"no optimizer on one rank": {call: func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, rank int) error {
			if rank == 2 {
				opt = nil
			}
			return m.LoadOptimStateDict(ctx, root, opt, full, nil)
		}, want: "the optimizer is nil"},
		"root out of range": {call: func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, _ int) error {
			return m.LoadOptimStateDict(ctx, 3, opt, full, nil)
		}, want: "rank 3 is not one of the 3 ranks"},
		"roots differ": {call: func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, rank int) error {
			return m.LoadOptimStateDict(ctx, rank, opt, full, nil)
		}, want: "from rank 0"},
		"renamed on one rank": {call: func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, rank int) error {
			return m.LoadOptimStateDict(ctx, root, opt, full, &fsdp.LoadOptions{Rename: func(name string) string { return name[:1+rank/2] + name[1:] }})
		}, want: "ranks disagree about the options"},
		"renamed differently": {call: func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, rank int) error {
			return m.LoadOptimStateDict(ctx, root, opt, full, &fsdp.LoadOptions{Rename: func(name string) string { return fmt.Sprint(name, rank) }})
		}, want: `ranks disagree about the options: rank 0 has "parameter a.w is`},
		"Rename panics": {call: func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, rank int) error {
			return m.LoadOptimStateDict(ctx, root, opt, full, &fsdp.LoadOptions{Rename: func(name string) string { panic("no names today") }})
		}, want: "no names today"},
		"allowed on one rank": {func(f *optim.FullState) { delete(f.Params, "b.w") },
			func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer, full *optim.FullState, rank int) error {
				return m.LoadOptimStateDict(ctx, root, opt, full, &fsdp.LoadOptions{AllowMissing: func(string) bool { return rank == 2 }})
			}, "missing exp_avg:b.w, exp_avg_sq:b.w"},
	} {
		t.Run(name, func(t *testing.T) {
			for r, err := range kit.ErrorsOf(t, 3, func(ctx context.Context, g comm.Group) error {
				m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
				opt, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				full := fullAdam()
				if c.change != nil {
					c.change(full)
				}
				var failed error
				if c.call != nil {
					failed = c.call(ctx, m, opt, full, g.Rank())
				} else {
					failed = m.LoadOptimStateDict(ctx, root, opt, full, nil)
				}
				var e *fsdp.StateError
				if strings.Contains(c.want, "missing") && name != "allowed on one rank" {
					require.ErrorAs(t, failed, &e)
				}
				state, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
				require.NoError(t, err, "the model can be used")
				require.Zero(t, state.Steps)
				for name, p := range state.Params {
					require.Zero(t, p.Steps, name)
				}
				require.NoError(t, g.Barrier(ctx))
				return failed
			}) {
				require.ErrorContains(t, err, c.want, "rank %d", r)
			}
		})
	}
}

// TestSetFullOptimOptions sets a state of other names, with something missing and something over,
// in another type.
func TestSetFullOptimOptions(t *testing.T) {
	for _, precision := range []fsdp.Precision{{}, kit.Float64s} {
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, smallModel, fsdp.Config{Group: g, Precision: precision})
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			var given *optim.FullState
			if g.Rank() == 2 {
				full := fullAdam()
				given = &optim.FullState{Steps: 9, Params: map[string]optim.FullParam{"x.a.w": full.Params["a.w"], "x.a.b": full.Params["a.b"], "y": full.Params["a.b"]}}
				v := given.Params["x.a.b"].Entries["exp_avg"]
				for _, x := range v.F32 {
					v.F64 = append(v.F64, float64(x))
				}
				given.Params["x.a.b"].Entries["exp_avg"] = optim.Host{F64: v.F64} // two types
			}
			require.NoError(t, m.LoadOptimStateDict(ctx, 2, opt, given, &fsdp.LoadOptions{Rename: func(name string) string { return "x." + name }, AllowMissing: func(name string) bool { return strings.HasSuffix(name, ":x.b.w") }, AllowExtra: func(name string) bool { return strings.HasSuffix(name, ":y") }}))
			got, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			require.Equal(t, 9, got.Steps)
			for name, want := range fullAdam().Params {
				g := got.Params[name]
				if name == "b.w" {
					require.Zero(t, g.Steps)
					continue
				}
				require.Equal(t, want.Steps, g.Steps)
				for entry, v := range want.Entries {
					require.Equal(t, kit.AsFloat64(v), kit.AsFloat64(g.Entries[entry]), "%s of %s", entry, name)
				}
			}
		})
	}
}

// TestSetFullOptimBreaksOff lets the optimizer of one rank refuse in the middle: every rank gets
// its error, and the model refuses to go on until all of the state is set.
func TestSetFullOptimBreaksOff(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, smallModel, fsdp.Config{Group: g})
		inner, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		opt := &kit.Stubborn{Optimizer: inner, Refuse: map[int]string{2: "b.w"}[g.Rank()]}
		err = m.LoadOptimStateDict(ctx, 0, opt, fullAdam(), nil)
		require.ErrorContains(t, err, kit.ErrStubborn.Error())
		_, err = m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
		require.ErrorContains(t, err, "LoadOptimStateDict has failed in the middle")
		require.ErrorContains(t, opt.Step(1), "LoadOptimStateDict has failed in the middle")
		opt.Refuse = ""
		require.NoError(t, m.LoadOptimStateDict(ctx, 0, opt, fullAdam(), nil))
		got, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		kit.RequireSameState(t, fullAdam(), got)
		require.Equal(t, []string{"a.b", "a.w", "b.w"}, slices.Sorted(maps.Keys(got.Params)))
	})
}
