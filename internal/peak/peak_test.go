package peak

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRate(t *testing.T) {
	for _, k := range Kernels() {
		require.NotEmpty(t, k.Name)
		require.Greater(t, k.Rate(1), 1e9)
		require.Greater(t, k.Rate(2), 0.5e9)
	}
}
