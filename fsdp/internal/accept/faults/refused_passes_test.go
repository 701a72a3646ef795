package faults_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// lateGroup keeps the works of the all-gathers of one unit while hold is set, so that a test can
// see which are waited for.
type lateGroup struct {
	comm.Group
	hold bool
	held []*lateWork
}

type lateWork struct {
	comm.Work
	waited bool
}

func (w *lateWork) Wait(ctx context.Context) error {
	w.waited = true
	return w.Work.Wait(ctx)
}

func (g *lateGroup) AllGather(dst, src comm.Buffer) comm.Work {
	w := g.Group.AllGather(dst, src)
	if !g.hold {
		return w
	}
	late := &lateWork{Work: w}
	g.held = append(g.held, late)
	return late
}

// TestDiscardWaitsForGathers: a forward without a backward has gathers for the backward in flight,
// and their buffers must not serve anybody else before they are done.
func TestDiscardWaitsForGathers(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		late := &lateGroup{Group: g}
		m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{Group: late, Precision: kit.Float64s, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Prefetch: 2})
		b := kit.TinyBatch(0, g.Rank(), 2, 5)
		want, err := m.Eval(ctx, b...)
		require.NoError(t, err)
		late.hold = true
		_, err = m.Forward(ctx, b...)
		require.NoError(t, err)
		late.hold = false
		unwaited := 0
		for _, w := range late.held {
			if !w.waited {
				unwaited++
			}
		}
		require.Positive(t, unwaited, "with a prefetch depth of 2 there are gathers in flight after a forward")
		got, err := m.Eval(ctx, b...)
		require.NoError(t, err)
		for _, w := range late.held {
			require.True(t, w.waited)
		}
		require.Equal(t, kit.Elements(want[1]), kit.Elements(got[1]))
	})
}

// TestRefusedBackwardCanGoOn skips the steps whose loss is not finite, as a user would.
func TestRefusedBackwardCanGoOn(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s, Prefetch: 3, WrapPolicy: fsdp.WrapEach()})
		good := kit.ShapeBatch(g.Rank())
		kit.ForwardBackward(t, ctx, m, good)
		want := kit.GradBits(t, ctx, m)
		bad := kit.ShapeBatch(g.Rank())
		kit.Elements(bad[0])[0] = math.NaN()
		m.ZeroGrad()
		for range 3 {
			_, err := m.Forward(ctx, bad...)
			require.NoError(t, err)
			require.ErrorContains(t, m.Backward(ctx), "NaN")
		}
		kit.ForwardBackward(t, ctx, m, good)
		kit.RequireSameBits(t, want, kit.GradBits(t, ctx, m), "after the bad steps")
	})
}

// TestEvaluationKeepsTheBuffersOfTraining: a validation between steps neither drops nor multiplies
// buffers.
func TestEvaluationKeepsTheBuffersOfTraining(t *testing.T) {
	m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{})
	ctx, b := t.Context(), kit.TinyBatch(0, 0, 4, 5)
	kit.ForwardBackward(t, ctx, m, b)
	before := m.Memory().Reserved
	for range 10 {
		_, err := m.Eval(ctx, kit.TinyBatch(0, 0, 1, 2)...)
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, m.Memory().Reserved, before)
	for rows := 1; rows < 30; rows++ { // forwards alone forget the shapes they no longer see
		_, err := m.Forward(ctx, kit.TinyBatch(0, 0, rows, 5)...)
		require.NoError(t, err)
	}
	largest := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{})
	kit.ForwardBackward(t, ctx, largest, kit.TinyBatch(0, 0, 30, 5))
	require.Less(t, m.Memory().Reserved, 4*largest.Memory().Reserved)
}

// TestGradientsOfTheUser are added to, whether written after a Backward or after ZeroGrad.
func TestGradientsOfTheUser(t *testing.T) {
	m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Precision: kit.Float64s})
	ctx, b := t.Context(), kit.ShapeBatch(0)
	kit.ForwardBackward(t, ctx, m, b)
	var want []float64
	for _, p := range m.Params() {
		want = append(want, kit.Numbers(t, p.Grad)...)
	}
	m.ZeroGrad()
	for _, p := range m.Params() {
		kit.Edit(t, p.Grad, func(int, float64) float64 { return 1 })
	}
	kit.ForwardBackward(t, ctx, m, b)
	i := 0
	for _, p := range m.Params() {
		for _, g := range kit.Numbers(t, p.Grad) {
			require.InDelta(t, 1+want[i], g, 1e-12)
			i++
		}
	}
}

