package monitor_test

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/monitor"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/text"
)

// TestProfile has a run show who holds up whom, and itself beside a prediction whose links are far
// too slow.
func TestProfile(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		prof := profile.New()
		m, err := fsdp.Wrap(&nn.GPT{Vocab: 10, Context: length, Layers: 1, Dim: 16, Heads: 2}, fsdp.Config{Group: g, Observers: []fsdp.Observer{fsdp.Profile(prof), fsdp.TraceDir(dir)}})
		if err != nil {
			return err
		}
		cluster := plan.Clusters()["h100"]
		cluster.Inside.Latency = 1000
		var mon *monitor.Monitor
		for batch, err := range counting(20) {
			if err != nil {
				return err
			}
			if mon == nil {
				p, err := m.Plan(batch...)
				if err != nil {
					return err
				}
				cfg := monitor.Config{Group: g, Model: m, Steps: 20, Plan: p, Profile: prof, Cluster: cluster}
				if g.Rank() == 0 {
					cfg.Out = &out
				}
				if mon, err = monitor.New(cfg); err != nil {
					return err
				}
			}
			loss, err := m.Forward(ctx, batch...)
			if err != nil {
				return err
			}
			if err := m.Backward(ctx); err != nil {
				return err
			}
			if err := mon.Step(ctx, length, monitor.Values{"loss": loss}); err != nil {
				return err
			}
		}
		if err := mon.Close(); err != nil {
			return err
		}
		return m.Close()
	}))
	said := out.String()
	require.Equal(t, 10, strings.Count(said, "Waiting for transfers takes"), said)
	require.Equal(t, 10, strings.Count(said, "predicted for h100"), said)
	require.Contains(t, said, "ranks, 1 passes\n", "those since the first")
	require.Contains(t, said, "ranks, 2 passes\n")
	require.Regexp(t, `Furthest off:\n  (wait|drain) `, said)
	require.Equal(t, 1, strings.Count(said, "The trace shows the predicted pass next to the real one:\n"+dir))
	require.Empty(t, text.Wider(strings.ReplaceAll(said, dir, ""), 80))
	files, err := filepath.Glob(filepath.Join(dir, "*.predicted.pftrace"))
	require.NoError(t, err)
	require.Len(t, files, 1)

	_, err = monitor.New(monitor.Config{Cluster: plan.Clusters()["h100"]})
	require.ErrorContains(t, err, "Cluster is set without Profile and Plan")
}
