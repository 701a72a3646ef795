package parity_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// optimizers are those whose state must follow.
var optimizers = map[string]func([]optim.Param) (optim.Optimizer, error){
	"momentum": optim.SGD{Momentum: 0.9, WeightDecay: 0.01}.New,
	"AdamW":    optim.AdamW{WeightDecay: 0.1}.New,
}

// someFrozen are choices of what to freeze in a tiny GPT of two blocks.
var someFrozen = []func(string) bool{
	nil,
	func(name string) bool { return strings.HasPrefix(name, "blocks.0") },
	func(name string) bool { return !strings.HasPrefix(name, "head") },
	func(name string) bool { return strings.HasSuffix(name, "bias") },
	func(name string) bool { return len(withBias(name))%3 == 0 },
}

// withBias returns the name of a parameter, or of the weight for its bias where one product
// computes the gradients of both: there a bias is frozen if its weight is.
func withBias(name string) string {
	if layer, bias := strings.CutSuffix(name, ".bias"); bias && !kit.Meets(kit.BiasAlone) {
		return layer + ".weight"
	}
	return name
}

// phases is a training whose frozen set changes: one choice for each step.
type phases []int

// absentWhere hides from an optimizer's eyes what is frozen in a phase: the reference never
// freezes, but those parameters have no gradient.
func absentWhere(list []optim.Param, frozen *func(string) bool) []optim.Param {
	for i := range list {
		name := list[i].Name
		list[i].Absent = func() bool { return *frozen != nil && (*frozen)(name) }
	}
	return list
}

// reference trains on world ranks without ever freezing.
func (p phases) reference(t require.TestingT, world int, make func([]optim.Param) (optim.Optimizer, error)) (state kit.Bits) {
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g})
		var frozen func(string) bool
		opts := []optim.Optimizer{}
		list := absentWhere(m.Params(), &frozen)
		opt, err := make(list)
		require.NoError(t, err)
		opts = append(opts, opt)
		for step, phase := range p {
			frozen = someFrozen[phase]
			if step > 0 && phase != p[step-1] { // state of what is frozen is lost
				old := opts[len(opts)-1]
				opt, err := make(list)
				require.NoError(t, err)
				kept := slices.DeleteFunc(old.State(), func(e optim.Entry) bool { return frozen != nil && frozen(e.Param) })
				require.NoError(t, opt.Adopt(old.Steps(), kept))
				opts = append(opts, opt)
			}
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, 3))
			require.NoError(t, opts[len(opts)-1].Step(1e-2))
			m.ZeroGrad()
		}
		if got := kit.StateBits(t, ctx, m); g.Rank() == 0 {
			state = got
		}
	})
	return state
}

// train trains with Freeze between the steps.
func (p phases) train(t require.TestingT, world int, make func([]optim.Param) (optim.Optimizer, error), cfg fsdp.Config) (state kit.Bits) {
	kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group, cfg.Frozen = g, someFrozen[p[0]]
		m := kit.Wrap(t, kit.TinyGPT(2), cfg)
		opt, err := make(m.Params())
		require.NoError(t, err)
		for step, phase := range p {
			if step > 0 && phase != p[step-1] {
				before := kit.StateBits(t, ctx, m)
				opt = kit.Refreeze(t, ctx, m, someFrozen[phase], opt, make)
				kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m), "Freeze changes no value")
			}
			batch := kit.TinyBatch(step, g.Rank(), 2, 3)
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			require.Equal(t, plan.ShardBytes+plan.StateBytes, m.Memory().Live)
			m.ResetPeak()
			kit.ForwardBackward(t, ctx, m, batch)
			require.Equal(t, plan.Peak(), m.Memory().Peak)
			for name := range kit.GradsOf(t, ctx, m) {
				require.False(t, someFrozen[phase] != nil && someFrozen[phase](name), name)
			}
			require.NoError(t, opt.Step(1e-2))
			m.ZeroGrad()
		}
		if got := kit.StateBits(t, ctx, m); g.Rank() == 0 {
			state = got
		}
		require.NoError(t, m.Close())
	})
	return state
}

