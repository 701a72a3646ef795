package state_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
)

// TestSaveBesideAnotherTraining saves into a directory of another training without loading: that is
// one warning on rank 0, and KeepLast leaves the other checkpoints in place. A training that loads
// one of them first takes them over, as a resumed training does.
func TestSaveBesideAnotherTraining(t *testing.T) {
	for name, c := range map[string]struct {
		load, asynchronous, old bool
		warnings                int
		steps                   []int
	}{
		"without a load":                {warnings: 1, steps: []int{1, 2, 4, 5}},
		"in the background":             {asynchronous: true, warnings: 1, steps: []int{1, 2, 4, 5}},
		"after a load":                  {load: true, steps: []int{4, 5}},
		"of an earlier version":         {old: true, warnings: 1, steps: []int{1, 2, 4, 5}},
		"of an earlier version, loaded": {old: true, load: true, steps: []int{4, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var log bytes.Buffer
			train := func(from string, steps ...int) {
				trainAndSave(t, &log, from, func(ctx context.Context, f *kit.Filler) {
					for _, step := range steps {
						require.NoError(t, f.SaveAs(ctx, c.asynchronous, dir, step, fsdp.SaveOptions{KeepLast: 2}))
					}
				})
			}
			train("", 1, 2)
			require.NotContains(t, log.String(), "neither saved nor loaded")
			for _, e := range entries(t, checkpoint.OS(), dir) {
				require.NotEmpty(t, e.Meta["run"])
				if c.old {
					forgetRun(t, e.Path)
				}
			}
			from := ""
			if c.load {
				from = dir
			}
			train(from, 3, 4, 5)
			require.Equal(t, c.warnings, strings.Count(log.String(), "neither saved nor loaded"), log.String())
			if c.warnings > 0 {
				for _, part := range []string{dir, "000002-step-2", "Load the last one"} {
					require.Contains(t, log.String(), part)
				}
			}
			require.Equal(t, c.steps, stepsIn(t, dir))
		})
	}
}

// TestForksInOneDirectory has two trainings load the same checkpoint and save in a third directory:
// the second one warns, and its KeepLast leaves the checkpoints of the first one in place. A
// training that resumes does neither, also if it saves in several directories.
func TestForksInOneDirectory(t *testing.T) {
	root := t.TempDir()
	base, common, best := filepath.Join(root, "base"), filepath.Join(root, "common"), filepath.Join(root, "best")
	var log bytes.Buffer
	train := func(from string, step int, dirs ...string) {
		trainAndSave(t, &log, from, func(ctx context.Context, f *kit.Filler) {
			for _, dir := range dirs {
				require.NoError(t, f.Save(ctx, dir, f.Opt, &fsdp.SaveOptions{Step: step, KeepLast: 1}))
			}
		})
	}
	train("", 1, base)
	train(base, 2, common, best)
	train(common, 3, best, common)
	train(filepath.Join(common, "000002-step-3"), 4, common, best)
	require.NotContains(t, log.String(), "neither saved nor loaded")
	require.Equal(t, []int{4}, stepsIn(t, common))
	require.Equal(t, []int{4}, stepsIn(t, best))

	train(base, 5, common)
	require.Equal(t, 1, strings.Count(log.String(), "neither saved nor loaded"), log.String())
	require.Contains(t, log.String(), "000003-step-4")
	require.Equal(t, []int{4, 5}, stepsIn(t, common))
	require.Equal(t, []int{1}, stepsIn(t, base))
}

// TestLoadOfABaseDuringATraining loads another checkpoint into a training that has saved. It then is
// a new training in its directory, too: its checkpoints do not have the name of the loaded one.
func TestLoadOfABaseDuringATraining(t *testing.T) {
	base, dir := t.TempDir(), t.TempDir()
	var log bytes.Buffer
	save := func(dir string, step int) func(context.Context, *kit.Filler) {
		return func(ctx context.Context, f *kit.Filler) {
			require.NoError(t, f.Save(ctx, dir, f.Opt, &fsdp.SaveOptions{Step: step}))
		}
	}
	trainAndSave(t, &log, "", save(base, 1))
	trainAndSave(t, &log, "", func(ctx context.Context, f *kit.Filler) {
		save(dir, 2)(ctx, f)
		_, err := f.Load(ctx, base, f.Opt, nil)
		require.NoError(t, err)
		save(dir, 3)(ctx, f)
	})
	require.NotContains(t, log.String(), "neither saved nor loaded")
	trainAndSave(t, &log, base, save(dir, 4))
	require.Equal(t, 1, strings.Count(log.String(), "neither saved nor loaded"), log.String())
}

// trainAndSave has two ranks load the last checkpoint in from, unless it is "", and save. Rank 0
// logs to log.
func trainAndSave(t *testing.T, log *bytes.Buffer, from string, save func(ctx context.Context, f *kit.Filler)) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		logger := slog.New(slog.DiscardHandler)
		if g.Rank() == 0 {
			logger = slog.New(slog.NewTextHandler(log, nil))
		}
		f := kit.LoggingFiller(t, ctx, g, logger)
		if from != "" {
			_, err := f.Load(ctx, from, f.Opt, nil)
			require.NoError(t, err)
		}
		save(ctx, f)
		require.NoError(t, f.Close())
	})
}

// stepsIn returns the steps of the checkpoints in dir.
func stepsIn(t *testing.T, dir string) (steps []int) {
	for _, e := range entries(t, checkpoint.OS(), dir) {
		steps = append(steps, e.Step)
	}
	return steps
}

// forgetRun makes a checkpoint one of an earlier version, which did not name the training.
func forgetRun(t *testing.T, path string) {
	path = filepath.Join(path, checkpoint.ManifestName)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	m, err := checkpoint.Decode(text)
	require.NoError(t, err)
	delete(m.Meta, "run")
	require.NotContains(t, m.Meta, "run")
	text, err = m.Encode()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// TestFreezeDuringAWarning changes the configuration of a model while a save in the background
// warns: the race detector finds no access to the configuration by the save.
func TestFreezeDuringAWarning(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	trainAndSave(t, &log, "", func(ctx context.Context, f *kit.Filler) {
		require.NoError(t, f.Save(ctx, dir, f.Opt, nil))
	})
	trainAndSave(t, &log, "", func(ctx context.Context, f *kit.Filler) {
		saving, err := f.SaveAsync(ctx, dir, f.Opt, nil)
		require.NoError(t, err)
		_, err = f.Freeze(ctx, nil, f.Opt)
		require.NoError(t, err)
		require.NoError(t, saving.Wait(ctx))
	})
	require.Contains(t, log.String(), "neither saved nor loaded")
}
