package parity_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// TestGradientsAreMeans compares the gradients of two ranks with those of each on its own: half
// their sum, to the bit.
func TestGradientsAreMeans(t *testing.T) {
	alone := make([]map[string][]float64, 2)
	for r := range alone {
		m := kit.Tiny64(t, nil)
		kit.ForwardBackward(t, t.Context(), m, kit.GoodBatch(r))
		alone[r] = kit.GradsOf(t, t.Context(), m)
	}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Tiny64(t, g)
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		for name, got := range kit.GradsOf(t, ctx, m) {
			for i, x := range got {
				require.Equal(t, (alone[0][name][i]+alone[1][name][i])/2, x, "%s[%d]", name, i)
			}
		}
	})
}

// TestAccumulation checks that Backward adds, that Scale scales, and that ZeroGrad starts over.
func TestAccumulation(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Tiny64(t, g)
		backward := func(seed int, opts ...fsdp.BackwardOption) {
			_, err := m.Forward(ctx, kit.TinyBatch(seed, g.Rank(), 2, 3)...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx, opts...))
		}
		backward(0)
		first := kit.GradsOf(t, ctx, m)
		m.ZeroGrad()
		require.Empty(t, kit.GradsOf(t, ctx, m), "no parameter has a gradient")
		for _, p := range m.Params() {
			require.True(t, p.Absent())
			require.Equal(t, make([]float64, p.Grad.Len()), kit.Numbers(t, p.Grad))
		}
		backward(1)
		second := kit.GradsOf(t, ctx, m)
		backward(0)
		sum := make(map[string][]float64)
		for name := range first {
			for i := range first[name] {
				sum[name] = append(sum[name], first[name][i]+second[name][i])
			}
		}
		kit.RequireNear(t, sum, kit.GradsOf(t, ctx, m), 0)
		m.ZeroGrad()
		backward(0, fsdp.Scale(0.25)) // a power of two: exact
		backward(0, fsdp.Scale(0.25))
		for name, got := range kit.GradsOf(t, ctx, m) {
			for i, x := range got {
				require.Equal(t, first[name][i]/2, x)
			}
		}
	})
}

// TestMicroBatches compares the gradient of a batch with that of its rows, one at a time.
func TestMicroBatches(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Tiny64(t, g)
		x, y := kit.Tokens(g.Rank(), kit.TinyVocab, 4, 3), kit.Tokens(9+g.Rank(), kit.TinyVocab, 4, 3)
		kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{x, y})
		want := kit.GradsOf(t, ctx, m)
		m.ZeroGrad()
		for row := range 4 {
			a, b := kit.Tokens(0, kit.TinyVocab, 1, 3), kit.Tokens(0, kit.TinyVocab, 1, 3)
			copy(a.Ints(), x.Ints()[3*row:])
			copy(b.Ints(), y.Ints()[3*row:])
			_, err := m.Forward(ctx, a, b)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx, fsdp.Scale(0.25)))
		}
		kit.RequireNear(t, want, kit.GradsOf(t, ctx, m), 1e-14)
	})
}

// TestDropout checks that every training pass and rank draws its own masks, and that evaluation
// draws none.
func TestDropout(t *testing.T) {
	losses := make([][]float64, 2)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.DropoutGPT(), fsdp.Config{Group: g})
		for range 3 {
			losses[g.Rank()] = append(losses[g.Rank()], kit.ForwardBackward(t, ctx, m, kit.GoodBatch(0)))
		}
		want, err := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g}).Eval(ctx, kit.GoodBatch(0)...)
		require.NoError(t, err)
		for range 2 {
			got, err := m.Eval(ctx, kit.GoodBatch(0)...)
			require.NoError(t, err)
			require.Equal(t, kit.Elements(want[1]), kit.Elements(got[1]), "evaluation is that of the model without dropout")
		}
	})
	all := slices.Sorted(slices.Values(append(losses[0], losses[1]...)))
	require.Len(t, slices.Compact(all), 6, "one batch, six masks, six losses")
}

