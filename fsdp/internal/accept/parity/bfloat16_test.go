package parity_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// TestWide checks what computes in bfloat16 and what does not: a call sees rounded parameters, but
// for those that are Full, and those of the calls that Wide selects. A loss is not rounded.
func TestWide(t *testing.T) {
	for _, world := range []int{1, 3, 4} {
		kit.EveryStrategy(t, world, func(t *testing.T, cfg fsdp.Config) {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group, cfg.WrapPolicy = g, fsdp.WrapEach()
				cfg.Precision = fsdp.Precision{Compute: fsdp.BFloat16, Wide: fsdp.WrapNames(regexp.MustCompile(`^b$`))}
				m := kit.Wrap(t, bares, cfg)
				masters, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
				require.NoError(t, err)
				for range 2 {
					out, err := m.Eval(ctx, kit.Ones(bareLen))
					require.NoError(t, err)
					for i, name := range []string{"a", "exact", "b"} {
						for j, w := range floats32(masters[name+".w"]) {
							if name == "a" {
								w = kit.Rounded(w, fsdp.BFloat16)
							}
							require.Equal(t, w, floats32(out[1+i])[j], "%s[%d]", name, j)
						}
					}
					loss := kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Ones(bareLen)})
					require.Equal(t, float32(loss), floats32(out[0])[0], "training sees the same")
					require.NotEqual(t, kit.Rounded(float32(loss), fsdp.BFloat16), float32(loss))
					kit.RequireSameBits(t, kit.BitsOf(masters), kit.StateBits(t, ctx, m), "masters are not rounded")
					m.ZeroGrad()
				}
			})
		})
	}
}

// TestWideAgain checks that a module computes alike in all its calls.
func TestWideAgain(t *testing.T) {
	again := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		first := t.Call("a", &bare{n: bareLen}, in[0])
		second := t.Again("a", in[0])
		return []fsdp.Ref{first, first.At(1), second.At(1)}, nil
	})
	for _, name := range []string{"^a$", "^a#2$"} {
		m := kit.Wrap(t, again, fsdp.Config{Precision: fsdp.Precision{Compute: fsdp.BFloat16, Wide: fsdp.WrapNames(regexp.MustCompile(name))}})
		out, err := m.Eval(t.Context(), kit.Ones(bareLen))
		require.NoError(t, err)
		masters, err := m.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		for _, got := range out[1:] {
			require.Equal(t, floats32(masters["a.w"]), floats32(got), name)
		}
	}
}

// bigger is a GPT large enough for what is rounded up not to count.
var bigger = &nn.GPT{Vocab: 256, Context: 32, Layers: 2, Dim: 64, Heads: 2}

// TestComputingInHalfTakesHalf compares plans: gathered parameters and activations take half of the
// bytes of float32, shards and gradients the same bytes, and gathers are half of the traffic.
func TestComputingInHalfTakesHalf(t *testing.T) {
	plan := func(p fsdp.Precision, rows int) *fsdp.Plan {
		p.Full = func(fsdp.CallInfo, fsdp.Param) bool { return false }
		var plan *fsdp.Plan
		kit.OnRanks(t, 2, func(_ context.Context, g comm.Group) {
			m := kit.Wrap(t, bigger, fsdp.Config{Group: g, Precision: p, WrapPolicy: kit.Blocks})
			got, err := m.Plan(kit.Tokens(1, 256, rows, 32), kit.Tokens(2, 256, rows, 32))
			require.NoError(t, err)
			if g.Rank() == 0 {
				plan = got
			}
		})
		return plan
	}
	wide, half := plan(fsdp.Precision{}, 1), plan(fsdp.BF16(), 1)
	require.Equal(t, wide.ShardBytes, half.ShardBytes)
	require.Equal(t, wide.Traffic-half.Traffic, plan(fsdp.Precision{}, 1).Traffic-plan(fsdp.Precision{Gather: fsdp.BFloat16}, 1).Traffic)
	for i, g := range half.Groups {
		require.Equal(t, wide.Groups[i].Bytes, 2*g.Bytes, g.Name)
	}
	wide, half = plan(fsdp.Precision{}, 65), plan(fsdp.BF16(), 65)
	moreWide, moreHalf := plan(fsdp.Precision{}, 129), plan(fsdp.BF16(), 129)
	ratio := float64(moreHalf.PassBytes-half.PassBytes) / float64(moreWide.PassBytes-wide.PassBytes)
	require.Less(t, ratio, 0.55, "what grows with the batch")
	masters := plan(masters16, 65)
	require.Equal(t, half.ShardBytes, 2*masters.ShardBytes)
	require.Equal(t, half.Traffic, masters.Traffic)
	require.Equal(t, half.PassBytes, masters.PassBytes)
}

