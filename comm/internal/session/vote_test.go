package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// TestAgree: all ranks of a host hear of the lowest that cannot take a step, or of one that is
// gone before it could tell.
func TestAgree(t *testing.T) {
	ranks := []int{0, 1, 2, 3}
	sessions := wired(4)
	for step, unable := range map[uint64][]int{StepCreate: {2, 1}, StepMap: nil} {
		for _, err := range grouptest.PerRank(sessions, func(s *Session) error {
			var mine error
			for _, r := range unable {
				if r == s.Config.Rank {
					mine = errDisk
				}
			}
			return s.Agree(t.Context(), step, ranks, mine)
		}) {
			if unable == nil {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, "ranks [0 1 2 3] of one host cannot share memory; rank 1: disk full")
			}
		}
	}
	sessions = wired(4)
	for _, err := range grouptest.PerRank(sessions, func(s *Session) error {
		if s.Config.Rank == 3 {
			return nil
		}
		s.Lost(3, transport.ErrLost)
		return s.Agree(t.Context(), StepCreate, ranks, nil)
	})[:3] {
		require.EqualError(t, err, "shared memory of rank 3: process lost")
	}
}
