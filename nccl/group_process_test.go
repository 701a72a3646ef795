//go:build linux && cgo

package nccl

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
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

const (
	envRole = "FSDP_NCCL_TEST_ROLE" // what TestGroupOfProcess is to do
	envMeet = "FSDP_NCCL_TEST_MEET" // where the ranks meet
	envRank = "FSDP_NCCL_TEST_RANK"
)

// bootOf connects two processes.
func bootOf(ctx context.Context, rank int, meet string) (comm.Group, error) {
	return comm.Connect(ctx, comm.Config{Rank: rank, Size: 2, LocalRank: rank, LocalSize: 2, Rendezvous: "file://" + meet,
		Secret: []byte("nobody else knows this")})
}

// processOf starts this test binary as a rank of two.
func processOf(t *testing.T, role, meet string, rank int) *exec.Cmd {
	libs := gpudouble.Build(t)
	c := exec.Command(must(os.Executable()), "-test.run=^TestGroupOfProcess$", "-test.timeout=100s", "-test.v")
	c.Env = append(os.Environ(), envRole+"="+role, envMeet+"="+meet, envRank+"="+strconv.Itoa(rank),
		EnvCUDA+"="+libs.CUDA, EnvLibrary+"="+libs.NCCL, "RAPID_SEED=1", "RAPID_NOFAILFILE=true")
	return c
}

// TestGroupOfProcess is what the processes of other tests run.
func TestGroupOfProcess(t *testing.T) {
	role := os.Getenv(envRole)
	if role == "" {
		return // this is not one of them
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rank := must(strconv.Atoi(os.Getenv(envRank)))
	boot, err := bootOf(ctx, rank, os.Getenv(envMeet))
	require.NoError(t, err)
	dev, err := OpenDevice(rank)
	require.NoError(t, err)
	g, err := New(ctx, boot, dev, pieces)
	require.NoError(t, err)
	switch role {
	case "contract":
		commtest.Contract{Rounded: true}.TestRank(t, g)
	case "victim":
		gpudouble.Open(t, os.Getenv(EnvCUDA)).Pause(t, g.backend.launcher.stream.Handle())
		m, err := dev.Alloc(16)
		require.NoError(t, err)
		s, err := dev.NewStream()
		require.NoError(t, err)
		require.NoError(t, g.WaitOn(ctx, s, g.AllReduce(f32s(m.Addr(), 4), comm.Sum)))
		fmt.Println("launched")
		select {} // until killed
	}
	require.NoError(t, g.Close())
	require.NoError(t, boot.Close())
	require.NoError(t, dev.Close())
}

func TestGroupContractOfProcesses(t *testing.T) {
	meet := t.TempDir()
	for rank, err := range each(2, func(rank int) error {
		out, err := processOf(t, "contract", meet, rank).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w:\n%s", err, out)
		}
		return nil
	}) {
		require.NoError(t, err, "rank %d", rank)
	}
}

// A rank that is killed in the middle of a collective is named by the others.
func TestGroupLosesProcess(t *testing.T) {
	doubles(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	meet := t.TempDir()
	victim := processOf(t, "victim", meet, 1)
	out, err := victim.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, victim.Start())
	boot, err := bootOf(ctx, 0, meet)
	require.NoError(t, err)
	dev, err := OpenDevice(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	g, err := New(ctx, boot, dev, pieces)
	require.NoError(t, err)
	m, err := dev.Alloc(16)
	require.NoError(t, err)
	w := g.AllReduce(f32s(m.Addr(), 4), comm.Sum)
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "launched"; {
	}
	require.NoError(t, victim.Process.Kill())
	err = w.Wait(ctx)
	var blame *comm.RankError
	require.ErrorAs(t, err, &blame)
	require.Equal(t, 1, blame.Rank)
	require.ErrorIs(t, err, comm.ErrLost)
	_, _ = io.Copy(io.Discard, out)
	require.Error(t, victim.Wait())
	require.NoError(t, g.Close())
	require.NoError(t, boot.Close())
	require.NoError(t, m.Free())
}
