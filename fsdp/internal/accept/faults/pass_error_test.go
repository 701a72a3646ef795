package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/optim"
)

// badBatch is a batch with a part of the message that refuses it.
type badBatch struct {
	batch []fsdp.Tensor
	want  string
}

// badBatches are batches of shapes and types that a tiny GPT refuses before the pass starts.
var badBatches = map[string]badBatch{
	"none":             {nil, "the batch has 0 tensors, the model takes 2"},
	"one":              {kit.GoodBatch(0)[:1], "the batch has 1 tensors, the model takes 2"},
	"three":            {append(kit.GoodBatch(0), kit.GoodBatch(0)[0]), "the batch has 3 tensors, the model takes 2"},
	"nil tensor":       {[]fsdp.Tensor{nil, nil}, "batch tensor 0 (tokens)"},
	"nil dense":        {[]fsdp.Tensor{kit.GoodBatch(0)[0], (*tensor.Dense)(nil)}, "batch tensor 1 (targets)"},
	"float tokens":     {[]fsdp.Tensor{tensor.New(tensor.WithShape(2, 3), tensor.Of(tensor.Float32)), kit.GoodBatch(0)[1]}, "call wte"},
	"other float":      {[]fsdp.Tensor{kit.Floats(1, 2, 3), kit.GoodBatch(0)[1]}, "batch tensor 0 (tokens) is float64: the model computes in float32"},
	"bytes":            {[]fsdp.Tensor{tensor.New(tensor.WithShape(2, 3), tensor.Of(tensor.Byte)), kit.GoodBatch(0)[1]}, "batch tensor 0 (tokens): element type uint8"},
	"flat":             {[]fsdp.Tensor{tensor.New(tensor.WithShape(6), tensor.Of(tensor.Int)), kit.GoodBatch(0)[1]}, "call wpe"},
	"empty":            {[]fsdp.Tensor{tensor.New(tensor.WithShape(0, 3), tensor.Of(tensor.Int)), kit.GoodBatch(0)[1]}, "batch tensor 0 (tokens): tensor of shape (0, 3) is empty"},
	"scalar":           {[]fsdp.Tensor{tensor.New(tensor.FromScalar(3)), kit.GoodBatch(0)[1]}, "call wpe"},
	"too long":         {kit.TinyBatch(0, 0, 2, kit.TinyContext+1), "call wpe"},
	"targets differ":   {[]fsdp.Tensor{kit.GoodBatch(0)[0], kit.TinyBatch(0, 0, 3, 3)[1]}, "call head"},
	"a transposed one": {[]fsdp.Tensor{transposed(), kit.GoodBatch(0)[1]}, "batch tensor 0 (tokens)"},
}

// badTokens are batches of the right shape with contents that a tiny GPT refuses before the pass
// starts.
var badTokens = map[string]badBatch{
	"token too large":  {with(0, 4, kit.TinyVocab), "batch tensor 0 (tokens): call wte: embedding: index 13 at position 4 is outside the table of 13 rows, 0 to 12: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context"},
	"negative token":   {with(0, 0, -1), "index -1 at position 0 is outside the table of 13 rows, 0 to 12: tokens need a model with the Vocab of their tokenizer, positions one with a longer Context"},
	"target too large": {with(1, 5, 99), "batch tensor 1 (targets): call head: cross-entropy(-1): target 99 of row 5 is outside the 13 classes, which are 0 to 12"},
}

// TestIntegersOfABatch may be int64 and int32. The loss and the state after a step have the same
// bits.
func TestIntegersOfABatch(t *testing.T) {
	step := func(batch []fsdp.Tensor) (float64, map[string]*tensor.Dense) {
		s := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{WrapPolicy: kit.Blocks})
		_, err := s.Forward(t.Context(), converted[int32](with(0, 4, kit.TinyVocab))...)
		require.ErrorContains(t, err, "embedding: index 13 at position 4 is outside the table of 13 rows")
		loss := kit.ForwardBackward(t, t.Context(), s, batch)
		kit.Updater(t, s, 1)(t.Context())
		state, err := s.StateDict(t.Context(), &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		require.NoError(t, s.Close())
		return loss, state
	}
	loss, state := step(kit.GoodBatch(0))
	for _, batch := range [][]fsdp.Tensor{converted[int32](kit.GoodBatch(0)), converted[int64](kit.GoodBatch(0))} {
		other, same := step(batch)
		require.Equal(t, loss, other)
		for name, v := range state {
			require.Equal(t, v.Data(), same[name].Data(), name)
		}
	}
}