// TestClipOverflow clips gradients whose squares are beyond float64. A norm that is so itself is
// refused, and they are left alone.
func TestClipOverflow(t *testing.T) {
	m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Precision: kit.Float64s})
	grad := m.Params()[0].Grad.Slice(0, 2)
	require.NoError(t, grad.Write(optim.Host{F64: []float64{3e200, 4e200}}))
	norm, err := m.ClipGradNorm(t.Context(), 1)
	require.NoError(t, err)
	require.InEpsilon(t, 5e200, norm, 1e-15)
	require.InDeltaSlice(t, []float64{0.6, 0.8}, kit.Numbers(t, grad), 1e-15)

	largest := []float64{math.MaxFloat64, -math.MaxFloat64}
	require.NoError(t, grad.Write(optim.Host{F64: largest}))
	_, err = m.ClipGradNorm(t.Context(), 1)
	require.ErrorContains(t, err, "the norm of the gradients overflows")
	require.Equal(t, largest, kit.Numbers(t, grad))
	norm, err = m.ClipGradNorm(t.Context(), math.Inf(1), fsdp.InfNorm)
	require.NoError(t, err, "the largest magnitude is a number")
	require.Equal(t, math.MaxFloat64, norm)
}

// TestClipUnderflow: squares that are below float64 count as well.
func TestClipUnderflow(t *testing.T) {
	m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Precision: kit.Float64s})
	grad := m.Params()[0].Grad.Slice(0, 2)
	require.NoError(t, grad.Write(optim.Host{F64: []float64{3e-200, 4e-200}}))
	norm, err := m.ClipGradNorm(t.Context(), 1)
	require.NoError(t, err)
	require.InEpsilon(t, 5e-200, norm, 1e-15)
	require.Equal(t, []float64{3e-200, 4e-200}, kit.Numbers(t, grad))
}

// TestPanicsOfTheUser become errors: of Init on every rank, of Trace in the middle of a pass.
func TestPanicsOfTheUser(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		bad := &kit.Module{Parameters: []fsdp.Param{{Name: "w", Shape: []int{100}, Init: func(fsdp.Stream, int, []float64) {
			if g.Rank() == 1 {
				panic("no luck")
			}
		}}}, Graph: nil}
		m := kit.Wrap(t, kit.Around(bad), fsdp.Config{Group: g})
		_, err := m.Forward(ctx, kit.TinyBatch(0, g.Rank(), 2, 5)...)
		require.ErrorContains(t, err, "parameter mid.w: Init panicked at ")
		require.ErrorContains(t, err, "no luck")
	})
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		cfg := fsdp.Config{Group: g}
		if g.Rank() == 1 {
			cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(fsdp.Event) { panic("no trace") }))
		}
		m := kit.Wrap(t, kit.TinyGPT(1), cfg)
		_, err := m.Forward(ctx, kit.TinyBatch(0, g.Rank(), 2, 5)...)
		if err == nil { // a rank that was done already is told now
			err = m.Backward(ctx)
		}
		require.ErrorContains(t, err, "no trace")
	})
}

// TestStateAndGradsDoNotMix: the two are different collectives although they move the same bytes.
func TestStateAndGradsDoNotMix(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		var err error
		if g.Rank() == 0 {
			_, err = m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		} else {
			_, err = m.FullGrads(ctx)
		}
		require.ErrorContains(t, err, "rank 0 runs StateDict")
		require.ErrorContains(t, err, "rank 1 runs FullGrads")
	})
}

// TestKeep keeps everything for backward: the same bits, more memory.
func TestKeep(t *testing.T) {
	ctx, b := t.Context(), kit.TinyBatch(0, 0, 4, 5)
	grads := func(cfg fsdp.Config) (kit.Bits, int) {
		m := kit.Wrap(t, kit.TinyGPT(3), cfg)
		kit.ForwardBackward(t, ctx, m, b)
		return kit.GradBits(t, ctx, m), m.Memory().Peak
	}
	want, balanced := grads(fsdp.Config{})
	kept, most := grads(fsdp.Config{Activations: fsdp.Activations{Save: fsdp.WrapEach()}})
	again, least := grads(fsdp.Config{Activations: fsdp.Activations{Recompute: fsdp.WrapEach()}})
	kit.RequireSameBits(t, want, kept)
	kit.RequireSameBits(t, want, again)
	require.Greater(t, most, balanced)
	require.Less(t, least, balanced)
	_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Activations: fsdp.Activations{Save: fsdp.WrapEach(), Recompute: fsdp.WrapTypes(&nn.Block{})}})
	require.ErrorContains(t, err, `call "blocks.0" is selected by both`)
}
