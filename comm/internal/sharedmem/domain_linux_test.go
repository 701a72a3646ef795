package sharedmem

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/internal/session"
)

// wrongFile is a host on which a rank gets something else than the memory of rank 0.
type wrongFile struct{ session.Network }

func (w wrongFile) File(ctx context.Context, from int, tag uint64) (*os.File, error) {
	f, err := w.Network.File(ctx, from, tag)
	if err != nil || from != 0 {
		return f, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return os.Open(os.DevNull)
}

// TestUnmapped: what one rank cannot map, no rank uses.
func TestUnmapped(t *testing.T) {
	sessions := housed(3)
	sessions[2].Mesh = wrongFile{sessions[2].Mesh}
	for _, err := range grouptest.PerRank(sessions, func(s *session.Session) error {
		_, err := New(t.Context(), s)
		return err
	}) {
		require.ErrorContains(t, err, "ranks [0 1 2] of one host cannot share memory; rank 2: mapping shared memory of rank 0: shm: opening a segment")
	}
}
