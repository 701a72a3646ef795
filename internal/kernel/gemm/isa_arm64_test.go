//go:build arm64 && !purego

package gemm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNEONComesFirst: what the processor always has is used, plain Go is for comparison.
func TestNEONComesFirst(t *testing.T) {
	require.True(t, strings.HasPrefix(supported()[0].name, "neon"), supported()[0].name)
	require.Equal(t, "go", supported()[len(supported())-1].name)
}
