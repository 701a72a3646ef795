package faults_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// TestWithoutGroup: ranks that forget to say so each train, and read, everything.
func TestWithoutGroup(t *testing.T) {
	log := kit.CaptureDefault(t)
	alone := func(g comm.Group) error {
		cfg := fsdp.Config{WrapPolicy: kit.Blocks}
		if g != nil {
			cfg.Group = g
		}
		m, err := fsdp.Wrap(kit.TinyGPT(1), cfg)
		if err != nil {
			return err
		}
		of := data.Config{Batch: 2}
		if g != nil {
			of.Group = g
		}
		collate := func(*data.Batch, []int) error { return nil }
		_, err = data.NewLoader(data.Of([]int{1}), collate, of)
		m.Close()
		return err
	}
	require.NoError(t, alone(nil))
	require.NoError(t, comm.Run(t.Context(), 2, func(_ context.Context, g comm.Group) error { return alone(g) }))
	require.Empty(t, log())
	require.NoError(t, comm.Run(t.Context(), 2, func(context.Context, comm.Group) error { return alone(nil) }))
	require.Equal(t, 2, strings.Count(log(), `fsdp: Config.Group is nil, so this rank trains a whole model by itself: `+
		`give it the group of the ranks, or comm.Local(1)[0] if this is intended" but="comm.Run runs 2 ranks in this process"`), log())
	require.Equal(t, 2, strings.Count(log(), "data: Config.Group is nil"), log())

	t.Setenv("RANK", "1")
	t.Setenv("WORLD_SIZE", "4")
	require.NoError(t, alone(nil))
	require.Equal(t, 2, strings.Count(log(), `but="torchrun started this process as rank 1 of 4"`), log())
}

// TestStepWithoutGradients: ZeroGrad before Step trains nothing.
func TestStepWithoutGradients(t *testing.T) {
	log := kit.CaptureDefault(t)
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{WrapPolicy: kit.Blocks})
	defer m.Close()
	opt, err := optim.SGD{}.New(m.Params())
	require.NoError(t, err)
	step := func(between func()) {
		_, err := m.Forward(t.Context(), kit.TinyBatch(0, 0, 1, 4)...)
		require.NoError(t, err)
		require.NoError(t, m.Backward(t.Context()))
		between()
		require.NoError(t, opt.Step(0.1))
	}
	step(func() {})
	m.ZeroGrad()
	step(func() {})
	require.Empty(t, log())
	for range 2 {
		step(m.ZeroGrad)
	}
	require.Equal(t, 1, strings.Count(log(), "fsdp: an optimizer steps without any gradient"), log())
}

// TestJoinDataPanics: the error names the line of the data, not one of the library.
func TestJoinDataPanics(t *testing.T) {
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{})
	defer m.Close()
	said := false
	for batch, err := range m.Join(t.Context(), func(yield func([]fsdp.Tensor, error) bool) {
		yield(kit.TinyBatch(0, 0, 1, 4), nil)
		panic("out of paper")
	}) {
		if batch == nil {
			require.Regexp(t, `the data panicked at \S+/training_warnings_test\.go:\d+: out of paper`, err.Error())
			said = true
		}
	}
	require.True(t, said)
	defer func() {
		err, _ := recover().(error)
		require.ErrorContains(t, err, "cleanup", "what nobody would hear of otherwise")
	}()
	func() {
		for range m.Join(t.Context(), func(yield func([]fsdp.Tensor, error) bool) {
			if !yield(kit.TinyBatch(0, 0, 1, 4), nil) {
				panic("cleanup")
			}
		}) {
			break
		}
	}()
}

// loop trains for some steps as a test says, and returns what rank 0 has warned of.
func loop(t *testing.T, model fsdp.Model, cfg fsdp.Config, steps int, step func(m *fsdp.Sharded, opts []optim.Optimizer, i int), pick ...func(optim.Param) bool) string {
	log := kit.CaptureDefault(t)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		cfg := cfg
		cfg.Group = g
		m := kit.Wrap(t, model, cfg)
		defer m.Close()
		var opts []optim.Optimizer
		for _, p := range pick {
			params := slices.DeleteFunc(m.Params(), func(q optim.Param) bool { return !p(q) })
			opt, err := optim.SGD{}.New(params)
			require.NoError(t, err)
			opts = append(opts, opt)
		}
		for i := range steps {
			_, err := m.Forward(ctx, kit.TinyBatch(i, g.Rank(), 1, 4)...)
			require.NoError(t, err)
			step(m, opts, i)
		}
	})
	return log()
}

