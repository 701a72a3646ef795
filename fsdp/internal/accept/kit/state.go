package kit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/optim"
)

// StateOfAll returns the whole state of an optimizer by name, on every rank.
func StateOfAll(t require.TestingT, ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) Bits {
	full, err := m.OptimStateDict(ctx, opt, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	all := make(Bits)
	for _, e := range full.Entries() {
		for _, x := range e.Data.(optim.Host).F32 {
			all[e.Name+":"+e.Param] = append(all[e.Name+":"+e.Param], uint64(math.Float32bits(x)))
		}
	}
	return all
}

// Refuse makes a training step in which the gradients of some ranks become x, so that their
// optimizers refuse it, and returns the error of Step.
func (f *Filler) Refuse(ctx context.Context, rank int, x float64, ranks ...int) error {
	ForwardBackward(f.t, ctx, f.Sharded, ShapeBatch(rank))
	if slices.Contains(ranks, rank) {
		for _, p := range f.Params() {
			Edit(f.t, p.Grad, func(int, float64) float64 { return x })
		}
	}
	return f.Opt.Step(0.01)
}

// expertRows is a prime, so that experts are sharded unevenly.
const expertRows = 23

// StateModel has parameters of every sort: prime shapes, a scalar, a tied weight, experts,
// parameters so small that most ranks own no part of them, and a buffer. It never computes with
// them.
var StateModel = Calls(
	Call("a", Having(Initial(Weight("w", 7, 3)), Initial(Weight("b", 7)))),
	Call("b", Having(Initial(Weight("w", 5, 11)), Initial(Weight("s")))),
	Call("bn", Having(fsdp.Param{Name: "mean", Shape: []int{3}, Buffer: true, Init: fsdp.Normal(1)})),
	Call("c", Having(Initial(Weight("own", 2, 3)), fsdp.Param{Name: "w", Shape: []int{7, 3}, Tied: "a.w"})),
	Call("experts", Having(Initial(Weight("up", expertRows, 5)))),
	Call("d", Having(Initial(Weight("one", 1)))),
)

// StateOptimizers keep zero, one or two entries for a parameter, for some parameters or all.
var StateOptimizers = map[string]func([]optim.Param) (optim.Optimizer, error){
	"SGD":      optim.SGD{}.New,
	"momentum": optim.SGD{Momentum: 0.9, WeightDecay: 0.01}.New,
	"AdamW": optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{
		{Match: optim.MatchName(regexp.MustCompile(`^experts`)), LRScale: new(0.25)}, optim.NoDecay(),
	}}.New,
	"AdamW and momentum": func(params []optim.Param) (optim.Optimizer, error) {
		var matrices, rest []optim.Param
		for _, p := range params {
			if len(p.Shape) == 2 {
				matrices = append(matrices, p)
			} else {
				rest = append(rest, p)
			}
		}
		first, err := optim.AdamW{}.New(matrices)
		if err != nil {
			return nil, err
		}
		second, err := optim.SGD{Momentum: 0.5}.New(rest)
		if err != nil {
			return nil, err
		}
		return optim.Compose(first, second)
	},
}

// FiveUpdates makes an optimizer of the pieces and five updates. The gradients are integers that
// depend only on the step, the parameter's name in a full state and the element. One parameter
// never has a gradient, and another only in every second step.
func FiveUpdates(t require.TestingT, pieces []optim.Param, name func(string) string, make func([]optim.Param) (optim.Optimizer, error)) optim.Optimizer {
	step := 0
	for i := range pieces {
		p := pieces[i].Name
		pieces[i].Absent = func() bool { return p == "d.one" || strings.HasPrefix(p, "b.w") && step%2 == 1 }
	}
	opt, err := make(pieces)
	require.NoError(t, err)
	for ; step < 5; step++ {
		for _, p := range pieces {
			Edit(t, p.Grad, func(i int, _ float64) float64 {
				return float64(U24(p.Offset+i, step+100*len(name(p.Name))+int(name(p.Name)[len(name(p.Name))-1]))%17 - 8)
			})
		}
		require.NoError(t, opt.Step(0.01))
	}
	return opt
}

// RequireSameState compares two states of an optimizer element by element, to the bit.
func RequireSameState(t require.TestingT, want, got *optim.FullState) {
	require.NotNil(t, got)
	require.Equal(t, want.Steps, got.Steps)
	require.Equal(t, slices.Sorted(maps.Keys(want.Params)), slices.Sorted(maps.Keys(got.Params)))
	for name, w := range want.Params {
		g := got.Params[name]
		require.Equal(t, w.Steps, g.Steps, name)
		require.Equal(t, w.Entries, g.Entries, name) // it has no NaN
	}
}

