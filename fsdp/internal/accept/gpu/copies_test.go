//go:build linux && cgo

package gpu_test

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	plans "github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// A copying is a training on one GPU that rounds parameters, in every pass or by keeping a copy.
type copying struct {
	*testing.T
	ctx context.Context
	cfg fsdp.Config
	m   *fsdp.Sharded
	opt optim.Optimizer
}

// copied are the configurations of a copying: without copies and with copies.
var copied = []fsdp.Config{
	{Unit: func(u *fsdp.UnitConfig) { u.Strategy = fsdp.FullShard }},
	{Strategy: fsdp.ShardGradOp},
}

// newCopying wraps a model.
func newCopying(t *testing.T, cfg fsdp.Config) *copying {
	c := &copying{T: t, ctx: t.Context(), cfg: cfg}
	c.m, c.opt = c.wrap()
	return c
}

func (c *copying) wrap() (*fsdp.Sharded, optim.Optimizer) {
	m := kit.Wrap(c, kit.TinyGPT(1), c.cfg)
	opt, err := averaging(m.Params())
	require.NoError(c, err)
	return m, opt
}

// averaging returns an AdamW that keeps averages.
func averaging(params []optim.Param) (optim.Optimizer, error) {
	opt, err := optim.AdamW{WeightDecay: 0.1}.New(params)
	if err == nil {
		err = optim.EMA(opt, 0.5)
	}
	return opt, err
}

// step makes a step with an optimizer, and returns the loss.
func (c *copying) step(step int, opt optim.Optimizer) float64 {
	loss := kit.ForwardBackward(c, c.ctx, c.m, kit.TinyBatch(step, 0, 2, kit.TinyContext))
	require.NoError(c, opt.Step(0.1))
	c.m.ZeroGrad()
	return loss
}

// with makes a step with another optimizer of all parameters.
func with(o interface {
	New([]optim.Param) (optim.Optimizer, error)
}) func(c *copying) {
	return func(c *copying) {
		other, err := o.New(c.m.Params())
		require.NoError(c, err)
		c.step(5, other)
	}
}

// half writes half of the values that it is given.
func half(params map[string]*tensor.Dense) error {
	for _, p := range params {
		data := p.Data().([]float32)
		for i := range data {
			data[i] /= 2
		}
	}
	return nil
}

// every calls f for each piece of the parameters that is not empty.
func (c *copying) every(f func(v optim.Vec) error) {
	for _, p := range c.m.Params() {
		if p.Value != nil && p.Value.Len() > 0 {
			require.NoError(c, f(p.Value), p.Name)
		}
	}
}

var all16 = []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: new(16)}}
var all8 = []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: new(8)}}

