package park

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBaton takes a free baton, waits for a baton that is held, and receives it from Pass.
func TestBaton(t *testing.T) {
	b := Baton{Handed: make(chan struct{}, 1)}
	b.Take()
	require.False(t, b.Join())
	b.Pass()
	<-b.Handed
	b.Pass()
	require.True(t, b.Join())
}
