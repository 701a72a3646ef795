package graph_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every test with several ranks: what would hang becomes an error.
const patience = 4 * time.Minute

// onRanks runs f on n ranks and requires that none fails.
func onRanks(t *testing.T, n int, f func(ctx context.Context, g comm.Group)) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, comm.Run(ctx, n, func(ctx context.Context, g comm.Group) error {
		f(ctx, g)
		return nil
	}))
}

// errorsOf runs f on n ranks and returns the error of each. It requires that there are n, and that
// none is for want of time.
func errorsOf(t *testing.T, n int, f func(ctx context.Context, g comm.Group) error) []error {
	errs := make([]error, n)
	onRanks(t, n, func(ctx context.Context, g comm.Group) { errs[g.Rank()] = f(ctx, g) })
	for r, err := range errs {
		require.Error(t, err, "rank %d", r)
		require.NotErrorIs(t, err, context.DeadlineExceeded, "rank %d", r)
	}
	return errs
}

// wrap wraps m and fails the test if that fails.
func wrap(t require.TestingT, m fsdp.Model, cfg fsdp.Config) *fsdp.Sharded {
	s, err := fsdp.Wrap(m, cfg)
	require.NoError(t, err)
	return s
}