// writers are all functions of packages fsdp and optim that write parameters of a model, and all
// methods of a vector that do.
var writers = map[string]func(c *copying){
	"AdamW":          with(optim.AdamW{WeightDecay: 0.1}),
	"AdamW, 8 bits":  with(optim.AdamW{Rules: all8}),
	"AdamW, 16 bits": with(optim.AdamW{Rules: all16}),
	"Adam":           with(optim.Adam{}),
	"SGD":            with(optim.SGD{}),
	"SGD, momentum":  with(optim.SGD{Momentum: 0.9}),
	"SGD, 16 bits":   with(optim.SGD{Momentum: 0.9, Rules: all16}),
	"Muon": func(c *copying) {
		hidden, _ := kit.HiddenMatrices(c.m.Params())
		muon, err := optim.Muon{}.New(hidden)
		require.NoError(c, err)
		c.step(5, muon)
	},
	"Swap": func(c *copying) { require.NoError(c, optim.Swap(c.opt)) },
	"Swap twice": func(c *copying) {
		require.NoError(c, optim.Swap(c.opt))
		c.step(5, nothing{})
		require.NoError(c, optim.Swap(c.opt))
	},
	"UpdateEMA": func(c *copying) {
		other, _ := c.wrap()
		require.NoError(c, optim.UpdateEMA(c.m.Params(), other.Params(), 0.5))
		require.NoError(c, other.Close())
	},
	"UpdateEMA, copy": func(c *copying) {
		other, _ := c.wrap()
		require.NoError(c, optim.UpdateEMA(c.m.Params(), other.Params(), 0))
		require.NoError(c, other.Close())
	},
	"Summon": func(c *copying) { require.NoError(c, c.m.Summon(c.ctx, nil, half, fsdp.WriteBack(0))) },
	"LoadStateDict": func(c *copying) {
		values, err := c.m.StateDict(c.ctx, nil)
		require.NoError(c, err)
		require.NoError(c, half(values))
		require.NoError(c, c.m.LoadStateDict(c.ctx, 0, values))
	},
	"Load": func(c *copying) {
		dir := c.TempDir()
		require.NoError(c, c.m.Save(c.ctx, dir, c.opt, nil))
		c.step(5, c.opt)
		_, err := c.m.Load(c.ctx, dir, c.opt, nil)
		require.NoError(c, err)
	},
	"Import": func(c *copying) {
		path := filepath.Join(c.TempDir(), "model.safetensors")
		require.NoError(c, c.m.Export(c.ctx, path, nil))
		c.step(5, c.opt)
		require.NoError(c, c.m.Import(c.ctx, path, nil))
	},
	"MemoryCheckpoint": func(c *copying) {
		var last fsdp.MemoryCheckpoint
		require.NoError(c, last.Save(c.ctx, c.m, c.opt, nil))
		c.step(5, c.opt)
		_, err := last.Load(c.ctx, c.m, c.opt)
		require.NoError(c, err)
	},
	"CopyState": func(c *copying) {
		from, opt := c.m, c.opt
		c.m, c.opt = c.wrap()
		c.step(5, c.opt) // its copies are not new
		require.NoError(c, fsdp.CopyState(c.ctx, from, c.m, opt, c.opt))
		require.NoError(c, from.Close())
	},
	"Freeze": func(c *copying) {
		frozen := func(name string) bool { return strings.HasPrefix(name, "blocks.0.") }
		c.opt = kit.Refreeze(c, c.ctx, c.m, frozen, c.opt, averaging)
		c.step(5, c.opt)
		for _, p := range c.m.FrozenParams() {
			require.NoError(c, p.Value.Zero(), p.Name)
		}
	},
	"Zero": func(c *copying) { c.every(optim.Vec.Zero) },
	"Write": func(c *copying) {
		c.every(func(v optim.Vec) error { return v.Slice(0, 1).Write(optim.Host{F32: []float32{3}}) })
	},
	"Descend": func(c *copying) {
		c.every(func(v optim.Vec) error { return v.(vec.MuonVec).Descend(v, 0.5, 0.1) })
	},
	"AverageBuffers": func(c *copying) { require.NoError(c, c.m.AverageBuffers(c.ctx)) },
}

// nothing is an optimizer that makes no update.
type nothing struct{ optim.Optimizer }

func (nothing) Step(float64) error { return nil }

// TestGPUCopies: a unit that is kept in passes, and that a rank has all of, has a copy of its
// parameters in bfloat16, and no pass rounds them. After all that writes parameters a training has
// the same bits as one that rounds them in every pass.
func TestGPUCopies(t *testing.T) {
	cuda := kit.CleanGPU(t)
	dev, err := gpu.Open(0)
	require.NoError(t, err)
	var launches [2]int
	gathers := 0 // of a pass without copies
	for _, name := range slices.Sorted(maps.Keys(writers)) {
		var losses [2][]float64
		var states [2]kit.Bits
		for i, cfg := range copied {
			cfg.Device, cfg.WrapPolicy, cfg.Precision = dev, kit.Blocks, fsdp.BF16()
			c := newCopying(t, cfg)
			add := func(loss float64) { losses[i] = append(losses[i], loss) }
			plan, err := c.m.Plan(kit.TinyBatch(0, 0, 2, kit.TinyContext)...)
			require.NoError(t, err)
			isGather := func(op plans.Op) bool { return op.Kind == plans.Gather }
			if ops := plan.Pass.Ops; i == 0 {
				gathers = len(ops) - len(slices.DeleteFunc(slices.Clone(ops), isGather))
			} else {
				require.False(t, slices.ContainsFunc(ops, isGather))
			}
			add(c.step(0, c.opt))
			before := cuda.Calls("cuLaunchKernel")
			add(c.step(1, c.opt))
			launches[i] = cuda.Calls("cuLaunchKernel") - before
			writers[name](c)
			out, err := c.m.Eval(c.ctx, kit.TinyBatch(2, 0, 2, kit.TinyContext)...)
			require.NoError(t, err)
			add(float64(out[0].(*tensor.Dense).Data().([]float32)[0]))
			add(c.step(3, nothing{}))
			states[i] = kit.StateBits(t, c.ctx, c.m)
			require.NoError(t, c.m.Close())
		}
		require.Equal(t, losses[0], losses[1], name)
		kit.RequireSameBits(t, states[0], states[1], name)
	}
	require.Equal(t, gathers, launches[0]-launches[1])
	require.Greater(t, gathers, 1)
	require.NoError(t, dev.Close())
}

