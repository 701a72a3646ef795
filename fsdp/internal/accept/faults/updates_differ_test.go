package faults_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/optim"
)

// stepping is what a rank does alone after a backward.
type stepping func(t *testing.T, m *fsdp.Sharded, opt optim.Optimizer)

// once steps once.
func once(lr float64) stepping {
	return func(t *testing.T, m *fsdp.Sharded, opt optim.Optimizer) {
		require.NoError(t, opt.Step(lr))
		m.ZeroGrad()
	}
}

// TestUpdatesDiffer has rank 1 of three step otherwise than the others, and reads what all are told
// by the next pass. Loading cures it.
func TestUpdatesDiffer(t *testing.T) {
	adamw := optim.AdamW{WeightDecay: 0.1}.New
	const zeroGrad = ": every rank must make the same calls of Backward, ZeroGrad, ScaleGrads and ClipGradNorm"
	for name, c := range map[string]struct {
		opt  func([]optim.Param) (optim.Optimizer, error)
		step stepping
		call string
		want string
	}{
		"learning rate": {adamw, once(0.0003), "Forward", "rank 0 has AdamW with learning rate 0.001, rank 1 has AdamW with learning rate 0.0003"},
		"kind":          {optim.SGD{}.New, once(0.001), "Forward", "rank 0 has AdamW, rank 1 has SGD"},
		"weight decay":  {optim.AdamW{}.New, once(0.001), "Forward", "rank 0 has AdamW with weight decay 0.1, rank 1 has AdamW with weight decay 0"},
		"betas": {optim.AdamW{WeightDecay: 0.1, Beta2: 0.95}.New, once(0.001), "Forward",
			"rank 0 has AdamW with Beta2 0.999, rank 1 has AdamW with Beta2 0.95"},
		"rules": {optim.AdamW{WeightDecay: 0.1, Rules: []optim.Rule{{
			Match: optim.MatchName(regexp.MustCompile(`^l2`)), LRScale: new(0.5)}}}.New, once(0.001), "Forward",
			"rank 0 has AdamW with LRScale 1, rank 1 has AdamW with LRScale 0.5 (parameter l2.w, 1 in all)"},
		"no step": {adamw, func(_ *testing.T, m *fsdp.Sharded, _ optim.Optimizer) { m.ZeroGrad() }, "Forward",
			"rank 0 has made a step of AdamW since the last pass, but rank 1 has made none: every rank must step"},
		"two steps": {adamw, func(t *testing.T, m *fsdp.Sharded, opt optim.Optimizer) {
			require.NoError(t, opt.Step(0.001))
			once(0.001)(t, m, opt)
		}, "Forward", "rank 0 has AdamW with 2 steps, rank 1 has AdamW with 3 steps"},
		"scaled gradients": {adamw, func(t *testing.T, m *fsdp.Sharded, opt optim.Optimizer) {
			m.ScaleGrads(0.5)
			once(0.001)(t, m, opt)
		}, "Forward", "rank 0 has AdamW with the gradients of one pass, rank 1 has AdamW with the gradients of one pass scaled by 0.5"},
		"no ZeroGrad": {adamw, func(t *testing.T, m *fsdp.Sharded, opt optim.Optimizer) {
			require.NoError(t, opt.Step(0.001))
		}, "Backward", "rank 0 has no gradients, rank 1 has the gradients of one pass" + zeroGrad},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s})
				opt, step := adamw, once(0.001)
				if g.Rank() == 1 {
					opt, step = c.opt, c.step
				}
				usual, err := adamw(m.Params())
				require.NoError(t, err)
				trained := func(opt optim.Optimizer, step stepping) error {
					err := kit.TrainStep(ctx, m, kit.ShapeBatch(g.Rank()))
					if err == nil {
						step(t, m, opt)
					}
					return err
				}
				require.NoError(t, trained(usual, once(0.001)))
				require.NoError(t, m.Save(ctx, dir, usual, nil))
				mine, err := opt(m.Params())
				require.NoError(t, err)
				if name != "kind" {
					require.NoError(t, mine.Restore(1, usual.State()))
				} else if g.Rank() != 1 {
					mine = usual
				}
				require.NoError(t, trained(mine, step))
				want := "fsdp: rank " + string(rune('0'+g.Rank())) + ": " + c.call + ": ranks disagree: " + c.want
				for range 2 { // it stays
					require.EqualError(t, trained(mine, once(0.001)), want)
				}
				_, err = m.Load(ctx, dir, usual, nil)
				require.NoError(t, err)
				require.NoError(t, trained(usual, once(0.001)))
				require.NoError(t, trained(usual, once(0.001)))
			})
		})
	}
}