// TestLoopsThatTrainNothing makes mistakes that no single call shows. Each is one warning with numbers,
// and none comes from loops that are right.
func TestLoopsThatTrainNothing(t *testing.T) {
	all := func(optim.Param) bool { return true }
	but := func(p optim.Param) bool { return p.Name != "wte.weight" }
	usual := func(m *fsdp.Sharded, opts []optim.Optimizer, _ int) {
		require.NoError(t, m.Backward(t.Context()))
		for _, opt := range opts {
			require.NoError(t, opt.Step(0.1))
		}
		m.ZeroGrad()
	}
	rate := func(lr func(i int) float64) func(*fsdp.Sharded, []optim.Optimizer, int) {
		return func(m *fsdp.Sharded, opts []optim.Optimizer, i int) {
			require.NoError(t, m.Backward(t.Context()))
			require.NoError(t, opts[0].Step(lr(i)))
			m.ZeroGrad()
		}
	}
	turns := func(m *fsdp.Sharded, opts []optim.Optimizer, i int) {
		require.NoError(t, m.Backward(t.Context()))
		require.NoError(t, opts[i%2].Step(0.1))
		m.ZeroGrad()
	}
	forgets := func(m *fsdp.Sharded, opts []optim.Optimizer, _ int) {
		require.NoError(t, m.Backward(t.Context()))
		require.NoError(t, opts[0].Step(0.1))
	}
	decays := func(m *fsdp.Sharded, opts []optim.Optimizer, i int) {
		forgets(m, opts, i)
		m.ScaleGrads(0.5)
	}
	accumulates := func(m *fsdp.Sharded, opts []optim.Optimizer, i int) {
		require.NoError(t, m.Backward(t.Context()))
		if i%4 == 3 {
			require.NoError(t, opts[0].Step(0.1))
			m.ZeroGrad()
		}
	}
	twice := func(m *fsdp.Sharded, opts []optim.Optimizer, _ int) {
		require.NoError(t, m.Backward(t.Context()))
		require.NoError(t, opts[0].Step(0.1))
		require.NoError(t, opts[0].Step(0.1))
		m.ZeroGrad()
	}
	never := func(m *fsdp.Sharded, _ []optim.Optimizer, _ int) {
		require.NoError(t, m.Backward(t.Context()))
		m.ZeroGrad()
	}
	given := func(opts ...fsdp.BackwardOption) func(*fsdp.Sharded, []optim.Optimizer, int) {
		return func(m *fsdp.Sharded, o []optim.Optimizer, _ int) {
			require.NoError(t, m.Backward(t.Context(), opts...))
			require.NoError(t, o[0].Step(0.1))
			m.ZeroGrad()
		}
	}
	frozen := func(string) bool { return true }
	sums := fsdp.Config{GradAverage: fsdp.ByOne}
	type picks = []func(optim.Param) bool
	for name, c := range map[string]struct {
		cfg  fsdp.Config
		step func(*fsdp.Sharded, []optim.Optimizer, int)
		pick picks
		want string // "" for no warning
	}{
		"usual":            {fsdp.Config{}, usual, picks{all}, ""},
		"one misses":       {fsdp.Config{}, usual, picks{but}, `no optimizer updates some parameters that have gradients.* steps=3 parameters=\[wte.weight\]`},
		"two":              {fsdp.Config{}, usual, picks{all, all}, `a parameter was updated by two optimizers since the last Forward: each parameter belongs in one" parameter=wte.weight`},
		"turns":            {fsdp.Config{}, turns, picks{but, func(p optim.Param) bool { return !but(p) }}, ""},
		"no ZeroGrad":      {fsdp.Config{}, forgets, picks{all}, "no ZeroGrad between steps.* steps=3 passes=3"},
		"steps twice":      {fsdp.Config{}, twice, picks{all}, "a Step applies gradients that an earlier Step has applied.* steps=2 passes=1"},
		"no steps":         {fsdp.Config{}, never, picks{all}, "ZeroGrad has dropped the gradients of all steps so far, but no optimizer of this model has stepped.* steps=8"},
		"decays":           {fsdp.Config{}, decays, picks{all}, ""},
		"accumulates":      {fsdp.Config{}, accumulates, picks{all}, ""},
		"rate 0":           {fsdp.Config{}, rate(func(int) float64 { return 0 }), picks{all}, `optimizers step with a learning rate of 0, which trains nothing" "steps in a row"=3`},
		"warmup":           {fsdp.Config{}, rate(func(i int) float64 { return float64(i) }), picks{all}, ""},
		"all frozen":       {fsdp.Config{Frozen: frozen}, usual, nil, "Backward has nothing to do: all parameters are frozen.* parameters=17"},
		"sums":             {sums, usual, picks{all}, "Config.GradAverage is ByOne, but Backward has neither Share nor Scale.* ranks=2"},
		"sums that scale":  {sums, given(fsdp.Scale(0.5)), picks{all}, ""},
		"sums, as is said": {sums, given(fsdp.Scale(1)), picks{all}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			log := loop(t, kit.TinyGPT(1), c.cfg, 8, c.step, c.pick...)
			if c.want == "" {
				require.Empty(t, log)
				return
			}
			require.Equal(t, 1, strings.Count(log, "\n"), log)
			require.Regexp(t, c.want, log)
		})
	}
}

