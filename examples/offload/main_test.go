//go:build linux || darwin

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/fsdp/nn"
	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every configuration learns the same, the plan of each needs less RAM than that of the one before,
// and nothing is left behind.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	var out strings.Builder
	model := &nn.GPT{Vocab: 16, Context: 32, Layers: 3, Dim: 32, Heads: 2}
	require.NoError(t, run(t.Context(), &out, model, 8, dir))
	require.Empty(t, lines.Wider(out.String(), 76), "80 with what fsdprun puts before a line")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 6)
	var losses []string
	var ram []float64
	for _, line := range lines[2:] {
		values := strings.Fields(line[18:])
		require.Len(t, values, 6, line)
		var planned, files float64
		_, err := fmt.Sscan(values[0]+" "+values[1], &planned, &files)
		require.NoError(t, err, line)
		losses, ram = append(losses, values[5]), append(ram, planned)
		require.Equal(t, len(ram) > 2, files > 0, line)
	}
	for i := range ram {
		require.Equal(t, losses[0], losses[i])
	}
	require.Less(t, ram[1], ram[0])
	require.Less(t, ram[2], ram[0])
	require.Less(t, ram[3], ram[2])
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