// TestUpdatesMayComeInAnyOrder has ranks do alone, alike, what may come in another order on each:
// two optimizers over different parameters, ZeroGrad before a forward or after it, and rates that
// round otherwise.
func TestUpdatesMayComeInAnyOrder(t *testing.T) {
	kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Group: g, Precision: kit.Float64s})
		params := m.Params()
		at := slices.IndexFunc(params, func(p optim.Param) bool { return strings.HasPrefix(p.Name, "l2") })
		require.NotEqual(t, -1, at)
		one, err := optim.SGD{}.New(params[at : at+1])
		require.NoError(t, err)
		rest, err := optim.AdamW{}.New(slices.Delete(params, at, at+1))
		require.NoError(t, err)
		both := []optim.Optimizer{one, rest}
		if g.Rank() == 1 {
			slices.Reverse(both)
		}
		for range 3 {
			if g.Rank() == 0 {
				m.ZeroGrad()
			}
			_, err := m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
			m.ZeroGrad()
			require.NoError(t, m.Backward(ctx))
			for _, opt := range both {
				require.NoError(t, opt.Step(0.001*(1+float64(g.Rank())*1e-15)))
			}
			_, err = m.Eval(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
		}
	})
}

// TestTwoGoroutines stops rank 1 in the middle of a forward, and has another goroutine call other
// methods meanwhile: all are refused, and the training goes on as if they had not been called.
func TestTwoGoroutines(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		var in, out chan struct{}
		m := kit.Chain64(t, g, func(c *fsdp.Config) {
			c.Observers = append(c.Observers, fsdp.TraceFunc(func(e fsdp.Event) {
				if in != nil && e.Kind == "forward" {
					close(in)
					<-out
					in = nil
				}
			}))
		})
		params := m.Params()
		opt, err := optim.SGD{Momentum: 0.5}.New(params)
		require.NoError(t, err)
		require.NoError(t, optim.EMA(opt, 0.5))
		entries := opt.State()
		require.NoError(t, kit.TrainStep(ctx, m, kit.ShapeBatch(g.Rank())))
		require.NoError(t, opt.Step(0.1))
		held := m.Hold() // of no Forward
		done := make(chan struct{})
		close(done)
		if g.Rank() == 1 {
			in, out, done = make(chan struct{}), make(chan struct{}), make(chan struct{})
			begun, resume := in, out
			go func() {
				defer close(done)
				defer close(resume)
				<-begun
				dir := t.TempDir()
				for method, call := range map[string]func() error{
					"Any":                func() error { return kit.ErrorOf(m.Any(ctx, false)) },
					"Mean":               func() error { return kit.ErrorOf(m.Mean(ctx, 1)) },
					"GradNorms":          func() error { return kit.ErrorOf(m.GradNorms(ctx, fsdp.L2Norm)) },
					"ParamNorms":         func() error { return kit.ErrorOf(m.ParamNorms(ctx, fsdp.L2Norm)) },
					"SyncGrads":          func() error { return m.SyncGrads(ctx) },
					"NoSync":             func() error { return m.NoSync(func() error { return nil }) },
					"StateDict":          func() error { return kit.ErrorOf(m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})) },
					"OptimStateDict":     func() error { return kit.ErrorOf(m.OptimStateDict(ctx, opt, nil)) },
					"FullGrads":          func() error { return kit.ErrorOf(m.FullGrads(ctx)) },
					"Summon":             func() error { return m.Summon(ctx, nil, nil) },
					"LoadStateDict":      func() error { return m.LoadStateDict(ctx, 0, nil) },
					"LoadOptimStateDict": func() error { return m.LoadOptimStateDict(ctx, 0, opt, nil, nil) },
					"Export":             func() error { return m.Export(ctx, dir+"/x.safetensors", nil) },
					"Import":             func() error { return m.Import(ctx, dir+"/x.safetensors", nil) },
					"Save":               func() error { return m.Save(ctx, dir, opt, nil) },
					"SaveAsync":          func() error { return kit.ErrorOf(m.SaveAsync(ctx, dir, opt, nil)) },
					"Load":               func() error { return kit.ErrorOf(m.Load(ctx, dir, opt, nil)) },
					"AverageBuffers":     func() error { return m.AverageBuffers(ctx) },
					"Freeze":             func() error { return kit.ErrorOf(m.Freeze(ctx, nil, opt)) },
					"Plan":               func() error { return kit.ErrorOf(m.Plan(kit.ShapeBatch(0)...)) },
					"JoinCalls":          func() error { return m.JoinCalls(ctx, nil) },
					"Discard of a Pass":  func() error { return held.Discard(ctx) },
					"Join": func() (err error) {
						for _, err = range m.Join(ctx, fsdp.Batches()) {
						}
						return err
					},
					"Forward":      func() error { return kit.ErrorOf(m.Forward(ctx, kit.ShapeBatch(0)...)) },
					"Backward":     func() error { return m.Backward(ctx) },
					"Eval":         func() error { return kit.ErrorOf(m.Eval(ctx, kit.ShapeBatch(0)...)) },
					"ClipGradNorm": func() error { return kit.ErrorOf(m.ClipGradNorm(ctx, 1)) },
					"Unscale":      func() error { return kit.ErrorOf(m.Unscale(ctx, nil)) },
					"Close":        m.Close,
				} {
					assert.EqualError(t, call(), "fsdp: rank 1: "+method+": another goroutine runs a method of this Sharded, which supports only one at a time")
				}
				for method, call := range optimizerCalls(params, opt, entries) {
					assert.ErrorContains(t, call(), "fsdp: rank 1: "+method+": another goroutine runs a method of this Sharded, which supports only one at a time")
				}
			}()
		}
		require.NoError(t, kit.TrainStep(ctx, m, kit.ShapeBatch(g.Rank())))
		<-done
		require.NoError(t, opt.Step(0.1))
		kit.RequireIdle(t, ctx, m, kit.ShapeBatch(0))
		require.NoError(t, m.Close())
	})
}

