package comm

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestJoiningSpeaksUp: a rank that waits says so after 5 s and every 30 s, in the default logger if
// there is no other, and gives up after the limit.
func TestJoiningSpeaksUp(t *testing.T) {
	var told bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		cfg, err := Config{Rank: 1, Size: 4, Rendezvous: "tcp://h:1", JoinTimeout: 70 * time.Second}.withDefaults()
		require.NoError(t, err)
		ctx, j, done := startJoining(t.Context(), cfg)
		defer done()
		j.waitsFor("serve the rendezvous", func() []int { return []int{0} })
		j.note(errors.New("refused"))
		time.Sleep(20 * time.Second)
		j.waitsFor("make the group", j.otherRanks)
		time.Sleep(20 * time.Second)
		j.waitsFor("go home", func() []int { return nil })
		<-ctx.Done()
		require.Equal(t, 70*time.Second, time.Since(begin))
	})
	require.Equal(t, `level=WARN msg="comm: rank 1 of 4 waits for ranks [0] to serve the rendezvous" at=tcp://h:1 for=5s FSDP_JOIN_TIMEOUT=1m10s because=refused
level=WARN msg="comm: rank 1 of 4 waits for ranks [0 2 3] to make the group" at=tcp://h:1 for=35s FSDP_JOIN_TIMEOUT=1m10s
`, told.String())
}
