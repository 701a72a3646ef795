package phase

import (
	"bytes"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// logged returns what f logs, without the time.
func logged(t *testing.T, f func()) string {
	var b bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
	defer slog.SetDefault(before)
	synctest.Test(t, func(*testing.T) { f() })
	return b.String()
}

// TestPhase: a line after a second and after ever longer times, and one at the end.
func TestPhase(t *testing.T) {
	require.Equal(t, ""+
		"level=INFO msg=\"data: measuring\" done=2 of=10 for=1s\n"+
		"level=INFO msg=\"data: measuring\" done=2 of=10 for=6s\n"+
		"level=INFO msg=\"data: measuring\" done=2 of=10 for=16s\n"+
		"level=INFO msg=\"data: measuring\" done=10 of=10 took=17.5s\n", logged(t, func() {
		p := Begin("data: measuring", 10)
		p.Add(2)
		other := Begin("data: measuring", 10) // of another rank of this process
		require.Nil(t, other)
		other.Add(1)
		time.Sleep(17500 * time.Millisecond)
		p.Add(8)
		other.End()
		p.End()
		p.End()
	}))
}

// TestUnknownTotal: the parts done are logged, if any are counted.
func TestUnknownTotal(t *testing.T) {
	require.Equal(t, ""+
		"level=INFO msg=\"fsdp: wrapping\" for=1s\n"+
		"level=INFO msg=\"fsdp: wrapping\" done=3 took=2s\n", logged(t, func() {
		p := Begin("fsdp: wrapping", 0)
		time.Sleep(1500 * time.Millisecond)
		p.Add(3)
		time.Sleep(500 * time.Millisecond)
		p.End()
	}))
}

// TestFastPhase logs nothing.
func TestFastPhase(t *testing.T) {
	require.Empty(t, logged(t, func() {
		p := Begin("data: measuring", 0)
		time.Sleep(900 * time.Millisecond)
		p.End()
		time.Sleep(time.Minute)
	}))
}

// TestOtherRanks log nothing.
func TestOtherRanks(t *testing.T) {
	for name, value := range map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"} {
		t.Setenv(name, value)
	}
	require.Nil(t, Begin("data: measuring", 0))
}
