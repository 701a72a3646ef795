package comm

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/comm/internal/grouptest"
	"github.com/gofsdp/gofsdp/internal/shm"
)

// narrowVariable makes the test binary rank 1 of a job that meets at its value, a process that may
// map less than the machine has.
const narrowVariable = "COMM_TEST_NARROW"

func narrowJob(rank int, addr string) Config {
	return Config{
		Rank: rank, Size: 2, Rendezvous: tcpScheme + addr, Job: "narrow", Secret: []byte("sixteen letters!"), LocalRank: -1,
	}
}

// sumsUp sums the ranks, and closes the group.
func sumsUp(t *testing.T, g Group) {
	_, shares := g.(Allocator)
	require.False(t, shares)
	x := []float32{float32(g.Rank()), 1}
	require.NoError(t, g.AllReduce(Of(x), Sum).Wait(t.Context()))
	require.Equal(t, []float32{1, 2}, x)
	require.NoError(t, g.Close())
}

func TestNarrowChild(t *testing.T) {
	addr := os.Getenv(narrowVariable)
	if addr == "" {
		return
	}
	var mapped uint64
	text, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	_, err = fmt.Sscan(string(text), &mapped)
	require.NoError(t, err)
	const room = 1 << 30
	limit := mapped*uint64(os.Getpagesize()) + room
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit}))
	require.InDelta(t, room, shm.Spare(), room/2)
	g, err := Connect(t.Context(), narrowJob(1, addr))
	require.NoError(t, err)
	sumsUp(t, g)
}

// TestAddressLimit: under a limit of addresses (ulimit -v) on one rank, all use sockets, and say so
// once.
func TestAddressLimit(t *testing.T) {
	addr := grouptest.FreeAddr(t)
	child := exec.Command(os.Args[0], "-test.run=^TestNarrowChild$")
	child.Env = append(os.Environ(), narrowVariable+"="+addr)
	var said bytes.Buffer
	child.Stderr, child.Stdout = &said, &said
	require.NoError(t, child.Start())
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := child.Wait()
		if err != nil {
			cancel(fmt.Errorf("%w\n%s", err, &said))
		}
		ended <- err
	}()
	var told bytes.Buffer
	cfg := narrowJob(0, addr)
	cfg.Logger = slog.New(slog.NewTextHandler(&told, nil))
	g, err := Connect(ctx, cfg)
	require.NoError(t, err)
	sumsUp(t, g)
	require.NoError(t, <-ended, &said)
	require.Regexp(t, `level=WARN msg="comm: using sockets, which are slower than shared memory" `+
		`because="ranks \[0 1\] of one host cannot share memory; rank 1: ulimit -v leaves this process \d+ MiB`, told.String())
	require.NotContains(t, said.String(), "sockets")
	require.Equal(t, 1, strings.Count(told.String(), "sockets"))
}