// converted returns a batch of integers of another type.
func converted[T int32 | int64](batch []fsdp.Tensor) (list []fsdp.Tensor) {
	for _, b := range batch {
		v := make([]T, b.Size())
		for i, x := range b.(*tensor.Dense).Ints() {
			v[i] = T(x)
		}
		list = append(list, tensor.New(tensor.WithShape(b.Shape()...), tensor.WithBacking(v)))
	}
	return list
}

// with returns a good batch with one element of tensor i changed.
func with(i, at, v int) []fsdp.Tensor {
	batch := kit.GoodBatch(0)
	batch[i].(*tensor.Dense).Ints()[at] = v
	return batch
}

func transposed() *tensor.Dense {
	t := kit.Tokens(1, kit.TinyVocab, 3, 2)
	if err := t.T(); err != nil {
		panic(err)
	}
	return t
}

// TestBadBatches gives each bad batch to one rank and to all, in training and evaluation, and
// checks that every rank returns an error that says what is wrong, and then trains on as if nothing
// had happened.
func TestBadBatches(t *testing.T) {
	model, want := kit.TinyGPT(1), map[int]kit.Bits{}
	model.Dropout = 0.1
	for world := 1; world <= 3; world++ {
		want[world] = kit.Train(t, model, world, 2, 1, fsdp.Config{WrapPolicy: kit.Blocks, Poison: true})
	}
	bad := maps.Clone(badBatches)
	maps.Copy(bad, badTokens)
	for name, c := range bad {
		for world := 1; world <= 3; world++ {
			for _, all := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%d ranks/all %t", name, world, all), func(t *testing.T) {
					kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
						m := kit.Wrap(t, model, fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Poison: true})
						batch := c.batch
						if !all && g.Rank() != world-1 {
							batch = kit.GoodBatch(g.Rank())
						}
						update := kit.Updater(t, m, 1)
						for step := range 2 {
							_, err := m.Eval(ctx, batch...)
							require.ErrorContains(t, err, c.want)
							require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: Eval: ", g.Rank()))
							_, err = m.Forward(ctx, batch...)
							require.ErrorContains(t, err, c.want)
							require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: Forward: ", g.Rank()))
							if g.Rank() != world-1 && !all {
								require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", world-1))
							}
							kit.ForwardBackward(t, ctx, m, kit.TinyBatch(step, g.Rank(), 2, kit.TinyContext))
							update(ctx)
						}
						kit.RequireSameBits(t, want[world], kit.StateBits(t, ctx, m))
					})
				})
			}
		}
	}
}

// TestPlanRefusesBadBatches checks that Plan says what is wrong, without a word to the other ranks.
func TestPlanRefusesBadBatches(t *testing.T) {
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{})
	for name, c := range badBatches {
		_, err := m.Plan(c.batch...)
		require.ErrorContains(t, err, c.want, name)
	}
}

// fussy passes x on, unless an element is too large: an error that only shows in the middle of a
// pass.
type fussy struct{}

func (fussy) Params() []fsdp.Param { return nil }

func (fussy) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	op := exec.Row{
		Kind: "fussy", Diff: 1,
		Kernels: exec.Kernels{F64: func(f *exec.Frame) error {
			for i, v := range exec.Data[float64](f.In[0].Bytes) {
				if v > 100 {
					return fmt.Errorf("element %d is %v", i, v)
				}
			}
			copy(f.Out.Bytes, f.In[0].Bytes)
			return nil
		}},
		Grad: func(_ *exec.Op, _ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
			return gorgonia.Nodes{dy}, nil
		},
	}
	y, err := op.Apply(nil, in[0])
	return gorgonia.Nodes{y}, err
}

