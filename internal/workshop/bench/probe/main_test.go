package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServe lists the measurements and takes some of them.
func TestServe(t *testing.T) {
	var out strings.Builder
	names := []string{"train tiny", "comm shm, all-reduce of 64 KiB", "comm shm, all-reduce of 64 KiB", "comm local, all-gather of 64 KiB"}
	require.NoError(t, serve(t.Context(), strings.NewReader("list\n"+strings.Join(names, "\n")), &out, t.TempDir()))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 1+len(names))
	require.Subset(t, strings.Split(lines[0], "\t"), append(names, "train small", "train small tcp", "state saved", "comm tcp, reduce-scatter of 16384 KiB"))
	for _, line := range lines[1:] {
		seconds, err := strconv.ParseFloat(line, 64)
		require.NoError(t, err)
		require.Positive(t, seconds)
	}
	require.ErrorContains(t, serve(t.Context(), strings.NewReader("x"), &out, t.TempDir()), `no measurement "x"`)
}
