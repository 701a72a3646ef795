//go:build linux && !race

package memory_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
)

// The race detector needs several times the memory that it watches, and would be what runs into the
// limit.

// TestLargerThanMemory shows what the files are for: ranks train within an allowance that is a
// third of what their state, or what their calls keep, needs, and without files they do not. The
// results are the same bits.
func TestLargerThanMemory(t *testing.T) {
	kit.Needs(t, kit.HostMemory)
	for _, job := range []string{"state", "activations"} {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			want, output, err := startJob(t, job, "", false)
			require.NoError(t, err, output)
			require.Contains(t, want, "rank 1: losses")
			got, output, err := startJob(t, job, dir, true)
			require.NoError(t, err, output)
			require.Equal(t, want, got)
			requireEmpty(t, dir)

			printed, output, err := startJob(t, job, "", true)
			require.Error(t, err, "without files the allowance holds")
			require.Empty(t, printed)
			require.Regexp(t, "out of memory|pthread_create failed", output, "what is refused first: an array, or the stack of a thread")
		})
	}
}