// TestErrorInsideAPass checks that an error that only shows in the middle of a pass, on one rank,
// reaches all with rank, pass and call, and that the model stays failed.
func TestErrorInsideAPass(t *testing.T) {
	kit.Needs(t, kit.OwnOperations)
	picky := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("l0", &kit.Dense{Dim: kit.ShapeDim}, in[0])
		x = t.Call("l1", &kit.Dense{Dim: kit.ShapeDim, Mem: true}, x, t.Call("fussy", fussy{}, in[0]))
		return kit.Regress(t, in, x), nil
	})
	for world := 1; world <= 3; world++ {
		for name, do := range map[string]func(context.Context, *fsdp.Sharded, []fsdp.Tensor) error{
			"Forward": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error {
				_, err := m.Forward(ctx, b...)
				return err
			},
			"Eval": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error {
				_, err := m.Eval(ctx, b...)
				return err
			},
		} {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				for r, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
					m := kit.Wrap(t, picky, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s})
					batch := kit.ShapeBatch(g.Rank())
					if g.Rank() == world-1 {
						kit.Elements(batch[0])[3] = 1000
					}
					err := do(ctx, m, batch)
					// What fails late on other ranks, because they were done already, fails in the next pass.
					if err == nil {
						err = do(ctx, m, kit.ShapeBatch(g.Rank()))
					}
					for range 2 {
						require.ErrorContains(t, do(ctx, m, kit.ShapeBatch(g.Rank())), "element 3 is 1000", "the failure is sticky")
						require.ErrorContains(t, m.Backward(ctx), "element 3 is 1000")
						_, clip := m.ClipGradNorm(ctx, 1)
						require.ErrorContains(t, clip, "element 3 is 1000")
						_, state := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
						require.ErrorContains(t, state, "element 3 is 1000")
					}
					return err
				}) {
					require.ErrorContains(t, err, "pass 1: forward fussy: fussy: element 3 is 1000", "rank %d", r)
					require.Regexp(t, fmt.Sprintf(`rank %d( of group "world")?: pass 1`, world-1), err.Error(), "rank %d", r)
				}
			})
		}
	}
}

// strict passes x on, and its backward panics if an element of another input is too large.
type strict struct{}

func (strict) Params() []fsdp.Param { return nil }

func (strict) Build(_ *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	grad := &exec.Row{Kind: "strict grad", Kernels: exec.Kernels{F64: func(f *exec.Frame) error {
		if slices.Max(exec.Data[float64](f.In[0].Bytes)) > 100 {
			panic("too large")
		}
		copy(f.Out.Bytes, f.In[1].Bytes)
		return nil
	}}}
	op := exec.Row{
		Kind: "strict", Diff: 1,
		Kernels: exec.Kernels{F64: func(f *exec.Frame) error { copy(f.Out.Bytes, f.In[0].Bytes); return nil }},
		Grad: func(o *exec.Op, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
			return o.Gradient(grad, in[1], dy)
		},
	}
	y, err := op.Apply(nil, in[0], in[1])
	return gorgonia.Nodes{y}, err
}

// TestPanicInsideBackward checks that a panic in the middle of a backward, on one rank, is an error on
// every rank.
func TestPanicInsideBackward(t *testing.T) {
	kit.Needs(t, kit.OwnOperations)
	prone := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("strict", strict{}, t.Call("l0", &kit.Dense{Dim: kit.ShapeDim}, in[0]), in[0])
		return kit.Regress(t, in, t.Call("l1", &kit.Dense{Dim: kit.ShapeDim}, x)), nil
	})
	for world := 1; world <= 2; world++ {
		for _, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
			m := kit.Wrap(t, prone, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s})
			batch := kit.ShapeBatch(g.Rank())
			if g.Rank() == 0 {
				kit.Elements(batch[0])[3] = 1000
			}
			_, err := m.Forward(ctx, batch...)
			require.NoError(t, err)
			return errors.Join(m.Backward(ctx), m.Backward(ctx)) // a rank that was done already is told now
		}) {
			require.Regexp(t, `rank 0( of group "world")?: pass 1: backward strict: panic: too large`, err.Error())
		}
	}
}

