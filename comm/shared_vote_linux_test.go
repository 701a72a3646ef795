package comm

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/internal/shm"
)

// together calls f for every session at the same time and returns the errors.
func together(sessions []*session, f func(*session) error) []error {
	errs := make([]error, len(sessions))
	var ranks sync.WaitGroup
	for r, s := range sessions {
		ranks.Go(func() { errs[r] = f(s) })
	}
	ranks.Wait()
	return errs
}

// TestAgree: all ranks of a host hear of the lowest that cannot take a step, or of one that is
// gone before it could tell.
func TestAgree(t *testing.T) {
	ranks := []int{0, 1, 2, 3}
	sessions := wired(4)
	for step, unable := range map[uint64][]int{stepCreate: {2, 1}, stepMap: nil} {
		for _, err := range together(sessions, func(s *session) error {
			var mine error
			for _, r := range unable {
				if r == s.cfg.Rank {
					mine = errDisk
				}
			}
			return s.agree(t.Context(), step, ranks, mine)
		}) {
			if unable == nil {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, "ranks [0 1 2 3] of one host cannot share memory; rank 1: disk full")
			}
		}
	}
	sessions = wired(4)
	for _, err := range together(sessions, func(s *session) error {
		if s.cfg.Rank == 3 {
			return nil
		}
		s.Lost(3, ErrLost)
		return s.agree(t.Context(), stepCreate, ranks, nil)
	})[:3] {
		require.EqualError(t, err, "shared memory of rank 3: process lost")
	}
}

// wrongFile is a host on which a rank gets something else than the memory of rank 0.
type wrongFile struct{ network }

func (w wrongFile) File(ctx context.Context, from int, tag uint64) (*os.File, error) {
	f, err := w.network.File(ctx, from, tag)
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
	sessions[2].mesh = wrongFile{sessions[2].mesh}
	for _, err := range together(sessions, func(s *session) error {
		_, err := newDomain(t.Context(), s)
		return err
	}) {
		require.ErrorContains(t, err, "ranks [0 1 2] of one host cannot share memory; rank 2: memory of rank 0: shm: opening a segment")
	}
}

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
	addr := FreeAddr(t)
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
	require.Regexp(t, `level=WARN msg="comm: slower: sockets take the place of shared memory" `+
		`because="ranks \[0 1\] of one host cannot share memory; rank 1: ulimit -v leaves this process \d+ MiB`, told.String())
	require.NotContains(t, said.String(), "sockets")
	require.Equal(t, 1, strings.Count(told.String(), "sockets"))
}
