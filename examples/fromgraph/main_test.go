package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	lines "github.com/gofsdp/gofsdp/internal/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Both columns agree, and every model learns.
func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	require.Empty(t, lines.Wider(out.String(), 76), "80 with what fsdprun puts before a line")
	first := make(map[string]float64)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 3*(1+(steps-1)/every))
	for _, line := range lines {
		var name string
		var step int
		var ours, theirs float64
		_, err := fmt.Sscanf(line, "%s step %d sharded %f tape machine %f", &name, &step, &ours, &theirs)
		require.NoError(t, err, line)
		require.InEpsilon(t, theirs, ours, 1e-3, line)
		if step == 0 {
			first[name] = ours
		} else if step == steps-1 {
			require.Less(t, ours, first[name]/2, line)
		}
	}
}