// TestEvaluationLeavesTrainingAlone interleaves a training with everything that is not a step.
func TestEvaluationLeavesTrainingAlone(t *testing.T) {
	want := kit.Train(t, kit.DropoutGPT(), 2, 3, 1, fsdp.Config{WrapPolicy: kit.Blocks})
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.DropoutGPT(), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
		update := kit.Updater(t, m, 1)
		aside := func() {
			_, err := m.Eval(ctx, kit.TinyBatch(99, g.Rank(), 1, 4)...)
			require.NoError(t, err)
			kit.StateBits(t, ctx, m)
			_, err = m.Plan(kit.TinyBatch(0, 0, 4, 1)...)
			require.NoError(t, err)
		}
		for step := range 3 {
			aside()
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
			aside()
			update(ctx)
		}
		kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
	})
}

// TestForwardTwice checks that a forward without its backward leaves nothing behind.
func TestForwardTwice(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Poison: true})
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		want, live := kit.GradBits(t, ctx, m), m.Memory().Live
		m.ZeroGrad()
		for range 3 {
			_, err := m.Forward(ctx, kit.TinyBatch(5, g.Rank(), 3, 4)...)
			require.NoError(t, err)
			require.Greater(t, m.Memory().Live, live)
		}
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		kit.RequireSameBits(t, want, kit.GradBits(t, ctx, m))
		require.Equal(t, live, m.Memory().Live)
	})
}

// TestTwoModelsInOneGroup alternates the passes of two models and compares them with each on its
// own.
func TestTwoModelsInOneGroup(t *testing.T) {
	models := []fsdp.Model{kit.TinyGPT(1), kit.DropoutGPT()}
	var want []kit.Bits
	for _, m := range models {
		want = append(want, kit.Train(t, m, 2, 4, 1, fsdp.Config{WrapPolicy: kit.Blocks}))
	}
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		var both []*fsdp.Sharded
		var updates []func(context.Context)
		for _, model := range models {
			m := kit.Wrap(t, model, fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
			both, updates = append(both, m), append(updates, kit.Updater(t, m, 1))
		}
		for step := range 4 {
			for _, m := range both {
				_, err := m.Forward(ctx, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext)...)
				require.NoError(t, err)
			}
			for i, m := range both {
				require.NoError(t, m.Backward(ctx))
				updates[i](ctx)
			}
		}
		for i, m := range both {
			kit.RequireSameBits(t, want[i], kit.StateBits(t, ctx, m))
		}
	})
}

// TestRanksWithoutParameters trains over more ranks than there are parameters to own.
func TestRanksWithoutParameters(t *testing.T) {
	const world = 8
	owned := make([]int, world)
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Regression, fsdp.Config{Group: g, Precision: kit.Float64s})
		for _, p := range m.Params() {
			owned[g.Rank()] += p.Value.Len()
		}
		update := kit.Updater(t, m, 1)
		for range 3 {
			kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Vector(1, 2, 3, 4), kit.Vector(0, 0, 0, float64(g.Rank()))})
			update(ctx)
		}
	})
	require.Equal(t, []int{4, 0, 0, 0, 0, 0, 0, 0}, owned)
}

// TestInitAsksForWhatIsOwned records the intervals that Init is asked for: on every rank exactly
// those it owns, in pieces, and over all ranks every element once.
func TestInitAsksForWhatIsOwned(t *testing.T) {
	const rows, cols = 101, 1009 // more than a piece
	type interval struct{ first, n int }
	for world := 1; world <= 5; world++ {
		asked := make([][]interval, world)
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			record := func(_ fsdp.Stream, first int, dst []float64) {
				asked[g.Rank()] = append(asked[g.Rank()], interval{first, len(dst)})
			}
			big := &kit.Module{
				Parameters: []fsdp.Param{{Name: "bias", Shape: []int{7}}, {Name: "w", Shape: []int{rows, cols}, Init: record}},
				Graph:      func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) { return in, nil },
			}
			m := kit.Wrap(t, kit.Calls(kit.Call("big", big)), fsdp.Config{Group: g})
			require.Empty(t, asked[g.Rank()], "before the first use")
			require.NoError(t, m.Summon(ctx, nil, func(map[string]*tensor.Dense) error { return nil }))
			owned := 0
			for _, p := range m.Params() {
				if !strings.HasSuffix(p.Name, ".w") {
					continue
				}
				owned = p.Value.Len()
				for _, a := range asked[g.Rank()] {
					require.GreaterOrEqual(t, a.first, p.Offset)
					require.LessOrEqual(t, a.first+a.n, p.Offset+p.Value.Len())
				}
			}
			total := 0
			for _, a := range asked[g.Rank()] {
				require.Less(t, a.n, rows*cols, "a whole parameter at once")
				total += a.n
			}
			require.Equal(t, owned, total)
		})
		times := make([]int, rows*cols)
		for _, a := range slices.Concat(asked...) {
			for i := range a.n {
				times[a.first+i]++
			}
		}
		require.Equal(t, slices.Repeat([]int{1}, rows*cols), times)
	}
}