// TestStepBeforeTheLastBatch warns once if an optimizer steps before all batches of Share had a Backward.
func TestStepBeforeTheLastBatch(t *testing.T) {
	for early, want := range []string{"", "an optimizer steps before the Backward of all batches that Share has for the step.* batches=2 passes=1"} {
		log := kit.CaptureDefault(t)
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
			defer m.Close()
			opt, err := optim.SGD{}.New(m.Params())
			require.NoError(t, err)
			for i := range 3 {
				batches := [][]fsdp.Tensor{kit.TinyBatch(2*i, g.Rank(), 1, 4), kit.TinyBatch(2*i+1, g.Rank(), 1, 4)}
				for k, batch := range batches {
					_, err := m.Forward(ctx, batch...)
					require.NoError(t, err)
					require.NoError(t, m.Backward(ctx, fsdp.Share(batches...)))
					if k+early >= 1 {
						require.NoError(t, opt.Step(0.1))
						m.ZeroGrad()
					}
				}
			}
		})
		if want == "" {
			require.Empty(t, log())
			continue
		}
		require.Equal(t, 1, strings.Count(log(), "\n"), log())
		require.Regexp(t, want, log())
	}
}

// TestNoTargets warns once on each rank that has a batch of which no target counts.
func TestNoTargets(t *testing.T) {
	log := kit.CaptureDefault(t)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		defer m.Close()
		for range 3 {
			for _, batch := range [][]fsdp.Tensor{kit.Masked(0, 2), kit.Masked(2*g.Rank(), 0)} {
				_, err := m.Forward(ctx, batch...)
				require.NoError(t, err)
				require.NoError(t, m.Backward(ctx, fsdp.Share(batch)))
			}
		}
	})
	require.Equal(t, 1, strings.Count(log(), "\n"), log())
	require.Contains(t, log(), `rank=0 pass=2 targets="batch tensor 1 (targets)" of=12`)
}

// TestRuleMatchesNothing warns once on rank 0.
func TestRuleMatchesNothing(t *testing.T) {
	log := kit.CaptureDefault(t)
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
		defer m.Close()
		rules := []optim.Rule{optim.NoDecay(), {Match: optim.MatchName(regexp.MustCompile("bais$")), WeightDecay: new(0.0)}}
		_, err := optim.AdamW{Rules: rules}.New(m.Params())
		require.NoError(t, err)
	})
	require.Equal(t, 1, strings.Count(log(), "\n"), log())
	require.Contains(t, log(), "fsdp: adamw: rule 1 matches none of the 17 parameters, such as wte.weight: it changes nothing")
}
