//go:build linux && cgo

package gpu

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/nccl"
)

// envMeet names where the ranks of TestLosesProcess meet. It makes a process the one that is lost.
const envMeet = "FSDP_ENGINE_GPU_TEST_MEET"

// bootOf connects two processes.
func bootOf(ctx context.Context, rank int, meet string) (comm.Group, error) {
	return comm.Connect(ctx, comm.Config{Rank: rank, Size: 2, LocalRank: rank, LocalSize: 2, Rendezvous: "file://" + meet,
		Secret: []byte("nobody else knows this")})
}

// TestLosesProcess: a rank that is killed while the others wait for it is named by them.
func TestLosesProcess(t *testing.T) {
	meet := os.Getenv(envMeet)
	if meet != "" {
		boot, err := bootOf(t.Context(), 1, meet)
		require.NoError(t, err)
		dev, err := nccl.OpenDevice(1)
		require.NoError(t, err)
		d, err := New(dev, Options{})
		require.NoError(t, err)
		m := &member{Device: d, ctx: t.Context(), boot: boot, team: newTeam(boot)}
		m.meshOf(2)
		fmt.Println("connected")
		select {} // until killed
	}
	doubles(t)
	meet = t.TempDir()
	libs := gpudouble.Build(t)
	victim := exec.Command(must(os.Executable()), "-test.run=^TestLosesProcess$", "-test.timeout=10m")
	victim.Env = append(os.Environ(), envMeet+"="+meet, nccl.EnvCUDA+"="+libs.CUDA, nccl.EnvLibrary+"="+libs.NCCL)
	out, err := victim.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, victim.Start())
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	boot, err := bootOf(ctx, 0, meet)
	require.NoError(t, err)
	errs := world(t, []comm.Group{boot}, Options{}, func(m *member) error {
		m.meshOf(2)
		for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "connected"; {
		}
		ok(victim.Process.Kill())
		return gathers(m)
	})
	var blame *comm.RankError
	require.ErrorAs(t, errs[0], &blame, strconv.Itoa(victim.Process.Pid))
	require.Equal(t, 1, blame.Rank)
	require.ErrorIs(t, errs[0], comm.ErrLost)
	_, _ = io.Copy(io.Discard, out)
	require.Error(t, victim.Wait())
	require.NoError(t, boot.Close())
}
