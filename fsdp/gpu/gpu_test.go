//go:build linux && cgo

package gpu

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/nccl"
)

// TestOrdinal lists which GPU a process opens.
func TestOrdinal(t *testing.T) {
	for _, v := range []struct {
		size, local, visible, want int
		err                        string
	}{
		{size: 8, local: 3, visible: 8, want: 3},
		{size: 8, local: 3, visible: 1},
		{size: 8, local: -1, visible: 1},
		{size: 1, local: -1, visible: 4},
		{size: 8, local: -1, visible: 4, err: "torchrun gives no place of a rank on its host, and this process sees 4 GPUs: set LOCAL_RANK, or call Open"},
		{size: 8, local: 4, visible: 4, err: "it has place 4 on its host, counted from 0, but this process sees 4 GPUs (CUDA_VISIBLE_DEVICES): start one rank for each GPU"},
	} {
		got, err := ordinal(&launch.Env{Source: "torchrun", Size: v.size, LocalRank: v.local}, v.visible)
		if v.err != "" {
			require.EqualError(t, err, v.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, v.want, got)
	}
}

// TestOpenLocal opens devices of the double: by the launcher's variables, and by the ranks of
// goroutines.
func TestOpenLocal(t *testing.T) {
	libs := gpudouble.Build(t)
	require.NoError(t, nccl.LoadCUDA(libs.CUDA))
	gpudouble.Open(t, libs.CUDA).Clean(t)
	opened := func(g comm.Group) (int, error) {
		d, err := OpenLocal(g)
		if err != nil {
			return 0, err
		}
		return d.Ordinal(), d.Close()
	}
	require.NoError(t, comm.Run(t.Context(), 3, func(_ context.Context, g comm.Group) error {
		n, err := opened(g)
		require.Equal(t, g.Rank(), n)
		return err
	}))
	alone := comm.Local(1)[0]
	for name, value := range map[string]string{"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"} {
		t.Setenv(name, value)
	}
	n, err := opened(alone)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	t.Setenv("LOCAL_RANK", "9")
	_, err = opened(alone)
	require.ErrorContains(t, err, "gpu: launch: torchrun: ")
}
