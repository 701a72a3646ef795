package launch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJoining(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "joins")
	require.NoError(t, os.Mkdir(dir, 0o700))
	name := filepath.Join(dir, "rank-3")
	is := func(want Join) {
		got, err := ReadJoin(name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	is(JoinNever)
	for _, outcome := range []error{errors.New("no"), nil} {
		done, err := Joining(name)
		require.NoError(t, err)
		is(JoinWaits)
		require.NoError(t, done(outcome))
		if outcome != nil {
			is(JoinFailed)
		}
	}
	is(Joined)
	done, err := Joining(name)
	require.NoError(t, err)
	is(Joined) // once is enough
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, done(nil), "fsdprun asks no more")
	done, err = Joining(name)
	require.NoError(t, err)
	require.NoError(t, done(nil))

	done, err = Joining("") // no fsdprun
	require.NoError(t, err)
	require.NoError(t, done(nil))
	done, err = Joining(filepath.Join(os.Args[0], "rank-3"))
	require.Error(t, err, "a file is no directory")
	require.NoError(t, done(nil))
}
