package transport

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
	age := elapsedSince(beganTicks)
	require.GreaterOrEqual(t, age, before-rounding)
	require.LessOrEqual(t, age, time.Since(began)+rounding)
	require.Zero(t, elapsedSince(shm.Ticks()+1<<40), "of another processor")
}
