//go:build gpu && linux && cgo

package gpucheck

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/nccl"
)

// TestContract checks the contract of all process groups, with buffers on the host.
func TestContract(t *testing.T) {
	if !isRank() {
		inEach(t)
		return
	}
	m := join(t)
	g, err := nccl.New(t.Context(), m, m.dev, nccl.GroupConfig{})
	require.NoError(t, err)
	commtest.Contract{Rounded: true}.TestRank(t, g)
	require.NoError(t, g.Close())
}
