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
			train := func(load bool, keep int, steps ...int) {
				kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
					logger := slog.New(slog.DiscardHandler)
					if g.Rank() == 0 {
						logger = slog.New(slog.NewTextHandler(&log, nil))
					}
					f := kit.LoggingFiller(t, ctx, g, logger)
					if load {
						_, err := f.Load(ctx, dir, f.Opt, nil)
						require.NoError(t, err)
					}
					for _, step := range steps {
						require.NoError(t, f.SaveAs(ctx, c.asynchronous, dir, step, fsdp.SaveOptions{KeepLast: keep}))
					}
					require.NoError(t, f.Close())
				})
			}
			train(false, 2, 1, 2)
			require.NotContains(t, log.String(), "neither saved nor loaded")
			for _, e := range entries(t, checkpoint.OS(), dir) {
				require.NotEmpty(t, e.Meta["run"])
				if c.old {
					forgetRun(t, e.Path)
				}
			}
			train(c.load, 2, 3, 4, 5)
			require.Equal(t, c.warnings, strings.Count(log.String(), "neither saved nor loaded"), log.String())
			if c.warnings > 0 {
				for _, part := range []string{dir, "000002-step-2", "Load the last one"} {
					require.Contains(t, log.String(), part)
				}
			}
			var steps []int
			for _, e := range entries(t, checkpoint.OS(), dir) {
				steps = append(steps, e.Step)
			}
			require.Equal(t, c.steps, steps)
		})
	}
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