// TestGPUCopiesPlan: plans count copies as shards, and a pass that keeps parameters needs no memory
// for them. Several ranks that each have all parameters have copies, too. A shard in bfloat16 needs
// none.
func TestGPUCopiesPlan(t *testing.T) {
	cuda := kit.CleanGPU(t)
	for _, v := range []struct {
		ranks  int
		cfg    fsdp.Config
		master fsdp.DType
		copies bool
	}{
		{1, copied[0], fsdp.Float32, false}, {1, copied[1], fsdp.Float32, true}, {1, fsdp.Config{Strategy: fsdp.NoShard}, fsdp.Float32, true},
		{2, copied[1], fsdp.Float32, false}, {2, fsdp.Config{Strategy: fsdp.NoShard}, fsdp.Float32, true},
		{1, fsdp.Config{Strategy: fsdp.ShardGradOp, Offload: fsdp.Offload{Pinned: true}}, fsdp.Float32, true},
		{1, copied[1], fsdp.BFloat16, false}, {2, fsdp.Config{Strategy: fsdp.NoShard}, fsdp.BFloat16, false},
	} {
		onDevices(t, v.ranks, func(ctx context.Context, g comm.Group, dev *gpu.Device) {
			cfg := v.cfg
			cfg.Group, cfg.Device, cfg.WrapPolicy, cfg.Precision = g, dev, kit.Blocks, fsdp.BF16()
			cfg.Precision.Master = v.master
			batch := kit.TinyBatch(0, g.Rank(), 2, kit.TinyContext)
			dry, err := fsdp.Planner{Model: kit.TinyGPT(2), Config: cfg, Batch: []fsdp.Shape{fsdp.Ints(2, kit.TinyContext), fsdp.Ints(2, kit.TinyContext)}}.Plan()
			require.NoError(t, err)
			m := kit.Wrap(t, kit.TinyGPT(2), cfg)
			plan, err := m.Plan(batch...)
			require.NoError(t, err)
			require.Equal(t, dry.CopyBytes, plan.CopyBytes)
			require.Equal(t, dry.ShardBytes, plan.ShardBytes)
			require.Equal(t, v.copies, plan.CopyBytes > 0)
			require.Equal(t, v.copies, strings.Contains(plan.String(), "of these a copy of parameters in bfloat16"))
			kit.ForwardBackward(t, ctx, m, batch)
			require.Equal(t, plan.Peak(), m.Memory().Peak)
			require.NoError(t, m.Close())
		})
	}
	require.Zero(t, cuda.Live("bytes"))
}

// TestGPUPlanOfBiases: the product for the gradient of a weight sums the gradient of its bias, so a
// plan has no operation for the bias, unless the weight is frozen.
func TestGPUPlanOfBiases(t *testing.T) {
	for _, v := range []struct {
		frozen func(string) bool
		sums   bool
	}{{nil, false}, {func(name string) bool { return strings.HasSuffix(name, "fc.weight") }, true}} {
		p := fsdp.Planner{
			Model: kit.TinyGPT(1), Config: fsdp.Config{Device: new(gpu.Device), Precision: fsdp.BF16(), Frozen: v.frozen},
			Batch: []fsdp.Shape{fsdp.Ints(2, kit.TinyContext), fsdp.Ints(2, kit.TinyContext)},
		}
		plan, err := p.Plan()
		require.NoError(t, err)
		var sums, products int
		for _, u := range plan.Pass.Units {
			for _, w := range u.Backward {
				switch w.Op {
				case "linear db":
					sums += w.Count
				case "linear dw":
					products += w.Count
				}
			}
		}
		require.Positive(t, products)
		require.Equal(t, v.sums, sums > 0)
	}
}
