//go:build !linux || !cgo

package nccl

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnavailable(t *testing.T) {
	_, version := Version()
	_, id := NewUniqueID()
	_, dev := OpenDevice(0)
	_, n := Devices()
	_, c := NewCommunicator(context.Background(), nil, 1, UniqueID{}, 0, Config{})
	for _, err := range []error{Load(""), LoadCUDA(""), version, id, dev, n, c} {
		require.ErrorIs(t, err, ErrUnavailable)
	}
	require.ErrorContains(t, Load(""), "built without cgo, or not for Linux")
}
