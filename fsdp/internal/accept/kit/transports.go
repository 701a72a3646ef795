package kit

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// Transports are ways to connect, each a change of the configuration. Those that share memory are
// listed only if the system supports it.
var Transports = map[string]func(*comm.Config){
	"sockets": func(c *comm.Config) { c.Transport = comm.TCP },
}

// Connect connects ranks that live in this process, until the end of the test.
func Connect(t *testing.T, world int, change func(*comm.Config)) []comm.Group {
	groups, errs := make([]comm.Group, world), make([]error, world)
	meet := "file://" + filepath.ToSlash(t.TempDir())
	together(world, func(r int) {
		cfg := comm.Config{Rank: r, Size: world, Rendezvous: meet, Secret: []byte("nobody else knows this"), Timeout: Patience}
		change(&cfg)
		groups[r], errs[r] = comm.Connect(t.Context(), cfg)
	})
	require.NoError(t, errors.Join(errs...))
	t.Cleanup(func() {
		together(world, func(r int) { errs[r] = groups[r].Close() })
		require.NoError(t, errors.Join(errs...))
	})
	return groups
}

// OnGroups calls f with every handle at once. If the test fails on a rank, it aborts the rank's
// group, so that the other ranks do not wait for it.
func OnGroups(t *testing.T, groups []comm.Group, f func(ctx context.Context, g comm.Group)) {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	together(len(groups), func(r int) {
		done := false
		defer func() {
			if !done {
				groups[r].Abort(errors.New("the test has failed"))
			}
		}()
		f(ctx, groups[r])
		done = true
	})
	if t.Failed() {
		t.FailNow()
	}
}