// StateLayouts are ways to lay out a model over ranks.
func StateLayouts(world int) map[string]func(t require.TestingT, ctx context.Context, g comm.Group) fsdp.Config {
	layouts := map[string]func(t require.TestingT, ctx context.Context, g comm.Group) fsdp.Config{
		"one unit": func(_ require.TestingT, _ context.Context, g comm.Group) fsdp.Config { return fsdp.Config{Group: g} },
		"ignored": func(_ require.TestingT, _ context.Context, g comm.Group) fsdp.Config {
			return fsdp.Config{Group: g, Ignored: func(name string) bool { return name == "a.w" }}
		},
	}
	for strategy := fsdp.FullShard; strategy <= LastStrategy; strategy++ {
		hybrid := strategy >= fsdp.HybridShard
		if hybrid && world%2 > 0 {
			continue
		}
		layouts[strategy.String()] = func(_ require.TestingT, _ context.Context, g comm.Group) fsdp.Config {
			cfg := fsdp.Config{Group: g, Strategy: strategy, WrapPolicy: fsdp.WrapEach()}
			if hybrid {
				cfg.ShardRanks = world / 2
			}
			return cfg
		}
	}
	for _, ranks := range []int{1, 2, world} {
		for _, order := range []int{1, -1} { // of the ranks in the groups
			if world%ranks > 0 {
				continue
			}
			layouts[fmt.Sprintf("experts of %d ranks, order %d", ranks, order)] = func(t require.TestingT, ctx context.Context, g comm.Group) fsdp.Config {
				own, err := g.Split(ctx, g.Rank()/ranks, order*g.Rank())
				require.NoError(t, err)
				return fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Unit: GroupOf(func(u fsdp.UnitConfig) comm.Group {
					if u.Name == "experts" {
						return own
					}
					return nil
				})}
			}
		}
	}
	layouts["ignored experts"] = func(t require.TestingT, ctx context.Context, g comm.Group) fsdp.Config {
		cfg := layouts["experts of 1 ranks, order 1"](t, ctx, g)
		if world%2 == 0 {
			cfg = layouts["experts of 2 ranks, order -1"](t, ctx, g)
		}
		cfg.Ignored = func(name string) bool { return name == "experts.up" }
		return cfg
	}
	return layouts
}

// Spreads are ways to spread a model over n ranks.
var Spreads = []struct {
	Name   string
	Config func(n int) fsdp.Config
}{
	{"full, each", func(int) fsdp.Config { return fsdp.Config{WrapPolicy: fsdp.WrapEach()} }},
	{"hybrid, two units", func(n int) fsdp.Config {
		ranks := n
		if n%2 == 0 {
			ranks = n / 2
		}
		return fsdp.Config{WrapPolicy: EveryOther, Strategy: fsdp.HybridShard, ShardRanks: ranks}
	}},
	{"grad op, root", func(int) fsdp.Config { return fsdp.Config{Strategy: fsdp.ShardGradOp} }},
	{"replicated, ignored", func(int) fsdp.Config {
		return fsdp.Config{WrapPolicy: fsdp.WrapEach(), Strategy: fsdp.NoShard, Ignored: func(name string) bool { return name == "l1.w" }}
	}},
}

// BatchPart returns a rank's part of a batch that is the same for any number of ranks that divides
// 120.
func BatchPart(step int, g comm.Group, compute fsdp.DType) []fsdp.Tensor {
	n := 120 / g.Size()
	var batch []fsdp.Tensor
	for k := range 2 {
		part := Elements(Floats(2*step+k+1, 120, ShapeDim))[g.Rank()*n*ShapeDim:][:n*ShapeDim]
		if compute == fsdp.Float64 {
			batch = append(batch, tensor.New(tensor.WithShape(n, ShapeDim), tensor.WithBacking(slices.Clone(part))))
			continue
		}
		narrow := make([]float32, len(part))
		for i, x := range part {
			narrow[i] = float32(x)
		}
		batch = append(batch, tensor.New(tensor.WithShape(n, ShapeDim), tensor.WithBacking(narrow)))
	}
	return batch
}

// Resharder is one rank of a training whose loss is the same for any number of ranks.
type Resharder struct {
	*fsdp.Sharded
	Group   comm.Group
	Opt     optim.Optimizer
	Compute fsdp.DType
}

// NewResharder wraps a chain in the given layout, with an optimizer of two kinds.
func NewResharder(t require.TestingT, g comm.Group, layout int, compute fsdp.DType, seed uint64, frozen func(string) bool) *Resharder {
	cfg := Spreads[layout%len(Spreads)].Config(g.Size())
	cfg.Group, cfg.Seed, cfg.Precision.Compute, cfg.Poison, cfg.Frozen = g, seed, compute, true, frozen
	m := Wrap(t, Shapes["chain"], cfg)
	return &Resharder{m, g, AdamAndMomentum(t, m), compute}
}

// AdamAndMomentum updates l2 with momentum, and the rest with AdamW.
func AdamAndMomentum(t require.TestingT, m *fsdp.Sharded) optim.Optimizer {
	var matrices, others []optim.Param
	for _, p := range m.Params() {
		if strings.HasPrefix(p.Name, "l2.") {
			others = append(others, p)
		} else {
			matrices = append(matrices, p)
		}
	}
	adam, err := optim.AdamW{WeightDecay: 0.1}.New(matrices)
	require.NoError(t, err)
	sgd, err := optim.SGD{Momentum: 0.9}.New(others)
	require.NoError(t, err)
	both, err := optim.Compose(adam, sgd)
	require.NoError(t, err)
	return both
}

