//go:build linux && cgo && cublasltabi

package blaslt

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRealLibrary loads the library that EnvLibrary names; abi/check.sh does.
func TestRealLibrary(t *testing.T) {
	require.NoError(t, Load(""))
	v, err := Version()
	require.NoError(t, err)
	require.GreaterOrEqual(t, v, 110000)
	t.Logf("cuBLASLt loads, version %d", v)
}