// TestFreezing trains in phases and compares with a training that never freezes, where what should
// be frozen has no gradient: the values of all parameters, which depend on the state and the step
// counts of all, must have the same bits under every strategy and number of ranks.
func TestFreezing(t *testing.T) {
	steps := phases{1, 1, 2, 2, 0, 0, 3, 4, 4, 0}
	for name, make := range optimizers {
		for _, world := range []int{1, 2, 3, 4} {
			want := steps.reference(t, world, make)
			kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
				cfg.WrapPolicy = kit.Blocks
				kit.RequireSameBits(t, want, steps.train(t, world, make, cfg), name)
			})
		}
	}
}

// TestFreezingAtRandom draws phases and knobs.
func TestFreezingAtRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.IntRange(1, 4).Draw(t, "world")
		steps := phases(rapid.SliceOfN(rapid.IntRange(0, len(someFrozen)-1), 1, 5).Draw(t, "phases"))
		make := optimizers[rapid.SampledFrom([]string{"momentum", "AdamW"}).Draw(t, "optimizer")]
		k := kit.DrawKnobs(t, world)
		cfg := k.Config()
		cfg.Precision, cfg.Seed = fsdp.Precision{}, 0
		if rapid.Bool().Draw(t, "ignore") {
			cfg.Ignored = func(name string) bool { return len(name)%2 == 0 }
		}
		kit.RequireSameBits(t, steps.reference(t, world, make), steps.train(t, world, make, cfg))
	})
}

// TestFreezeIsAFreshWrap compares memory, plan and schedule after Freeze with those of a model that
// was wrapped that way.
func TestFreezeIsAFreshWrap(t *testing.T) {
	for _, world := range []int{1, 3} {
		for i, frozen := range someFrozen {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Frozen: frozen}
				fresh := kit.Wrap(t, kit.TinyGPT(2), cfg)
				cfg.Frozen = someFrozen[(i+1)%len(someFrozen)]
				m := kit.Wrap(t, kit.TinyGPT(2), cfg)
				opt, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
				require.NoError(t, opt.Step(0))
				_, err = m.Freeze(ctx, frozen, opt)
				require.NoError(t, err)
				want, err := fresh.Plan(kit.GoodBatch(0)...)
				require.NoError(t, err)
				got, err := m.Plan(kit.GoodBatch(0)...)
				require.NoError(t, err)
				require.Equal(t, want, got)
				require.Equal(t, fresh.Memory().Live, m.Memory().Live)
				require.Empty(t, kit.GradsOf(t, ctx, m), "gradients are dropped")
				var names, wantNames []string
				for _, p := range m.Params() {
					require.True(t, p.Absent())
					names = append(names, p.Name)
				}
				for _, p := range fresh.Params() {
					wantNames = append(wantNames, p.Name)
				}
				require.Equal(t, wantNames, names)
			})
		}
	}
}

// TestFreezeErrors checks that errors reach every rank and change nothing, so that training goes on
// to the same bits.
func TestFreezeErrors(t *testing.T) {
	cfg := fsdp.Config{WrapPolicy: kit.Blocks}
	want := kit.Train(t, kit.TinyGPT(2), 3, 2, 1, cfg)
	one := func(name string) bool { return name == "lnf.bias" }
	for name, c := range map[string]struct {
		frozen func(rank int) func(string) bool
		want   []string
	}{
		"ranks disagree": {func(r int) func(string) bool {
			if r == 2 {
				return one
			}
			return nil
		}, []string{"ranks disagree about the frozen parameters", "parameter lnf.bias", "frozen"}},
		"panic": {func(r int) func(string) bool {
			return func(name string) bool {
				if r == 1 && name == "wpe.weight" {
					panic("cold")
				}
				return false
			}
		}, []string{"parameter wpe.weight", "cold"}},
	} {
		t.Run(name, func(t *testing.T) {
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group = g
				m := kit.Wrap(t, kit.TinyGPT(2), cfg)
				opt, err := optim.AdamW{WeightDecay: 0.1}.New(m.Params())
				require.NoError(t, err)
				live := m.Memory().Live
				for step := range 2 {
					_, err := m.Freeze(ctx, c.frozen(g.Rank()), opt)
					for _, w := range c.want {
						require.ErrorContains(t, err, w)
					}
					require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: Freeze", g.Rank()))
					kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
					_, err = m.ClipGradNorm(ctx, 1)
					require.NoError(t, err)
					require.NoError(t, opt.Step(1e-2))
					m.ZeroGrad()
					require.Equal(t, live, m.Memory().Live)
				}
				kit.RequireSameBits(t, want, kit.StateBits(t, ctx, m))
			})
		})
	}
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{})
	require.NoError(t, m.Close())
	_, err := m.Freeze(t.Context(), nil, nil)
	require.ErrorContains(t, err, "the model is closed")
}

