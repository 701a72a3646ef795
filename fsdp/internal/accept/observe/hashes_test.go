package observe_test

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/hashes"
	"github.com/gofsdp/gofsdp/optim"
)

// A recorded is a short training whose hashes are recorded.
type recorded struct {
	ranks  int
	cfg    fsdp.Config
	lr     float64 // of the last but one step
	batch  int     // in the last step, rank 1 has the batch of another step
	lone   bool    // a Forward without a Backward begins each step
	resume string  // a directory of checkpoints to go on from, or to leave one in
}

// train runs steps [from, to) and returns the directory of hashes.
func (r recorded) train(t *testing.T, from, to int) string {
	dir := filepath.Join(t.TempDir(), "hashes")
	kit.OnRanks(t, r.ranks, func(ctx context.Context, g comm.Group) {
		cfg := r.cfg
		cfg.Group, cfg.WrapPolicy, cfg.Observers = g, kit.Blocks, []fsdp.Observer{fsdp.HashDir(dir)}
		m := kit.Wrap(t, kit.TinyGPT(2), cfg)
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		if from > 0 {
			_, err := m.Load(ctx, r.resume, opt, nil)
			require.NoError(t, err)
		}
		for step := from; step < to; step++ {
			virtual := cmp.Or(cfg.VirtualRanks, 2*r.ranks)
			micros := (virtual + r.ranks - 1) / r.ranks
			for k := range micros {
				at, leaf := step, k*r.ranks+g.Rank()
				if step == to-1 && leaf == 2*r.ranks-1 {
					at += r.batch
				}
				batch := kit.TinyBatch(at, leaf, 2, 4)
				_, err := m.Eval(ctx, batch...) // which is not recorded
				require.NoError(t, err)
				if leaf >= virtual {
					batch = nil
				}
				if r.lone && k == 0 {
					_, err := m.Forward(ctx, batch...)
					require.NoError(t, err)
				}
				kit.ForwardBackward(t, ctx, m, batch)
			}
			lr := 0.01
			if step == to-2 && r.lr > 0 {
				lr = r.lr
			}
			require.NoError(t, opt.Step(lr))
			m.ZeroGrad()
		}
		if from == 0 && r.resume != "" {
			require.NoError(t, m.Save(ctx, r.resume, opt, nil))
		}
		require.NoError(t, m.Close())
	})
	runs, err := hashes.Runs(dir) // other tests have wrapped models before
	require.NoError(t, err)
	require.Len(t, runs, 1)
	return filepath.Join(dir, runs[0])
}

func compareHashes(t *testing.T, a, b string) *hashes.Report {
	x, err := hashes.Open(a)
	require.NoError(t, err)
	defer x.Close()
	y, err := hashes.Open(b)
	require.NoError(t, err)
	defer y.Close()
	r, err := hashes.Compare(x, y)
	require.NoError(t, err)
	return r
}

// TestHashDir compares runs by their hashes: those that must be the same, however they are sharded,
// and those in which something was planted.
func TestHashDir(t *testing.T) {
	a := recorded{ranks: 2}.train(t, 0, 4)
	for name, cfg := range map[string]fsdp.Config{
		"whole":        {Strategy: fsdp.NoShard},
		"checkpointed": {Activations: fsdp.Activations{Recompute: kit.Blocks}, Prefetch: 3},
	} {
		r := compareHashes(t, a, recorded{ranks: 2, cfg: cfg}.train(t, 0, 4))
		require.Equal(t, 4, r.Steps, "%s: %v", name, r.Differences)
		require.Greater(t, r.Same, 4*2*28, name) // parameters, gradients
	}

	whole := compareHashes(t, a, a)
	r := compareHashes(t, a, recorded{ranks: 2, lone: true}.train(t, 0, 4))
	require.Equal(t, whole, r, "a Forward without a Backward hides nothing")

	r = compareHashes(t, a, recorded{ranks: 2, lr: 0.011}.train(t, 0, 4))
	require.Equal(t, 3, r.Steps)
	require.Equal(t, hashes.Param, r.Differences[0].Kind, "all that was computed until then is the same")

	r = compareHashes(t, a, recorded{ranks: 2, batch: 1}.train(t, 0, 4))
	require.Equal(t, 3, r.Steps)
	require.Equal(t, "micro-batch 3: tensor 0 of the batch", r.Differences[0].String())
	require.Equal(t, hashes.Grad, r.Differences[1].Kind)

	left := t.TempDir()
	recorded{ranks: 2, resume: left}.train(t, 0, 2)
	r = compareHashes(t, a, recorded{ranks: 2, resume: left}.train(t, 2, 4))
	require.Equal(t, [2]int{2, 2}, [2]int{r.First, r.Steps}, r.Differences)
	require.Empty(t, r.Differences)

	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) { // no directory
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o666))
		_, err := fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Group: g, Observers: []fsdp.Observer{fsdp.HashDir(file)}})
		require.ErrorContains(t, err, "HashDir of Config.Observers: ")
		require.ErrorContains(t, err, "not a directory")
	})
}

// TestVirtualRanksHashDir compares runs of other numbers of ranks.
func TestVirtualRanksHashDir(t *testing.T) {
	a := recorded{ranks: 4, cfg: fsdp.Config{VirtualRanks: 8}}
	want := a.train(t, 0, 3)
	for _, ranks := range []int{1, 2, 3, 8} {
		b := a
		b.ranks = ranks
		r := compareHashes(t, want, b.train(t, 0, 3))
		require.Equal(t, 3, r.Steps, "%d ranks: %v", ranks, r.Differences)
		require.Empty(t, r.Unlike)
		require.Greater(t, r.Same, 3*8*10, "calls of 8 micro-batches")
	}
}

// TestObserversOfNothing adds observers without a value, such as the flag of a directory that was
// not given: they do not replace the others of their kind.
func TestObserversOfNothing(t *testing.T) {
	traces, records, prof := t.TempDir(), t.TempDir(), profile.New()
	m, err := fsdp.Wrap(kit.Shapes["chain"], fsdp.Config{Precision: kit.Float64s, Group: comm.Local(1)[0], Observers: []fsdp.Observer{
		fsdp.TraceDir(traces), fsdp.HashDir(records), fsdp.Profile(prof), fsdp.TraceDir(""), fsdp.HashDir(""), fsdp.Profile(nil),
	}})
	require.NoError(t, err)
	kit.ForwardBackward(t, t.Context(), m, kit.ShapeBatch(0))
	require.NoError(t, m.Close())
	for _, dir := range []string{traces, records} {
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.NotEmpty(t, files)
	}
	require.Equal(t, 1, prof.Totals().Size, "it has the model")
}
