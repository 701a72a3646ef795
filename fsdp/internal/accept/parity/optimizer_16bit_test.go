package parity_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// sixteenBits are optimizers whose state has 16 bits, and the same with 32.
var sixteenBits = map[string]struct{ narrow, wide optimizer }{
	"AdamW": {optim.AdamW{WeightDecay: 0.1, Rules: allIn16}, optim.AdamW{WeightDecay: 0.1}},
	"SGD":   {optim.SGD{Momentum: 0.9, Rules: allIn16}, optim.SGD{Momentum: 0.9}},
}

var allIn16 = []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: new(16)}}

// TestSixteenBitsSameBits trains on 1, 2 and 4 ranks with every strategy, near and out of reach. Each
// run is interrupted: its state goes on from a checkpoint on 3 ranks. Values and state have the same
// bits as on one rank. In between, an optimizer with 32 bits loads the state and saves it again.
func TestSixteenBitsSameBits(t *testing.T) {
	for name, c := range sixteenBits {
		var want kit.Bits
		train := func(t *testing.T, world int, cfg func(world int) fsdp.Config) {
			dir, all := t.TempDir(), kit.Bits(nil)
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				m, opt := eight(t, g, cfg(world), c.narrow)
				makeSteps(t, m, opt, 0, 3)
				v, err := m.SaveAsync(ctx, dir, opt, nil)
				require.NoError(t, err)
				makeSteps(t, m, opt, 3, 6)
				require.NoError(t, v.Wait(ctx))
				state := kit.StateOfAll(t, ctx, m, opt)
				if g.Rank() == 0 {
					all = state
				}
				require.NoError(t, m.Close())
			})
			if want == nil {
				want = all
			}
			kit.RequireSameBits(t, want, all, "in one run")
			kit.OnRanks(t, 3, func(ctx context.Context, g comm.Group) {
				m, wide := eight(t, g, fsdp.Config{}, c.wide)
				_, err := m.Load(ctx, dir, wide, nil)
				require.NoError(t, err)
				require.NoError(t, m.Save(ctx, filepath.Join(dir, "wide"), wide, nil))
				require.NoError(t, m.Close())
				again, opt := eight(t, g, fsdp.Config{}, c.narrow)
				_, err = again.Load(ctx, filepath.Join(dir, "wide"), opt, nil)
				require.NoError(t, err)
				makeSteps(t, again, opt, 3, 6)
				kit.RequireSameBits(t, want, kit.StateOfAll(t, ctx, again, opt), "on 3 ranks, through 32 bits")
				require.NoError(t, again.Close())
			})
		}
		t.Run(name, func(t *testing.T) {
			train(t, 1, func(int) fsdp.Config { return fsdp.Config{} })
			train(t, 2, func(int) fsdp.Config { return fsdp.Config{WrapPolicy: fsdp.WrapEach()} })
			for _, far := range []bool{false, true} {
				for _, spread := range kit.Spreads {
					t.Run(spread.Name, func(t *testing.T) {
						if far {
							defer kit.UseFarDevice()()
						}
						train(t, 4, spread.Config)
					})
				}
			}
		})
	}
}