// TestInits checks the distributions.
func TestInits(t *testing.T) {
	const n = 20000
	values := func(init fsdp.Init) []float64 {
		m := kit.Wrap(t, kit.Calls(kit.Call("a", kit.Having(fsdp.Param{Name: "w", Shape: []int{n}, Init: init}))), fsdp.Config{Precision: kit.Float64s, Seed: 1})
		defer func() { require.NoError(t, m.Close()) }()
		require.True(t, math.IsNaN(kit.Numbers(t, m.Params()[0].Value)[0]) || init == nil, "not drawn yet")
		require.NoError(t, m.Summon(t.Context(), nil, func(map[string]*tensor.Dense) error { return nil }))
		return kit.Numbers(t, m.Params()[0].Value)
	}
	moments := func(x []float64) (mean, variance float64) {
		for _, v := range x {
			mean += v / n
		}
		for _, v := range x {
			variance += (v - mean) * (v - mean) / n
		}
		return mean, variance
	}
	mean, variance := moments(values(fsdp.Normal(0.5)))
	require.InDelta(t, 0, mean, 0.015)
	require.InDelta(t, 0.25, variance, 0.01)
	uniform := values(fsdp.Uniform(-1, 3))
	mean, variance = moments(uniform)
	require.InDelta(t, 1, mean, 0.04)
	require.InDelta(t, 16./12, variance, 0.04)
	require.GreaterOrEqual(t, slices.Min(uniform), -1.)
	require.Less(t, slices.Max(uniform), 3.)
	require.Equal(t, slices.Repeat([]float64{7}, n), values(fsdp.Constant(7)))
	require.Equal(t, make([]float64, n), values(nil))
	require.Equal(t, values(fsdp.Normal(1)), values(func(s fsdp.Stream, first int, dst []float64) {
		for i := range dst {
			dst[i] = s.Normal(first + i)
		}
	}))
	first := values(func(s fsdp.Stream, first int, dst []float64) {
		for i := range dst {
			dst[i] = float64(s.Uint64(first+i) >> 60)
		}
	})
	require.ElementsMatch(t, seen(first), []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
}

// TestInitialValuesAreDrawnLate: elements that Load, LoadStateDict or the program has replaced before the first use are
// never drawn, and the others are.
func TestInitialValuesAreDrawnLate(t *testing.T) {
	dir := t.TempDir()
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		asked := make(map[string]int) // of this rank, by parameter
		model := func(names ...string) fsdp.Model {
			var params []fsdp.Param
			for _, name := range names {
				params = append(params, fsdp.Param{Name: name, Shape: []int{100}, Init: func(_ fsdp.Stream, first int, dst []float64) {
					asked[name] += len(dst)
					for i := range dst {
						dst[i] = float64(first + i)
					}
				}})
			}
			return kit.Calls(kit.Call("a", kit.Having(params...)))
		}
		requireFrom := func(m *fsdp.Sharded, name string, first float64) {
			all, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			for i, v := range all["a."+name].Data().([]float64) {
				require.Equal(t, first+float64(i), v, name)
			}
		}
		cfg := fsdp.Config{Group: g, Precision: kit.Float64s}
		saved := kit.Wrap(t, model("x", "y"), cfg)
		require.NoError(t, saved.Save(ctx, dir, nil, nil))
		require.NoError(t, saved.Close())
		require.NotZero(t, asked["x"]+asked["y"])

		clear(asked)
		m := kit.Wrap(t, model("x", "y"), cfg)
		_, err := m.Load(ctx, dir, nil, nil)
		require.NoError(t, err)
		requireFrom(m, "x", 0)
		requireFrom(m, "y", 0)
		require.Empty(t, asked)
		require.NoError(t, m.Close())

		m = kit.Wrap(t, model("x", "y", "z"), cfg)
		_, err = m.Load(ctx, dir, nil, &fsdp.LoadOptions{AllowMissing: func(name string) bool { return name == "a.z" }})
		require.NoError(t, err)
		requireFrom(m, "z", 0)
		requireFrom(m, "y", 0)
		require.NotContains(t, asked, "x")
		require.NoError(t, m.Close())

		clear(asked)
		m = kit.Wrap(t, model("x", "y"), cfg)
		hundred := func(first float64) *tensor.Dense {
			x := make([]float64, 100)
			for i := range x {
				x[i] = first + float64(i)
			}
			return tensor.New(tensor.WithShape(100), tensor.WithBacking(x))
		}
		require.NoError(t, m.LoadStateDict(ctx, 0, map[string]*tensor.Dense{"a.x": hundred(5)}))
		for _, p := range m.Params() {
			if p.Name == "a.y" && p.Value.Len() > 0 {
				require.True(t, math.IsNaN(kit.Numbers(t, p.Value)[0]))
				require.NoError(t, p.Value.Slice(0, 1).Write(optim.Host{F64: []float64{200 + float64(p.Offset)}}))
			}
		}
		requireFrom(m, "x", 5)
		all, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		y := all["a.y"].Data().([]float64)
		written := 0
		for i, v := range y {
			if v == 200+float64(i) {
				written++
			} else {
				require.Equal(t, float64(i), v)
			}
		}
		require.Greater(t, written, 0)
		require.Less(t, written, 100)
		require.NotContains(t, asked, "x")
		require.NoError(t, m.Close())

		for _, cfg := range []fsdp.Config{{Group: g}, {Group: g, Precision: kit.Float64s}} {
			m = kit.Wrap(t, model("x"), cfg)
			for _, p := range m.Params() {
				if p.Value.Len() > 0 && g.Rank() == 1 { // it scales values that are not drawn yet
					require.NoError(t, rescale(p.Value, 2))
				}
			}
			_, err = m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.ErrorContains(t, err, "parameter a.x: a value was computed from an initial value that was not drawn yet")
			require.NoError(t, m.Close())
		}
	})
}

