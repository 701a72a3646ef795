package comm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/shm"
)

// TestSince: ticks since the process began are as long as the time since then.
func TestSince(t *testing.T) {
	const rounding = time.Microsecond
	before := time.Since(began)
	age := since(beganTicks)
	require.GreaterOrEqual(t, age, before-rounding)
	require.LessOrEqual(t, age, time.Since(began)+rounding)
	require.Zero(t, since(shm.Ticks()+1<<40), "of another processor")
}

// TestBaton: one goroutine at a time has it, and whoever waits gets it.
func TestBaton(t *testing.T) {
	b := baton{handed: make(chan struct{}, 1)}
	b.take()
	require.False(t, b.join())
	b.pass()
	<-b.handed
	b.pass()
	require.True(t, b.join())
}