// TestBatchModified changes a batch between Forward and Backward, against the rules: every rank
// returns which tensor of which rank has changed, and the model can be used on.
func TestBatchModified(t *testing.T) {
	kit.Needs(t, kit.BatchInPlace)
	for world := 1; world <= 2; world++ {
		for tensors := range 2 {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
				for _, hold := range []bool{false, true} {
					batch := kit.GoodBatch(g.Rank())
					_, err := m.Forward(ctx, batch...)
					require.NoError(t, err)
					if v := batch[tensors].(*tensor.Dense).Ints(); g.Rank() == world-1 {
						v[0] = (v[0] + 1) % 3
					}
					backward := m.Backward
					if hold {
						backward = m.Hold().Backward
					}
					require.ErrorContains(t, backward(ctx), fmt.Sprintf("rank %d", world-1))
					kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
				}
			})
		}
	}
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{})
	batch := kit.GoodBatch(0)
	_, err := m.Forward(t.Context(), batch...)
	require.NoError(t, err)
	v := batch[0].(*tensor.Dense).Ints()
	v[0] = (v[0] + 1) % 3
	require.EqualError(t, m.Backward(t.Context()), "fsdp: rank 0: Backward: batch tensor 0 (tokens) has changed since the Forward of pass 1, "+
		"but Backward reads it again: do not change the batch before Backward returns, or give Forward a copy")
}

// TestParameterModified changes a parameter between Forward and Backward. With Poison every rank
// returns which one.
func TestParameterModified(t *testing.T) {
	for world := 1; world <= 2; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Poison: true})
			_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
			require.NoError(t, err)
			name := ""
			if p := m.Params()[0]; g.Rank() == world-1 {
				name = p.Name
				require.NoError(t, p.Value.Slice(0, 1).Write(optim.Host{F32: []float32{3}}))
			}
			err = m.Backward(ctx)
			require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", world-1))
			require.ErrorContains(t, err, "parameter "+name)
			require.ErrorContains(t, err, "has changed since the Forward of pass 1, but Backward reads it again: "+
				"change parameters before Forward or after Backward")
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
		})
	}
}

// TestRanksDoDifferentThings checks that ranks that call different methods are all told who does
// what, and can go on.
func TestRanksDoDifferentThings(t *testing.T) {
	type action struct {
		name string
		do   func(context.Context, *fsdp.Sharded, int) error
	}
	forward := action{"Forward", func(ctx context.Context, m *fsdp.Sharded, r int) error {
		_, err := m.Forward(ctx, kit.GoodBatch(r)...)
		return err
	}}
	eval := action{"Eval", func(ctx context.Context, m *fsdp.Sharded, r int) error {
		_, err := m.Eval(ctx, kit.GoodBatch(r)...)
		return err
	}}
	backward := action{"Backward", func(ctx context.Context, m *fsdp.Sharded, _ int) error { return m.Backward(ctx) }}
	clip := action{"ClipGradNorm", func(ctx context.Context, m *fsdp.Sharded, _ int) error { _, err := m.ClipGradNorm(ctx, 1); return err }}
	state := action{"StateDict", func(ctx context.Context, m *fsdp.Sharded, _ int) error {
		_, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		return err
	}}
	for _, pair := range [][2]action{{forward, eval}, {backward, clip}, {forward, backward}, {state, forward}, {clip, state}} {
		for world := 2; world <= 3; world++ {
			t.Run(fmt.Sprintf("%s and %s/%d ranks", pair[0].name, pair[1].name, world), func(t *testing.T) {
				kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
					m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
					_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
					require.NoError(t, err)
					odd := g.Rank() / (world - 1)
					err = pair[odd].do(ctx, m, g.Rank())
					require.ErrorContains(t, err, "ranks disagree")
					require.ErrorContains(t, err, fmt.Sprintf("rank 0 runs %s as call", pair[0].name))
					require.ErrorContains(t, err, fmt.Sprintf("rank %d runs %s as call", world-1, pair[1].name))
					kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
				})
			})
		}
	}
}

// TestBackwardOutOfTurn checks Backward without, and twice after, a Forward.
func TestBackwardOutOfTurn(t *testing.T) {
	for world := 1; world <= 2; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
			require.ErrorContains(t, m.Backward(ctx), "Backward has no pending Forward")
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
			grads := kit.GradBits(t, ctx, m)
			require.ErrorContains(t, m.Backward(ctx), "Backward has no pending Forward")
			_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
			require.NoError(t, err)
			_, err = m.Eval(ctx, kit.GoodBatch(g.Rank())...)
			require.NoError(t, err)
			require.ErrorContains(t, m.Backward(ctx), "Backward has no pending Forward", "an evaluation discards the forward")
			kit.RequireSameBits(t, grads, kit.GradBits(t, ctx, m))
		})
	}
}