// rescale multiplies the elements of v.
func rescale(v optim.Vec, by float64) error {
	var x optim.Host
	if v.Float64() {
		x.F64 = make([]float64, v.Len())
	} else {
		x.F32 = make([]float32, v.Len())
	}
	if err := v.Read(x); err != nil {
		return err
	}
	for i := range x.F64 {
		x.F64[i] *= by
	}
	for i := range x.F32 {
		x.F32[i] *= float32(by)
	}
	return v.Write(x)
}

// seen returns the distinct elements of x.
func seen(x []float64) []float64 { return slices.Compact(slices.Sorted(slices.Values(x))) }

// TestPolicies checks which calls each policy puts together.
func TestPolicies(t *testing.T) {
	for name, want := range map[string][]string{
		"root only":          {"root"},
		"WrapTypes":          {"root", "blocks.0", "blocks.1"},
		"WrapEach":           {"wte", "wpe", "blocks.0", "blocks.1", "lnf", "head"},
		"WrapNames":          {"root", "wte", "wpe", "blocks.0", "blocks.1"},
		"WrapMinParams":      {"wte", "blocks.1"},
		"WrapMinParams, all": {"wte", "wpe", "blocks.0", "blocks.1", "lnf", "head"},
		"two of each":        {"even", "odd"},
		"WrapAny":            {"even", "odd"},
		"WrapAllBut":         {"root", "wte", "wpe", "lnf", "head"},
	} {
		plan, err := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{WrapPolicy: kit.WrapPolicies[name]}).Plan(kit.GoodBatch(0)...)
		require.NoError(t, err)
		var got []string
		for _, g := range plan.Groups {
			got = append(got, g.Name)
		}
		require.Equal(t, want, got, name)
	}
}