// optimizerCalls returns the methods of an optimizer that use the memory of its model, except State.
func optimizerCalls(params []optim.Param, opt optim.Optimizer, entries []optim.Entry) map[string]func() error {
	return map[string]func() error{
		"Step":      func() error { return opt.Step(0.1) },
		"Restore":   func() error { return opt.Restore(1, entries) },
		"Adopt":     func() error { return opt.Adopt(1, entries) },
		"Swap":      func() error { return optim.Swap(opt) },
		"EMA":       func() error { return optim.EMA(opt, 0.5) },
		"New":       func() error { return kit.ErrorOf(optim.AdamW{}.New(params)) },
		"UpdateEMA": func() error { return optim.UpdateEMA(params, params, 0.5) },
	}
}

// TestOptimizersHoldTheModel calls methods of the model, and of another optimizer of it, when an optimizer is in
// the middle of a method: all are refused. The test enters a method by the hook of a vector that it reads.
func TestOptimizersHoldTheModel(t *testing.T) {
	m := kit.Chain64(t, comm.Local(1)[0])
	kit.ForwardBackward(t, t.Context(), m, kit.ShapeBatch(0))
	params := m.Params()
	other, err := optim.SGD{Momentum: 0.5}.New(params)
	require.NoError(t, err)
	require.NoError(t, optim.EMA(other, 0.5))
	entries, tried, at := other.State(), 0, ""
	try := func() {
		const busy = "another goroutine runs a method of this Sharded, which supports only one at a time"
		tried++
		require.EqualError(t, m.Close(), "fsdp: rank 0: Close: "+busy, at)
		require.EqualError(t, kit.ErrorOf(m.Forward(t.Context(), kit.ShapeBatch(0)...)), "fsdp: rank 0: Forward: "+busy, at)
		for method, call := range optimizerCalls(params, other, entries) {
			require.ErrorContains(t, call(), "fsdp: rank 0: "+method+": "+busy, at)
		}
	}
	hooked := slices.Clone(params)
	hooked[0].Alloc = func(n int) (optim.Vec, error) { try(); return params[0].Alloc(n) }
	hooked[0].Updated = func(u optim.Update) { try(); params[0].Updated(u) }
	hooked[0].Swapped = func(in bool) { try(); params[0].Swapped(in) }
	at = "New"
	opt, err := optim.SGD{Momentum: 0.5}.New(hooked)
	require.NoError(t, err)
	at = "EMA"
	require.NoError(t, optim.EMA(opt, 0.5))
	for i := range entries {
		entries[i].Data = &hookedVec{entries[i].Data, try}
	}
	for method, call := range optimizerCalls(hooked, opt, entries) {
		at = method
		if method == "EMA" {
			continue
		}
		before := tried
		require.NoError(t, call(), method)
		require.Greater(t, tried, before, method)
		if method == "Swap" {
			require.NoError(t, call())
		}
	}
	require.NoError(t, m.Close())
}

