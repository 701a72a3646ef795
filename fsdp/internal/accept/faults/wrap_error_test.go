package faults_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/shard"
)

// panicking is a module whose Params panics.
type panicking struct{ kit.Module }

func (*panicking) Params() []fsdp.Param { panic("no parameters today") }

// unscripted is a model with programs that panic.
type unscripted struct{ fsdp.Model }

func (unscripted) Programs() map[string]fsdp.Program { panic("no programs today") }

// wrapErrors are models and configurations that Wrap refuses, with a part of the message.
var wrapErrors = map[string]struct {
	model fsdp.Model
	cfg   fsdp.Config
	want  string
}{
	"nil model":          {nil, fsdp.Config{}, "the model is nil"},
	"nil pointer":        {(*nn.GPT)(nil), fsdp.Config{}, "the model's Forward panicked at "},
	"model fails":        {kit.Model(func(*fsdp.Tape, []fsdp.Ref) ([]fsdp.Ref, error) { return nil, errors.New("out of ideas") }), fsdp.Config{}, "out of ideas"},
	"model panics":       {kit.Model(func(*fsdp.Tape, []fsdp.Ref) ([]fsdp.Ref, error) { panic("out of luck") }), fsdp.Config{}, kit.PanickedHere("the model's Forward", "out of luck")},
	"GPT of no width":    {&nn.GPT{Layers: 1}, fsdp.Config{}, "nn: GPT: Vocab is 0, want at least 1"},
	"no results":         {kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) { return nil, nil }), fsdp.Config{}, "no results"},
	"result is input":    {kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) { return in[:1], nil }), fsdp.Config{}, "result 0 is not the output of a call"},
	"zero result":        {kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) { return []fsdp.Ref{{}}, nil }), fsdp.Config{}, "result 0 is not the output of a call"},
	"no parameters":      {kit.Calls(kit.Call("d", &nn.Dropout{})), fsdp.Config{}, "no parameters"},
	"nil module":         {kit.Calls(kit.Call("a", nil)), fsdp.Config{}, `call "a": the module is nil`},
	"nil module pointer": {kit.Calls(kit.Call("a", (*nn.Linear)(nil))), fsdp.Config{}, `call "a": the module is nil`},
	"Params panics":      {kit.Calls(kit.Call("a", &panicking{})), fsdp.Config{}, `call "a": method Params panicked at `},
	"Programs panics":    {unscripted{kit.TinyGPT(1)}, fsdp.Config{}, "the model's Programs, or one of them, panicked at "},
	"empty call name":    {kit.Calls(kit.Call("", kit.Having(kit.Weight("w", 1)))), fsdp.Config{}, "empty or has spaces"},
	"call name spaces":   {kit.Calls(kit.Call("a b", kit.Having(kit.Weight("w", 1)))), fsdp.Config{}, "empty or has spaces"},
	"call twice":         {kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 1))), kit.Call("a", kit.Having(kit.Weight("w", 1)))), fsdp.Config{}, `call "a": the name is taken`},
	"empty param name":   {kit.Calls(kit.Call("a", kit.Having(kit.Weight("", 1)))), fsdp.Config{}, `parameter name "" is empty`},
	"param twice":        {kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 1), kit.Weight("w", 1)))), fsdp.Config{}, `parameter "w" is listed twice`},
	"same full name":     {kit.Calls(kit.Call("a", kit.Having(kit.Weight("b.w", 1))), kit.Call("a.b", kit.Having(kit.Weight("w", 1)))), fsdp.Config{}, `already has a parameter "a.b.w"`},
	"empty dimension":    {kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 2, 0)))), fsdp.Config{}, "dimensions must be positive"},
	"tied to nothing":    {kit.Calls(kit.Call("a", kit.Having(fsdp.Param{Name: "w", Shape: []int{1}, Tied: "b.w"}))), fsdp.Config{}, `tied to "b.w", but no earlier call has that parameter`},
	"tied, other shape":  {kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 2))), kit.Call("b", kit.Having(fsdp.Param{Name: "w", Shape: []int{1}, Tied: "a.w"}))), fsdp.Config{}, `"w" has shape [1], but is tied to "a.w", which has shape [2]`},
	"tied twice": {kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 2))), kit.Call("b", kit.Having(fsdp.Param{Name: "u", Shape: []int{2}, Tied: "a.w"}, fsdp.Param{Name: "v", Shape: []int{2}, Tied: "a.w"}))),
		fsdp.Config{}, `"v" is tied to "a.w", which this call already has: a call takes a parameter only once`},
	"again of nothing": {kit.Calls(func(t *fsdp.Tape, x fsdp.Ref) fsdp.Ref { return t.Again("a", x) }), fsdp.Config{}, `Again("a"): no earlier call has this name`},
	"foreign input": {kit.Calls(func(t *fsdp.Tape, _ fsdp.Ref) fsdp.Ref {
		return t.Call("a", kit.Having(kit.Weight("w", 1)), fsdp.Ref{})
	}), fsdp.Config{}, `call "a": input 0 is not a value of this model`},
	"At of an input":     {kit.Calls(func(t *fsdp.Tape, x fsdp.Ref) fsdp.Ref { return t.Call("a", kit.Having(kit.Weight("w", 1)), x.At(1)) }), fsdp.Config{}, "At(1)"},
	"At below zero":      {kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 1))), func(_ *fsdp.Tape, x fsdp.Ref) fsdp.Ref { return x.At(-1) }), fsdp.Config{}, "At(-1)"},
	"unknown type":       {kit.TinyGPT(1), fsdp.Config{Precision: fsdp.Precision{Compute: 9}}, "DType(9)"},
	"negative prefetch":  {kit.TinyGPT(1), fsdp.Config{Prefetch: -2}, "Config.Prefetch is -2"},
	"unknown strategy":   {kit.TinyGPT(1), fsdp.Config{Strategy: 9}, "Config.Strategy is Strategy(9): want one of FullShard to SecondaryShard"},
	"strategy of a unit": {kit.TinyGPT(1), fsdp.Config{Unit: kit.StrategyOf(func(fsdp.UnitConfig) fsdp.Strategy { return 9 })}, "unit root: Config.Unit set Strategy to Strategy(9)"},
	"StrategyOf panics":  {kit.TinyGPT(1), fsdp.Config{Unit: kit.StrategyOf(func(fsdp.UnitConfig) fsdp.Strategy { panic("no opinion") })}, kit.PanickedHere("unit root: Config.Unit", "no opinion")},
	"GroupOf panics":     {kit.TinyGPT(1), fsdp.Config{Unit: kit.GroupOf(func(fsdp.UnitConfig) comm.Group { panic("no opinion") })}, kit.PanickedHere("unit root: Config.Unit", "no opinion")},
	"CutOf panics":       {kit.TinyGPT(1), fsdp.Config{Unit: kit.CutOf(func(fsdp.UnitConfig) shard.Cut { panic("no opinion") })}, kit.PanickedHere("unit root: Config.Unit", "no opinion")},
	"hybrid over what":   {kit.TinyGPT(1), fsdp.Config{Strategy: fsdp.HybridShard}, "unit root: HybridShard needs Config.ShardRanks"},
	"hybrid over more":   {kit.TinyGPT(1), fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 5}, "Config.ShardRanks is 5, which does not divide"},
	"second copy, GPU":   {kit.TinyGPT(1), fsdp.Config{Strategy: fsdp.SecondaryShard, ShardRanks: 1, WrapPolicy: kit.Blocks, Device: new(gpu.Device)}, "unit blocks.0: SecondaryShard runs only on the processor"},
	"unknown divisor":    {kit.TinyGPT(1), fsdp.Config{GradAverage: 9}, "Config.GradAverage is GradAverage(9)"},
	"negative in flight": {kit.TinyGPT(1), fsdp.Config{InFlight: -1}, "Config.InFlight is -1"},
	"Frozen panics":      {kit.TinyGPT(1), fsdp.Config{Frozen: func(string) bool { panic("no opinion") }}, kit.PanickedHere("parameter wte.weight: Config.Frozen, Ignored, Precision.Full or TypesOf", "no opinion")},
	"spill to nowhere":   {kit.TinyGPT(1), fsdp.Config{Activations: fsdp.Activations{Offload: kit.Blocks}}, "Config.Offload.Dir names no directory"},
	"policy too short":   {kit.TinyGPT(1), fsdp.Config{WrapPolicy: func([]fsdp.CallInfo) []string { return nil }}, "Config.WrapPolicy returned 0 names for 5 calls"},
	"policy panics":      {kit.TinyGPT(1), fsdp.Config{WrapPolicy: func(c []fsdp.CallInfo) []string { panic("no opinion") }}, kit.PanickedHere("Config.WrapPolicy", "no opinion")},
	"checkpoint panics":  {kit.TinyGPT(1), fsdp.Config{Activations: fsdp.Activations{Recompute: func(c []fsdp.CallInfo) []string { panic("no opinion") }}}, kit.PanickedHere("Config.Activations.Recompute", "no opinion")},
	"error without text": {kit.Model(func(*fsdp.Tape, []fsdp.Ref) ([]fsdp.Ref, error) { return nil, errors.New("") }), fsdp.Config{}, "fsdp: "},
}

