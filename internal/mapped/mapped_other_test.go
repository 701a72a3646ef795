//go:build !linux && !darwin

package mapped

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnsupported(t *testing.T) {
	_, err := Open(t.TempDir())
	require.ErrorIs(t, err, ErrUnsupported)
}
