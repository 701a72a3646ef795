package faults_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
	"github.com/gofsdp/gofsdp/optim"
)

// TestCloseWhileStateMoves closes the model, whose shards lie in files that are mapped, while another
// goroutine saves, exports or collects it: Close is refused, and the method ends as if nothing had been.
func TestCloseWhileStateMoves(t *testing.T) {
	for method, call := range map[string]func(ctx context.Context, m *fsdp.Sharded, path string) error{
		"Save": func(ctx context.Context, m *fsdp.Sharded, path string) error {
			return m.Save(ctx, path, nil, nil)
		},
		"Export": func(ctx context.Context, m *fsdp.Sharded, path string) error {
			return m.Export(ctx, path, nil)
		},
	} {
		t.Run(method, func(t *testing.T) {
			m := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{Offload: fsdp.Offload{Dir: t.TempDir()}})
			tried := 0
			require.NoError(t, call(kit.OnFS(t.Context(), &kit.HookedFS{FS: checkpoint.OS(), BeforeCreate: func(string) {
				tried++
				require.EqualError(t, m.Close(), "fsdp: rank 0: Close: another goroutine runs a method of this Sharded, which supports only one at a time")
			}}), m, filepath.Join(t.TempDir(), "x")))
			require.NotZero(t, tried)
			require.NoError(t, m.Close())
		})
	}
}

// TestTwoGoroutinesAtRandom has two goroutines call random methods of one model. Each call succeeds or
// is refused, with the error of a second goroutine or the advice of the model's state. Run it under -race.
func TestTwoGoroutinesAtRandom(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		ctx := context.Background()
		m := kit.Wrap(r, kit.Shapes["chain"], fsdp.Config{Offload: fsdp.Offload{Dir: dir}, Precision: kit.Float64s, Logger: slog.New(slog.DiscardHandler)})
		disk := kit.OnFS(ctx, crashfs.New())
		params := m.Params()
		opt, err := optim.SGD{Momentum: 0.5}.New(params)
		require.NoError(r, err)
		require.NoError(r, optim.EMA(opt, 0.5))
		entries, err := m.OptimStateDict(ctx, opt, nil)
		require.NoError(r, err)
		methods := []func() error{
			func() error { return kit.ErrorOf(m.Forward(ctx, kit.ShapeBatch(0)...)) },
			func() error { return m.Backward(ctx) },
			func() error { return kit.ErrorOf(m.Eval(ctx, kit.ShapeBatch(0)...)) },
			func() error { return m.Save(disk, kit.Ckpt, opt, nil) },
			func() error { return kit.ErrorOf(m.SaveAsync(disk, kit.Ckpt, opt, nil)) },
			func() error { return kit.ErrorOf(m.Load(disk, kit.Ckpt, opt, nil)) },
			func() error { return m.LoadOptimStateDict(ctx, 0, opt, entries, nil) },
			func() error { return m.Export(ctx, filepath.Join(dir, "x"), nil) },
			func() error { return kit.ErrorOf(m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})) },
			func() error { return kit.ErrorOf(m.FullGrads(ctx)) },
			func() error { return kit.ErrorOf(m.ClipGradNorm(ctx, 1)) },
			func() error { return kit.ErrorOf(m.ParamNorms(ctx, fsdp.L2Norm)) },
			func() error { return kit.ErrorOf(m.Plan(kit.ShapeBatch(0)...)) },
			func() error { return kit.ErrorOf(m.Freeze(ctx, nil, nil)) },
			func() error { return m.NoSync(func() error { return m.Backward(ctx) }) },
			func() error { m.ZeroGrad(); m.ScaleGrads(0.5); m.Params(); return nil },
			func() error { return m.Hold().Discard(ctx) },
			func() error {
				return m.Summon(ctx, nil, func(map[string]*tensor.Dense) error { return nil }, fsdp.WriteBack(0))
			},
			func() error { return m.Close() },
			func() error { opt.State(); return nil },
		}
		for _, call := range optimizerCalls(params, opt, entries.Entries()) {
			methods = append(methods, call)
		}
		var two sync.WaitGroup
		for _, plan := range rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, len(methods)-1), 1, 12), 2, 2).Draw(r, "calls") {
			two.Go(func() {
				for _, i := range plan {
					if err := methods[i](); err != nil {
						assert.NotContains(t, err.Error(), "panic")
					}
				}
			})
		}
		two.Wait()
		for m.Close() != nil { // the first Close reports a missed call, or the error of SaveAsync
		}
	})
}