// TestWrapRefuses checks that each mistake is an error that says what is wrong, on one rank, on
// all, and on the others when only one rank makes it.
func TestWrapRefuses(t *testing.T) {
	for name, c := range wrapErrors {
		t.Run(name, func(t *testing.T) {
			_, err := fsdp.Wrap(c.model, c.cfg)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "fsdp: ")
			require.NotContains(t, err.Error(), "\n")
			for world := 2; world <= 3; world++ {
				for _, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
					cfg := c.cfg
					cfg.Group = g
					_, err := fsdp.WrapContext(ctx, c.model, cfg)
					return err
				}) {
					require.ErrorContains(t, err, c.want)
				}
				errs := kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
					if g.Rank() > 0 {
						_, err := fsdp.WrapContext(ctx, kit.TinyGPT(1), fsdp.Config{Group: g})
						return err
					}
					cfg := c.cfg
					cfg.Group = g
					_, err := fsdp.WrapContext(ctx, c.model, cfg)
					return err
				})
				for r, err := range errs[1:] {
					var peer *fsdp.PeerError
					require.ErrorAs(t, err, &peer, "rank %d", r+1)
					require.Zero(t, peer.Rank)
					require.Contains(t, err.Error(), strings.TrimPrefix(c.want, "fsdp: "))
				}
			}
		})
	}
}

