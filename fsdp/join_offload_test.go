//go:build linux || darwin

package fsdp_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// TestJoinOffload trains and evaluates unevenly with memory in files and without, and compares the
// bits.
func TestJoinOffload(t *testing.T) {
	run := func(t *testing.T, change func(c *fsdp.Config, dir string)) (state bits) {
		dir := t.TempDir()
		onRanks(t, 3, func(ctx context.Context, g comm.Group) {
			cfg := fsdp.Config{Group: g, Wrap: blocks, Divide: fsdp.ByActive, Poison: true}
			change(&cfg, dir)
			m := wrap(t, dropoutGPT(), cfg)
			update := updater(t, m, 0.5)
			for batch, err := range m.Join(ctx, batches(2*g.Rank(), func(i int) []fsdp.Tensor { return tinyBatch(i, g.Rank(), 2, 3) })) {
				require.NoError(t, err)
				require.NoError(t, m.NoSync(func() error { return trainStep(ctx, m, batch) }))
				require.NoError(t, trainStep(ctx, m, batch))
				_, err = m.Eval(ctx, batch...)
				require.NoError(t, err)
				update(ctx)
			}
			requireIdle(t, ctx, m, good(0))
			if b := stateBits(t, ctx, m); g.Rank() == 0 {
				state = b
			}
			require.NoError(t, m.Close())
		})
		return state
	}
	want := run(t, func(*fsdp.Config, string) {})
	for name, change := range offloads {
		t.Run(name, func(t *testing.T) { requireSameBits(t, want, run(t, change)) })
	}
}