// A hookedVec is a vector that calls a function before it is read.
type hookedVec struct {
	optim.Vec
	hook func()
}

func (h *hookedVec) Read(to optim.Host) error { h.hook(); return h.Vec.Read(to) }

func (h *hookedVec) Slice(from, to int) optim.Vec { return &hookedVec{h.Vec.Slice(from, to), h.hook} }

// TestOptimizersWithoutMemory uses optimizers whose memory Freeze or Close has given back.
func TestOptimizersWithoutMemory(t *testing.T) {
	m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Offload: fsdp.Offload{Dir: t.TempDir()}, Precision: kit.Float64s})
	makes := func() (params []optim.Param, opt optim.Optimizer, entries []optim.Entry) {
		opt, err := optim.SGD{Momentum: 0.5}.New(m.Params())
		require.NoError(t, err)
		require.NoError(t, optim.EMA(opt, 0.5))
		return m.Params(), opt, opt.State()
	}
	params, opt, entries := makes()
	require.NoError(t, kit.ErrorOf(m.Freeze(t.Context(), nil, opt)))
	for method, call := range optimizerCalls(params, opt, entries) {
		require.ErrorContains(t, call(), "fsdp: rank 0: "+method+": the optimizer was made before Freeze, which has changed the trained parameters: make a new one of Sharded.Params")
	}
	require.Nil(t, opt.State())
	params, opt, entries = makes()
	require.NoError(t, m.Close())
	for method, call := range optimizerCalls(params, opt, entries) {
		require.ErrorContains(t, call(), "fsdp: rank 0: "+method+": the model is closed")
	}
	require.Nil(t, opt.State())
}