// TestWrapRefusesLayout: models are compared before parameters are laid out, so a shape that cannot
// be is an error of its own only where all ranks have it.
func TestWrapRefusesLayout(t *testing.T) {
	huge := kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", 1<<40, 1<<40))))
	for world := 1; world <= 3; world++ {
		for _, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
			_, err := fsdp.WrapContext(ctx, huge, fsdp.Config{Group: g})
			return err
		}) {
			require.ErrorContains(t, err, "group root: ")
			require.ErrorContains(t, err, "a.w")
			require.ErrorContains(t, err, "more elements than")
		}
	}
	for _, err := range kit.ErrorsOf(t, 2, func(ctx context.Context, g comm.Group) error {
		_, err := fsdp.WrapContext(ctx, []fsdp.Model{huge, kit.TinyGPT(1)}[g.Rank()], fsdp.Config{Group: g})
		return err
	}) {
		require.ErrorContains(t, err, `rank 0 has "parameter a.w [1099511627776 1099511627776]`)
		require.ErrorContains(t, err, `rank 1 has "parameter wte.weight [13 8]`)
	}
}

// TestWrapAfterFailure checks that a failed Wrap leaves the group usable.
func TestWrapAfterFailure(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, Prefetch: -7 * g.Rank()})
		require.ErrorContains(t, err, "Prefetch is -7")
		require.ErrorContains(t, err, "Prefetch is -14", "all that failed are told")
		_, err = fsdp.Wrap(kit.TinyGPT(1+g.Rank()/2), fsdp.Config{Group: g})
		require.ErrorContains(t, err, "disagree")
		kit.ForwardBackward(t, ctx, kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g}), kit.TinyBatch(0, g.Rank(), 1, 2))
	})
}

// renamed is a GPT with one more parameter under another name.
func renamed(name string) kit.Model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call(name, &nn.Embedding{Rows: kit.TinyVocab, Dim: 8}, in[0])
		return []fsdp.Ref{t.Call("head", &nn.Head{Dim: 8, Classes: kit.TinyVocab}, x, in[1])}, nil
	}
}

// nested is a module with a pointer to another.
type nested struct{ inner *nn.Linear }

func (m *nested) Params() []fsdp.Param { return m.inner.Params() }
func (m *nested) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	return m.inner.Build(b, in...)
}

// chainOf is a model of one nested module and a head.
func chainOf(std float64) kit.Model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("wte", &nn.Embedding{Rows: kit.TinyVocab, Dim: 8}, in[0])
		x = t.Call("mid", &nested{&nn.Linear{In: 8, Out: 8, Std: std}}, x)
		return []fsdp.Ref{t.Call("head", &nn.Head{Dim: 8, Classes: kit.TinyVocab}, x, in[1])}, nil
	}
}

