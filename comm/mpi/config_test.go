package mpi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTimeout is that of the configuration, or else of the environment, as comm.FromEnv has it.
func TestTimeout(t *testing.T) {
	for _, c := range []struct {
		cfg  time.Duration
		env  string
		want time.Duration
	}{{0, "", 10 * time.Minute}, {0, "90s", 90 * time.Second}, {time.Second, "90s", time.Second}} {
		t.Setenv("FSDP_TIMEOUT", c.env)
		cfg, err := Config{Timeout: c.cfg}.complete()
		require.NoError(t, err)
		require.Equal(t, c.want, cfg.Timeout)
	}
	t.Setenv("FSDP_TIMEOUT", "soon")
	_, err := Config{}.complete()
	require.EqualError(t, err, `mpi: FSDP_TIMEOUT="soon" is not a duration such as 90s`)
	_, err = Config{Timeout: -1}.complete()
	require.ErrorContains(t, err, "negative")
}