// TestLossNotFinite checks that Backward fails on every rank, names the one, and changes no
// gradient.
func TestLossNotFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), 1e300} {
		for world := 1; world <= 3; world++ {
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.Regression, fsdp.Config{Group: g, Precision: kit.Float64s})
				x, y := kit.Vector(1, 2, 3, 4), kit.Vector(1, 1, 1, 1)
				kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{x, y})
				grads := kit.GradBits(t, ctx, m)
				if g.Rank() == world-1 {
					x = kit.Vector(1, 2, bad, 4)
				}
				_, err := m.Forward(ctx, x, y)
				require.NoError(t, err, "the loss is for the caller to see")
				err = m.Backward(ctx)
				require.ErrorContains(t, err, "the loss of pass")
				require.ErrorContains(t, err, fmt.Sprintf("rank %d: ", world-1))
				kit.RequireSameBits(t, grads, kit.GradBits(t, ctx, m))
				plan, err := m.Plan(x, y)
				require.NoError(t, err)
				require.Equal(t, plan.ShardBytes, m.Memory().Live, "nothing of the pass is left")
				kit.ForwardBackward(t, ctx, m, []fsdp.Tensor{kit.Vector(1, 2, 3, 4), y})
			})
		}
	}
}

// TestGradientNotFinite checks that ClipGradNorm fails on every rank, names a parameter, and
// changes no gradient.
func TestGradientNotFinite(t *testing.T) {
	for world := 1; world <= 3; world++ {
		kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
			for _, p := range m.Params() { // exactly one rank owns element 5
				if i := 5 - p.Offset; p.Name == "blocks.0.qkv.weight" && i >= 0 && i < p.Grad.Len() {
					kit.Edit(t, p.Grad.Slice(i, i+1), func(int, float64) float64 { return math.Inf(-1) })
				}
			}
			before := kit.GradBits(t, ctx, m)
			_, err := m.ClipGradNorm(ctx, 1e-3)
			require.ErrorContains(t, err, "the gradient of blocks.0.qkv.weight")
			require.ErrorContains(t, err, "is not finite")
			kit.RequireSameBits(t, before, kit.GradBits(t, ctx, m))
			m.ZeroGrad()
			norm, err := m.ClipGradNorm(ctx, 1)
			require.NoError(t, err)
			require.Zero(t, norm)
		})
	}
}

// TestClipLimit checks the limits that ClipGradNorm refuses.
func TestClipLimit(t *testing.T) {
	for _, limit := range []float64{0, -1, math.NaN(), math.Inf(-1)} {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
			given := 1.0
			if g.Rank() == 1 {
				given = limit
			}
			_, err := m.ClipGradNorm(ctx, given)
			require.ErrorContains(t, err, "want a positive number")
			_, err = m.ClipGradNorm(ctx, math.Inf(1))
			require.NoError(t, err)
		})
	}
}

// TestScaleMustBeANumber: a scale that is not would spoil gradients that were accumulated before.
func TestScaleMustBeANumber(t *testing.T) {
	for _, c := range []float64{math.NaN(), math.Inf(1)} {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
			want := kit.GradBits(t, ctx, m)
			_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
			require.NoError(t, err)
			scale := 1.0
			if g.Rank() == 1 {
				scale = c
			}
			require.ErrorContains(t, m.Backward(ctx, nil, fsdp.Scale(scale)), "Scale is ")
			kit.RequireSameBits(t, want, kit.GradBits(t, ctx, m))
		})
	}
}