// wrapDifferences are pairs of a model and a configuration that do not go together, with what the
// error must contain.
var wrapDifferences = map[string]struct {
	model [2]fsdp.Model
	cfg   [2]fsdp.Config
	want  []string
}{
	"layers":   {[2]fsdp.Model{kit.TinyGPT(2), kit.TinyGPT(3)}, [2]fsdp.Config{}, []string{"parameter lnf.weight [8]", "parameter blocks.2.ln1.weight [8]"}},
	"width":    {[2]fsdp.Model{&nn.GPT{Vocab: 5, Context: 4, Dim: 8, Heads: 2}, &nn.GPT{Vocab: 5, Context: 4, Dim: 6, Heads: 2}}, [2]fsdp.Config{}, []string{"parameter wte.weight [5 8]", "parameter wte.weight [5 6]"}},
	"names":    {[2]fsdp.Model{renamed("wte"), renamed("tok")}, [2]fsdp.Config{}, []string{"wte.weight", "tok.weight"}},
	"heads":    {[2]fsdp.Model{&nn.GPT{Vocab: 5, Context: 4, Layers: 1, Dim: 8, Heads: 2}, &nn.GPT{Vocab: 5, Context: 4, Layers: 1, Dim: 8, Heads: 4}}, [2]fsdp.Config{}, []string{"blocks.0", "Heads:2", "Heads:4"}},
	"inside":   {[2]fsdp.Model{chainOf(0.5), chainOf(0.25)}, [2]fsdp.Config{}, []string{"mid", "0.5", "0.25"}},
	"seed":     {[2]fsdp.Model{kit.TinyGPT(1), kit.TinyGPT(1)}, [2]fsdp.Config{{Seed: 1}, {Seed: 2}}, []string{"Config.Seed 1", "Config.Seed 2"}},
	"prefetch": {[2]fsdp.Model{kit.TinyGPT(1), kit.TinyGPT(1)}, [2]fsdp.Config{{}, {Prefetch: 3}}, []string{"Config.Prefetch 1", "Config.Prefetch 3"}},
	"wide": {[2]fsdp.Model{kit.TinyGPT(1), kit.TinyGPT(1)}, [2]fsdp.Config{{Precision: fsdp.BF16()}, {Precision: fsdp.Precision{Compute: fsdp.BFloat16, Wide: kit.Blocks}}},
		[]string{"parameter blocks.0.qkv.weight", "trained, in unit", "full, in unit"}},
	"masters": {[2]fsdp.Model{kit.TinyGPT(1), kit.TinyGPT(1)}, [2]fsdp.Config{{Precision: fsdp.BF16()}, {Precision: fsdp.Precision{Compute: fsdp.BFloat16, Master: fsdp.BFloat16}}},
		[]string{"Config.Precision.Master float32", "Config.Precision.Master bfloat16"}},
	"type":         {[2]fsdp.Model{kit.TinyGPT(1), kit.TinyGPT(1)}, [2]fsdp.Config{{}, {Precision: fsdp.Precision{Compute: fsdp.Float64}}}, []string{"float32", "float64"}},
	"wrap":         {[2]fsdp.Model{kit.TinyGPT(1), kit.TinyGPT(1)}, [2]fsdp.Config{{WrapPolicy: kit.Blocks}, {WrapPolicy: fsdp.WrapEach()}}, []string{"parameter wte.weight [13 8]: trained, in unit root", "trained, in unit wte"}},
	"checkpoint":   {[2]fsdp.Model{kit.TinyGPT(1), kit.TinyGPT(1)}, [2]fsdp.Config{{}, {Activations: fsdp.Activations{Recompute: kit.Blocks}}}, []string{"call blocks.0: ", "Recompute false", "Recompute true"}},
	"another call": {[2]fsdp.Model{kit.TinyGPT(1), &nn.GPT{Vocab: kit.TinyVocab, Context: kit.TinyContext, Layers: 1, Dim: 8, Heads: 2, Dropout: 0.1}}, [2]fsdp.Config{}, []string{"Dropout:0.1"}},
}

// TestWrapComparesRanks checks that every rank is told what differs and between which ranks.
func TestWrapComparesRanks(t *testing.T) {
	for name, c := range wrapDifferences {
		for world := 2; world <= 3; world++ {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				odd := world - 1 // the rank that differs
				for _, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
					side := g.Rank() / odd
					cfg := c.cfg[side]
					cfg.Group = g
					_, err := fsdp.WrapContext(ctx, c.model[side], cfg)
					return err
				}) {
					for _, want := range append(c.want, "disagree", "rank 0 has", fmt.Sprintf("rank %d has", odd)) {
						require.ErrorContains(t, err, want)
					}
				}
			})
		}
	}
}

// TestWrapIgnoresWhereModulesLive checks that equal models are equal wherever their modules are in
// memory.
func TestWrapIgnoresWhereModulesLive(t *testing.T) {
	kit.OnRanks(t, 2, func(_ context.Context, g comm.Group) { kit.Wrap(t, chainOf(0.5), fsdp.Config{Group: g}) })
}