// TestFreezeDiscardsTheForward checks that the last forward has no backward after Freeze.
func TestFreezeDiscardsTheForward(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Poison: true})
		_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
		require.NoError(t, err)
		_, err = m.Freeze(ctx, someFrozen[1], nil)
		require.NoError(t, err)
		require.ErrorContains(t, m.Backward(ctx), "Backward has no pending Forward")
		kit.RequireIdle(t, ctx, m, kit.GoodBatch(g.Rank()))
	})
}

// TestEverythingFrozen checks that a model with nothing to train has a loss, and a Backward that
// does nothing.
func TestEverythingFrozen(t *testing.T) {
	all := func(string) bool { return true }
	for _, world := range []int{1, 2, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy = g, kit.Blocks
				trained := kit.Wrap(t, kit.TinyGPT(2), cfg)
				want := kit.ForwardBackward(t, ctx, trained, kit.GoodBatch(g.Rank()))
				cfg.Frozen = all
				m := kit.Wrap(t, kit.TinyGPT(2), cfg)
				for range 2 {
					plan, err := m.Plan(kit.GoodBatch(0)...)
					require.NoError(t, err)
					require.Zero(t, plan.Reduces+plan.AllReduces)
					m.ResetPeak()
					require.Equal(t, want, kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank())))
					require.Equal(t, plan.Peak(), m.Memory().Peak)
					require.NoError(t, m.NoSync(func() error { kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank())); return nil }))
					require.NoError(t, m.SyncGrads(ctx))
					require.Empty(t, m.Params())
					require.Empty(t, kit.GradsOf(t, ctx, m))
					norm, err := m.ClipGradNorm(ctx, 1)
					require.NoError(t, err)
					require.Zero(t, norm)
					kit.RequireIdle(t, ctx, m, kit.GoodBatch(g.Rank()))
				}
				_, err := m.Freeze(ctx, nil, nil)
				require.NoError(t, err)
				kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
				kit.RequireSameBits(t, kit.GradBits(t, ctx, trained), kit.GradBits(t, ctx, m))
				_, err = m.Freeze(ctx, all, nil)
				require.NoError(t, err)
				kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
				_, err = m.ClipGradNorm(ctx, math.Inf(1))
				require.NoError(t, err)
			})
		})
	}
}

// prefixed is an optimizer that calls what it keeps by another name.
type prefixed struct {
	optim.Optimizer
	prefix string
}

func (o prefixed) State() []optim.Entry {
	list := o.Optimizer.State()
	for i := range list {
		list[i].Name = o.prefix + list[i].Name
	}
	return list
}

// TestFreezeKeepsNames: state goes through Freeze whatever its name is. A name that did not fit on
// a line was lost in silence.
func TestFreezeKeepsNames(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
		opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
		require.NoError(t, err)
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		require.NoError(t, opt.Step(0.1))
		m.ZeroGrad()
		want := make(map[string]int)
		for _, e := range opt.State() {
			want[e.Param] += e.Data.Len()
		}
		entries, err := m.Freeze(ctx, nil, prefixed{opt, "fast\n3 "})
		require.NoError(t, err)
		got := make(map[string]int)
		for _, e := range entries {
			require.Equal(t, "fast\n3 momentum_buffer", e.Name)
			require.Equal(t, 1, e.Steps)
			got[e.Param] += e.Data.Len()
		}
		require.NotEmpty(t, want)
		require.Equal(t, want, got)
	})
}

// TestFreezeComparesState: ranks whose optimizers have made other numbers of updates hear of it
// before anything moves.
func TestFreezeComparesState(t *testing.T) {
	for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, opt.Adopt(g.Rank(), nil))
		before := kit.StateBits(t, ctx, m)
		_, failed := m.Freeze(ctx, nil, opt)
		kit.RequireSameBits(t, before, kit.StateBits(t, ctx, m))
		kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		require.NoError(t, opt.Step(0.1), "it is not a former one")
		return failed
	}) {
		require.ErrorContains(t, err, "Freeze: the optimizer has made 0 steps on rank 0, but 1 steps on rank 1")
	}
}
