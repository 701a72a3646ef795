package parity_test

import (
	"context"
	"maps"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// sixteenBits are optimizers whose state or values have 16 bits, and the same with a state of 32.
var sixteenBits = map[string]struct {
	narrow, wide optimizer
	types        fsdp.Precision
}{
	"AdamW":               {optim.AdamW{WeightDecay: 0.1, Rules: allIn16}, optim.AdamW{WeightDecay: 0.1}, fsdp.Precision{}},
	"SGD":                 {optim.SGD{Momentum: 0.9, Rules: allIn16}, optim.SGD{Momentum: 0.9}, fsdp.Precision{}},
	"AdamW of 16 bits":    {optim.AdamW{WeightDecay: 0.1, Rules: allIn16}, optim.AdamW{WeightDecay: 0.1}, masters16},
	"SGD of 16 bits":      {optim.SGD{Momentum: 0.9, Rules: allIn16}, optim.SGD{Momentum: 0.9}, masters16},
	"values of 16 bits":   {optim.AdamW{WeightDecay: 0.1}, optim.AdamW{WeightDecay: 0.1}, masters16},
	"no state of 16 bits": {optim.SGD{}, optim.SGD{}, masters16},
}

// masters16 keeps parameters and gradients in 16 bits, too.
var masters16 = fsdp.Precision{Compute: fsdp.BFloat16, Master: fsdp.BFloat16}

var allIn16 = []optim.Rule{{Match: func(optim.Param) bool { return true }, Bits: new(16)}}

// TestSixteenBitsSameBits trains on 1, 2 and 4 ranks with every strategy, near and out of reach.
// Each run is interrupted: its state goes on from a checkpoint on 3 ranks. Values and state have
// the same bits as on one rank. In between, a model and an optimizer with 32 bits load the state
// and save it again.
func TestSixteenBitsSameBits(t *testing.T) {
	for name, c := range sixteenBits {
		var want kit.Bits
		train := func(t *testing.T, world int, cfg func(world int) fsdp.Config) {
			dir, all := t.TempDir(), kit.Bits(nil)
			kit.OnRanks(t, world, func(ctx context.Context, g comm.Group) {
				cfg := cfg(world)
				cfg.Precision = c.types
				m, opt := eight(t, g, cfg, c.narrow)
				makeSteps(t, m, opt, 0, 3)
				v, err := m.SaveAsync(ctx, dir, opt, nil)
				require.NoError(t, err)
				makeSteps(t, m, opt, 3, 6)
				require.NoError(t, v.Wait(ctx))
				state := kit.StateOfAll(t, ctx, m, opt)
				maps.Copy(state, kit.StateBits(t, ctx, m))
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
				again, opt := eight(t, g, fsdp.Config{Precision: c.types}, c.narrow)
				_, err = again.Load(ctx, filepath.Join(dir, "wide"), opt, nil)
				require.NoError(t, err)
				makeSteps(t, again, opt, 3, 6)
				state := kit.StateOfAll(t, ctx, again, opt)
				maps.Copy(state, kit.StateBits(t, ctx, again))
				kit.RequireSameBits(t, want, state, "on 3 ranks, through 32 bits")
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
