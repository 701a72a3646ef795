package park

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBaton: one goroutine at a time has it, and whoever waits gets it.
func TestBaton(t *testing.T) {
	b := Baton{Handed: make(chan struct{}, 1)}
	b.Take()
	require.False(t, b.Join())
	b.Pass()
	<-b.Handed
	b.Pass()
	require.True(t, b.Join())
}
