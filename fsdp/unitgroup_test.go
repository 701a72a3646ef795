package fsdp_test

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

// groupedBy returns a configuration of shapes in which one unit is sharded over groups of ranks next to each other.
func groupedBy(t require.TestingT, ctx context.Context, g comm.Group, unit string, ranks int) fsdp.Config {
	own, err := g.Split(ctx, g.Rank()/ranks, g.Rank())
	require.NoError(t, err)
	return fsdp.Config{
		Group: g, Wrap: fsdp.WrapEach(), Precision: float64s, Poison: true, Seed: 5,
		GroupOf: func(u fsdp.UnitInfo) comm.Group {
			if u.Name == unit {
				return own
			}
			return nil
		},
	}
}