// TestPassesAreCounted: passes are numbered from 1, whatever else is called between them.
func TestPassesAreCounted(t *testing.T) {
	var passes []int
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Observers: []fsdp.Observer{fsdp.TraceFunc(func(e fsdp.Event) {
		if e.Kind == "forward" && e.Call == "wte" {
			passes = append(passes, e.Pass)
		}
	})}})
	for range 2 {
		kit.ForwardBackward(t, t.Context(), m, kit.GoodBatch(0))
		_, err := m.ClipGradNorm(t.Context(), 1)
		require.NoError(t, err)
		_, err = m.Eval(t.Context(), kit.GoodBatch(0)...)
		require.NoError(t, err)
	}
	require.Equal(t, []int{1, 2, 3, 4}, passes)
}

// TestClipLimitsDiffer checks that ranks must mean the same limit.
func TestClipLimitsDiffer(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		_, err := m.ClipGradNorm(ctx, float64(1+g.Rank()))
		require.ErrorContains(t, err, "rank 1 runs ClipGradNorm as call 1 with 2")
		require.ErrorContains(t, err, "rank 0 runs ClipGradNorm as call 1 with 1")
		_, err = m.ClipGradNorm(ctx, 1)
		require.NoError(t, err)
	})
}

// badBuilds are modules whose Build goes wrong, with a part of the message.
var badBuilds = map[string]struct {
	build func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error)
	want  string
}{
	"error":   {func(*fsdp.Builder, []*gorgonia.Node) (gorgonia.Nodes, error) { return nil, errors.New("no such thing") }, "no such thing"},
	"panic":   {func(*fsdp.Builder, []*gorgonia.Node) (gorgonia.Nodes, error) { panic("too many nodes") }, ": too many nodes"},
	"nothing": {func(*fsdp.Builder, []*gorgonia.Node) (gorgonia.Nodes, error) { return nil, nil }, "no outputs"},
	"nil":     {func(*fsdp.Builder, []*gorgonia.Node) (gorgonia.Nodes, error) { return gorgonia.Nodes{nil}, nil }, "output 0 is nil"},
	"no param": {func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		_, err := b.Param("w")
		return in, err
	}, `no parameter "w"`},
	"too wide": {func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		return b.Call("l", &nn.Linear{In: 3, Out: 3}, in[0])
	}, "l: "},
	"elsewhere": {func(*fsdp.Builder, []*gorgonia.Node) (gorgonia.Nodes, error) {
		return gorgonia.Nodes{gorgonia.NewScalar(gorgonia.NewGraph(), tensor.Float32)}, nil
	}, "another graph"},
	"other type": {func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		return gorgonia.Nodes{gorgonia.NewMatrix(b.Graph(), tensor.Float64, gorgonia.WithShape(2, 2))}, nil
	}, "float64"},
	"stray input": {func(b *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		return gorgonia.Nodes{gorgonia.NewTensor(b.Graph(), tensor.Float32, 3, gorgonia.WithShape(2, 3, 8), gorgonia.WithName("stray"))}, nil
	}, "stray"},
}

// TestBadBuilds checks that a Build that goes wrong is an error of the first pass, on every rank,
// that names the call, and nothing worse.
func TestBadBuilds(t *testing.T) {
	for name, c := range badBuilds {
		for world := 1; world <= 2; world++ {
			t.Run(fmt.Sprintf("%s/%d ranks", name, world), func(t *testing.T) {
				for _, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
					m := kit.Wrap(t, kit.Around(&kit.Module{Graph: c.build}), fsdp.Config{Group: g})
					_, err := m.Eval(ctx, kit.GoodBatch(0)...)
					require.ErrorContains(t, err, "call mid")
					_, err = m.Forward(ctx, kit.GoodBatch(0)...)
					return err
				}) {
					require.ErrorContains(t, err, "call mid (*kit.Module): ")
					require.ErrorContains(t, err, c.want)
				}
			})
		}
	}
}