// TestCheckpointsHoldMasters saves what was trained in bfloat16, loads it to train in float32, and
// back: parameters and the state of the optimizer have the same bits. Parameters in 16 bits are
// rounded to the nearest when they load.
func TestCheckpointsHoldMasters(t *testing.T) {
	for _, types := range [][2]fsdp.Precision{
		{fsdp.BF16(), {}}, {{}, fsdp.BF16()}, {masters16, {}}, {masters16, masters16}, {fsdp.BF16(), masters16},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "whole.safetensors")
		var params kit.Bits
		var state *optim.FullState
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Precision: types[0]})
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			for step := range 3 {
				kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
				require.NoError(t, opt.Step(1e-2))
				m.ZeroGrad()
			}
			require.NoError(t, m.Save(ctx, filepath.Join(dir, "saved"), opt, nil))
			require.NoError(t, m.Export(ctx, file, &fsdp.ExportOptions{Optimizer: opt}))
			whole, err := m.OptimStateDict(ctx, opt, nil)
			require.NoError(t, err)
			if b := kit.StateBits(t, ctx, m); g.Rank() == 0 {
				params, state = b, whole
				if types[1].Master == fsdp.BFloat16 {
					params = rounded16(params)
				}
			}
		})
		for _, from := range []string{"Load", "Import"} {
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, Strategy: fsdp.ShardGradOp, WrapPolicy: fsdp.WrapEach(), Precision: types[1], Seed: 9})
				opt, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				if from == "Load" {
					_, err = m.Load(ctx, filepath.Join(dir, "saved"), opt, nil)
				} else {
					err = m.Import(ctx, file, &fsdp.ImportOptions{Optimizer: opt})
				}
				require.NoError(t, err)
				got, err := m.OptimStateDict(ctx, opt, nil)
				require.NoError(t, err)
				if b := kit.StateBits(t, ctx, m); g.Rank() == 0 {
					kit.RequireSameBits(t, params, b, from)
					require.Equal(t, state.Params, got.Params, from)
				}
				before, err := m.Eval(ctx, kit.TinyBatch(0, 0, 2, kit.TinyContext)...)
				require.NoError(t, err)
				require.Positive(t, kit.Elements(before[0])[0])
			})
		}
	}
}

// TestMastersOfAnotherModel: an optimizer of another model is refused, also if values have 16 bits.
func TestMastersOfAnotherModel(t *testing.T) {
	kit.Needs(t, kit.HostMemory)
	a, b := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Precision: masters16}), kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Precision: masters16})
	opt, err := optim.SGD{}.New(b.Params())
	require.NoError(t, err)
	require.ErrorContains(t, a.Save(t.Context(), t.TempDir(), opt, nil), "in other memory, such as another Sharded of the model")
	require.NoError(t, b.Save(t.Context(), t.TempDir(), opt, nil))
}

// rounded16 rounds the parameters that masters16 keeps in 16 bits.
func rounded16(bits kit.Bits) kit.Bits {
	for name, list := range bits {
		if strings.Contains(name, ".ln") || strings.HasPrefix(name, "ln") {
			continue
		}
		for i, b := range list {
			list[i] = math.Float64bits(float64(kit.Rounded(float32(math.Float64frombits(b)), fsdp.BFloat16)))
		}
	}
	return bits
}

// TestRanksComputeAlike trains on the same rows with 1 to 4 ranks. What a rank computes is rounded
// to 8 bits, and the gradient of a mean depends on the number of rows: after six steps, losses
// agree to a part in 256.
func TestRanksComputeAlike(t *testing.T) {
	var want []float64
	for world := 1; world <= 4; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.NewResharder(t, g, 0, fsdp.BFloat16, 5, nil)
			losses := m.Train(t, ctx, 0, 6)
			if g.Rank() > 0 {
				return
			}
			if want == nil {
				want = losses
			}
			for i := range losses {
				require.InEpsilon(t, want[i], losses[i], 0x1p-8, "%d ranks, step %d", world, i)
			}
			require.Less(t, losses[5], losses[0])
		})
	}
}

// lowRank is a model of linear layers with adapters of low rank.
var lowRank = kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	x := in[0]
	for i := range 3 {
		x = t.Call(fmt.Sprint("l", i), &nn.Linear{In: kit.ShapeDim, Out: kit.ShapeDim, Std: 0.4, LoRA: nn.LoRA{Rank: 2}}, x)
	}
	return kit.Regress(t, in, x), nil
})

// TestAdaptersInHalf trains adapters beside frozen parameters. These keep their bits, and adapters
// have the same bits under every strategy.
func TestAdaptersInHalf(t *testing.T) {
	base := func(name string) bool { return !strings.Contains(name, "lora") }
	var want kit.Bits
	kit.EveryStrategy(t, 4, func(t *testing.T, cfg fsdp.Config) {
		cfg.WrapPolicy, cfg.Precision, cfg.Frozen = fsdp.WrapEach(), fsdp.BF16(), base
		var got kit.Bits
		kit.OnRanks(t, 4, func(ctx context.Context, g comm.Group) {
			cfg := cfg
			cfg.Group = g
			m := kit.Wrap(t, lowRank, cfg)
			before, update := kit.StateBits(t, ctx, m), kit.Updater(t, m, 1)
			for i := range 3 {
				batch := []fsdp.Tensor{kit.Floats(10*i+g.Rank(), 3, kit.ShapeDim), kit.Floats(10*i+5+g.Rank(), 3, kit.ShapeDim)}
				kit.ForwardBackward(t, ctx, m, kit.InType(batch, fsdp.BFloat16))
				update(ctx)
			}
			after := kit.StateBits(t, ctx, m)
			for name := range before {
				require.Equal(t, base(name), fmt.Sprint(before[name]) == fmt.Sprint(after[name]), name)
			}
			if g.Rank() == 0 {
				got = after
			}
		})
		if want == nil {
			want = got
		}
		kit.RequireSameBits(t, want, got)
	})
}

// TestLossIsFinite guards the others: NaN would be equal to itself as bits.
func TestLossIsFinite(t *testing.T) {
	m := kit.Wrap(t, bigger, fsdp.Config{Precision: fsdp.BF16(), WrapPolicy: kit.Blocks, Poison: true})
	update, losses := kit.Updater(t, m, 1), []float64(nil)
	for range 4 {
		losses = append(losses, kit.ForwardBackward(t, t.Context(), m, []fsdp.Tensor{kit.Tokens(1, 256, 4, 32), kit.Tokens(2, 256, 4, 32)}))
		update(t.Context())
	}
	require.InDelta(t, math.Log(256), losses[0], 0.2)
	require.Less(t, losses[3], losses[0])
}
