//go:build !mpi || !cgo || !unix

package mpi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnavailable(t *testing.T) {
	g, err := New(t.Context(), Config{})
	require.Nil(t, g)
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "-tags mpi")
}