// TestCollectiveOnOneRank calls methods on rank 0 while rank 1 has ended: the error says that it is a
// collective, and does not advise a loop over Join.
func TestCollectiveOnOneRank(t *testing.T) {
	for method, call := range map[string]func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error{
		"Save": func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
			return m.Save(kit.OnFS(ctx, crashfs.New()), kit.Ckpt, opt, nil)
		},
		"Load": func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
			return kit.ErrorOf(m.Load(kit.OnFS(ctx, crashfs.New()), kit.Ckpt, opt, nil))
		},
		"StateDict": func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer) error {
			return kit.ErrorOf(m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true}))
		},
		"OptimStateDict": func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
			return kit.ErrorOf(m.OptimStateDict(ctx, opt, nil))
		},
		"Export": func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer) error {
			return m.Export(kit.OnFS(ctx, crashfs.New()), kit.Ckpt, nil)
		},
		"ClipGradNorm": func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer) error {
			return kit.ErrorOf(m.ClipGradNorm(ctx, 1))
		},
		"GradNorms": func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer) error {
			return kit.ErrorOf(m.GradNorms(ctx, fsdp.L2Norm))
		},
		"Any": func(ctx context.Context, m *fsdp.Sharded, _ optim.Optimizer) error {
			return kit.ErrorOf(m.Any(ctx, true))
		},
		"Freeze": func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
			return kit.ErrorOf(m.Freeze(ctx, nil, opt))
		},
	} {
		t.Run(method, func(t *testing.T) {
			require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
				m := kit.Chain64(t, g)
				defer m.Close()
				opt, err := optim.AdamW{}.New(m.Params())
				require.NoError(t, err)
				require.NoError(t, kit.TrainStep(ctx, m, kit.ShapeBatch(g.Rank())))
				if g.Rank() == 1 {
					return g.Close()
				}
				require.EqualError(t, call(ctx, m, opt), "fsdp: rank 0: "+method+`: rank 1 of group "world" has ended, but this rank has not: call `+method+
					" on every rank, because it is a collective. If that rank ended with an error, its error is the cause")
				return nil
			}))
		})
	}
}

// TestMissedMethods calls methods that return no error while another goroutine is in a Save: they do
// nothing, and the next method says so.
func TestMissedMethods(t *testing.T) {
	for method, call := range map[string]func(m *fsdp.Sharded, opt optim.Optimizer){
		"ZeroGrad":   func(m *fsdp.Sharded, _ optim.Optimizer) { m.ZeroGrad() },
		"ScaleGrads": func(m *fsdp.Sharded, _ optim.Optimizer) { m.ScaleGrads(2) },
		"Params":     func(m *fsdp.Sharded, _ optim.Optimizer) { require.Nil(t, m.Params()) },
		"Hold":       func(m *fsdp.Sharded, _ optim.Optimizer) { m.Hold() },
		"State":      func(_ *fsdp.Sharded, opt optim.Optimizer) { require.Nil(t, opt.State()) },
	} {
		t.Run(method, func(t *testing.T) {
			m := kit.Chain64(t, comm.Local(1)[0])
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			kit.ForwardBackward(t, t.Context(), m, kit.ShapeBatch(0))
			before, err := m.FullGrads(t.Context())
			require.NoError(t, err)
			require.NoError(t, m.Save(kit.OnFS(t.Context(), &kit.HookedFS{FS: crashfs.New(), BeforeCreate: func(string) { call(m, opt) }}), kit.Ckpt, nil, nil))
			require.EqualError(t, kit.ErrorOf(m.FullGrads(t.Context())), "fsdp: rank 0: FullGrads: an earlier call of "+method+
				" did nothing: another goroutine runs a method of this Sharded, which supports only one at a time")
			after, err := m.FullGrads(t.Context())
			require.NoError(t, err)
			require.Equal(t, before, after)
			require.NoError(t, m.Close())
		})
	}
}

// TestCloseIsGuarded calls another method when Close has marked the model closed, and the memory is
// still there: it is refused by what no lock protects, without a look at the rest.
func TestCloseIsGuarded(t *testing.T) {
	var m *fsdp.Sharded
	var err error
	defer kit.WhileClosing(func() { _, err = m.Forward(t.Context(), kit.ShapeBatch(0)...) })()
	m = kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Precision: kit.Float64s})
	require.NoError(t, m.Close())
	require.EqualError(t, err, "fsdp: rank 0: Forward: another goroutine runs a method of this Sharded, which supports only one at a time")
	require.ErrorContains(t, m.Backward(t.Context()), "the model is closed")
}
