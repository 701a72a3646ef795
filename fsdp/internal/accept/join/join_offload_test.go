//go:build linux || darwin

package join_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// TestJoinOffload trains and evaluates unevenly with memory in files and without, and compares the
// bits.
func TestJoinOffload(t *testing.T) {
	kit.Needs(t, kit.Processor)
	run := func(t *testing.T, change func(c *fsdp.Config, dir string)) (state kit.Bits) {
		dir := t.TempDir()
		kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
			cfg := fsdp.Config{Group: g, WrapPolicy: kit.Blocks, GradAverage: fsdp.ByActive, Poison: true}
			change(&cfg, dir)
			m := kit.Wrap(t, kit.DropoutGPT(), cfg)
			update := kit.Updater(t, m, 0.5)
			for batch, err := range m.Join(ctx, kit.Batches(2*g.Rank(), func(i int) []fsdp.Tensor { return kit.TinyBatch(i, g.Rank(), 2, 3) })) {
				require.NoError(t, err)
				require.NoError(t, m.NoSync(func() error { return kit.TrainStep(ctx, m, batch) }))
				require.NoError(t, kit.TrainStep(ctx, m, batch))
				_, err = m.Eval(ctx, batch...)
				require.NoError(t, err)
				update(ctx)
			}
			kit.RequireIdle(t, ctx, m, kit.GoodBatch(0))
			if b := kit.StateBits(t, ctx, m); g.Rank() == 0 {
				state = b
			}
			require.NoError(t, m.Close())
		})
		return state
	}
	want := run(t, func(*fsdp.Config, string) {})
	for name, change := range kit.Offloads {
		t.Run(name, func(t *testing.T) { kit.RequireSameBits(t, want, run(t, change)) })
	}
}