// Train trains on steps [from, to) and returns the mean losses of all ranks.
func (r *Resharder) Train(t require.TestingT, ctx context.Context, from, to int) (losses []float64) {
	for step := from; step < to; step++ {
		loss := []float64{ForwardBackward(t, ctx, r.Sharded, BatchPart(step, r.Group, r.Compute))}
		require.NoError(t, r.Opt.Step(0.02))
		r.ZeroGrad()
		require.NoError(t, r.Group.AllReduce(comm.Of(loss), comm.Avg).Wait(ctx))
		losses = append(losses, loss[0])
	}
	return losses
}

// RequireTakenUp checks that a new optimizer loads the saved state.
func (f *Filler) RequireTakenUp(t require.TestingT, ctx context.Context, dir string) {
	var err error
	f.Opt, err = optim.AdamW{}.New(f.Params())
	require.NoError(t, err)
	_, err = f.Load(ctx, dir, f.Opt, nil)
	require.NoError(t, err)
	f.Require(t, 1)
	require.NoError(t, f.Opt.Step(0.1))
}

// Ckpt is a directory of a file system in memory.
var Ckpt, _ = filepath.Abs("ckpt")

// Filler is a model whose parameters and optimizer all hold one number each time it is saved, so
// that a mixture of two checkpoints would be detected.
type Filler struct {
	*fsdp.Sharded
	Opt optim.Optimizer
	t   require.TestingT
}

// NewFiller returns a Filler after one update.
func NewFiller(t require.TestingT, ctx context.Context, g comm.Group) *Filler {
	return LoggingFiller(t, ctx, g, nil)
}

// LoggingFiller is NewFiller with a logger.
func LoggingFiller(t require.TestingT, ctx context.Context, g comm.Group, logger *slog.Logger) *Filler {
	// One unit: each of three ranks has a part of it.
	m := Wrap(t, Shapes["chain"], fsdp.Config{Group: g, Precision: Float64s, Logger: logger})
	opt, err := optim.AdamW{}.New(m.Params())
	require.NoError(t, err)
	ForwardBackward(t, ctx, m, ShapeBatch(g.Rank()))
	require.NoError(t, opt.Step(0.01))
	m.ZeroGrad()
	return &Filler{m, opt, t}
}

// Fill sets everything to v.
func (f *Filler) Fill(v float64) {
	set := func(int, float64) float64 { return v }
	for _, p := range f.Params() {
		Edit(f.t, p.Value, set)
	}
	for _, e := range f.Opt.State() {
		Edit(f.t, e.Data, set)
	}
}

// Require checks that everything is v.
func (f *Filler) Require(t require.TestingT, v float64) {
	for _, p := range f.Params() {
		for i, x := range Numbers(t, p.Value) {
			require.Equal(t, v, x, "%s[%d]", p.Name, i)
		}
	}
	for _, e := range f.Opt.State() {
		for i, x := range Numbers(t, e.Data) {
			require.Equal(t, v, x, "%s of %s[%d]", e.Name, e.Param, i)
		}
	}
}

// SaveStep fills with the number of a step and saves it.
func (f *Filler) SaveStep(ctx context.Context, dir string, step int, opts ...fsdp.SaveOptions) error {
	f.Fill(float64(step))
	return f.Save(ctx, dir, f.Opt, atStep(step, opts))
}

// atStep returns the options, of which there are at most one, with a step.
func atStep(step int, opts []fsdp.SaveOptions) *fsdp.SaveOptions {
	var o fsdp.SaveOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	o.Step = step
	return &o
}

// SaveAs is SaveStep, or SaveAsync and Wait.
func (f *Filler) SaveAs(ctx context.Context, asynchronous bool, dir string, step int, opts ...fsdp.SaveOptions) error {
	if !asynchronous {
		return f.SaveStep(ctx, dir, step, opts...)
	}
	f.Fill(float64(step))
	v, err := f.SaveAsync(ctx, dir, f.Opt, atStep(step, opts))
	if err != nil {
		return err
	}
	return v.Wait(ctx)
}

// Stubborn is an optimizer that refuses the state of one parameter.
type Stubborn struct {
	optim.Optimizer
	Refuse string // its name, or "" for none
}

// ErrStubborn is the error of a Stubborn optimizer.
var ErrStubborn = errors.New("not that one")

// Adopt implements optim.Optimizer.
func (o *Stubborn) Adopt(steps int, entries []optim.Entry) error {
	if len(entries) > 0 && entries[0].Param == o.Refuse {
		return ErrStubborn
	}
	return o.Optimizer.Adopt(steps, entries)
}

// OwnState returns the whole parameters and buffers that this rank uses. For a unit sharded over a
// group, they are the group's.
func OwnState(ctx context.Context, m *fsdp.Sharded) (Params, error) {
	own := Params{}
	err := m.Summon(ctx, nil, func(all Params) error { maps.Copy(own, all); return nil })
	return own, err
}