// TestUnusableLoss checks that a loss of several elements, or one that does not exist, is refused
// for training only.
func TestUnusableLoss(t *testing.T) {
	several := kit.Wrap(t, kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		return []fsdp.Ref{t.Call("wte", &nn.Embedding{Rows: kit.TinyVocab, Dim: 8}, in[0])}, nil
	}), fsdp.Config{})
	_, err := several.Forward(t.Context(), kit.GoodBatch(0)[0])
	require.ErrorContains(t, err, "the loss, output 0 of call wte, has shape (2, 3, 8): it must be a single number")
	out, err := several.Eval(t.Context(), kit.GoodBatch(0)[0])
	require.NoError(t, err)
	require.Equal(t, tensor.Shape{2, 3, 8}, out[0].Shape())

	missing := kit.Wrap(t, kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("wte", &nn.Embedding{Rows: kit.TinyVocab, Dim: 8}, in[0])
		return []fsdp.Ref{x.At(1)}, nil
	}), fsdp.Config{})
	_, err = missing.Forward(t.Context(), kit.GoodBatch(0)[0])
	require.ErrorContains(t, err, "result 0 is output 1 of call wte, which has only 1")

	used := kit.Wrap(t, kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("wte", &nn.Embedding{Rows: kit.TinyVocab, Dim: 8}, in[0])
		return []fsdp.Ref{t.Call("lnf", &nn.LayerNorm{Dim: 8}, x.At(2))}, nil
	}), fsdp.Config{})
	_, err = used.Forward(t.Context(), kit.GoodBatch(0)[0])
	require.ErrorContains(t, err, "call lnf: input 0 is output 2 of call wte, which has only 1")
}

// TestContextEndsBeforeAPass checks that a pass does not start under a context that has ended, on
// any rank.
func TestContextEndsBeforeAPass(t *testing.T) {
	gone := errors.New("time for lunch")
	for world := 1; world <= 3; world++ {
		for _, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
			if g.Rank() == 0 {
				var cancel context.CancelCauseFunc
				ctx, cancel = context.WithCancelCause(ctx)
				cancel(gone)
			}
			_, err := m.Forward(ctx, kit.GoodBatch(0)...)
			if world == 1 {
				kit.ForwardBackward(t, t.Context(), m, kit.GoodBatch(0))
			}
			return err
		}) {
			require.ErrorContains(t, err, gone.Error())
			require.ErrorContains(t, err, "rank 0")
		}
	}
}

// TestContextEndsInsideAPass ends the context of one rank in the middle of a pass, at every
// operation in turn, and checks that no rank hangs and all learn why.
func TestContextEndsInsideAPass(t *testing.T) {
	gone := errors.New("time for lunch")
	plan, err := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{WrapPolicy: kit.Blocks}).Plan(kit.GoodBatch(0)...)
	require.NoError(t, err)
	for world := 1; world <= 3; world++ {
		for stop := range len(plan.Schedule) - 1 {
			for _, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
				cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks}
				if g.Rank() == world-1 {
					var cancel context.CancelCauseFunc
					ctx, cancel = context.WithCancelCause(ctx)
					left := stop
					cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(fsdp.Event) {
						if left--; left < 0 {
							cancel(gone)
						}
					}))
				}
				m := kit.Wrap(t, kit.TinyGPT(1), cfg)
				if _, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...); err != nil {
					return err
				}
				if err := m.Backward(ctx); err != nil {
					return err
				}
				_, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true}) // a rank that was done already is told now
				return err
			}) {
				require.ErrorContains(t, err, gone.Error(), "stopped after %s", plan.Schedule[stop])
				require.ErrorContains(t, err, fmt.Sprintf("rank %d", world-1))
			}
		}
	}
}

// TestRankLeavesEarly checks that a rank that is done before the others makes them fail, not wait.
func TestRankLeavesEarly(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	for world := 2; world <= 3; world++ {
		for _, after := range []string{"Wrap", "Forward", "Backward"} {
			errs := make([]error, world)
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
				if after != "Wrap" {
					_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
					require.NoError(t, err)
				}
				if after == "Backward" {
					require.NoError(t, m.Backward(ctx))
				}
				if g.Rank() == 0 {
					return
				}
				if after == "Forward" {
					errs[g.Rank()] = m.Backward(ctx)
				} else {
					_, errs[g.Rank()] = m.Forward(ctx, kit.GoodBatch(g.Rank())...)
				}
			})
			for _, err := range errs[1:] {
				require.ErrorIs(t, err, comm.ErrClosed)
				passes := min(1, len(after)-len("Wrap"))
				require.ErrorContains(t, err, fmt.Sprintf(`rank 0 of group "world" has ended after %d Forwards, but this rank has not: range over Sharded.Join`, passes))
				require.NotContains(t, err.Error(), "group closed")
			}
		}
	}
}
