//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/launch"
)

// The rank in the first argument kills itself, unless it is a process that replaces it, or the
// second argument is "again". With a third argument the other ranks do not connect again.
func init() {
	scripts["replace"] = func(e launch.Env) int {
		ctx := context.Background()
		g, err := comm.FromEnv(ctx)
		for err == nil {
			rank := g.Rank()
			if err = g.Barrier(ctx); err == nil && fmt.Sprint(rank) == os.Args[1] && (!e.Join || len(os.Args) > 2) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // it cannot fail
				select {}                                      // until the signal is there
			}
			if err = errors.Join(err, g.Barrier(ctx)); err == nil {
				fmt.Printf("rank %d of %d, started as %d, late %t\n", rank, g.Size(), e.Rank, e.Join)
				err = g.Close()
				break
			}
			if len(os.Args) > 3 {
				break
			}
			former := g
			if g, err = comm.Reconnect(ctx, former); err == nil {
				_ = former.Close() // it has failed
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// TestReplaceRank replaces a rank that is killed, rank 0 as well, over both transports.
func TestReplaceRank(t *testing.T) {
	for rank, transport := range []string{"shm", "tcp"} {
		r := begin(t, "replace", strings.NewReader(""), []string{"-n", "3", "-replace", "1", "-transport", transport}, fmt.Sprint(rank))
		require.Equal(t, 0, <-r.status, &r.err)
		var want []string
		for i := range 3 {
			want = append(want, fmt.Sprintf("[%d] rank %d of 3, started as %d, late %t\n", i, i, i, i == rank))
		}
		require.Equal(t, want, r.out.sorted())
		require.Contains(t, r.err.String(), fmt.Sprintf("rank %d: killed by SIGKILL; starting it again, the others go on\n", rank))
		require.NotContains(t, r.err.String(), "first:")
	}
}

// TestReplaceOnce ends all ranks when a second one is killed, and when the program does not connect
// again.
func TestReplaceOnce(t *testing.T) {
	for _, args := range [][]string{{"1", "again"}, {"1", "again", "never"}} {
		r := begin(t, "replace", strings.NewReader(""), []string{"-n", "2", "-replace", "1"}, args...)
		require.NotZero(t, <-r.status)
		require.Equal(t, 1, strings.Count(r.err.String(), "starting it again"), &r.err)
		require.Contains(t, r.err.String(), "; ending the others\n")
		require.Contains(t, r.err.String(), ": replaced\n")
	}
}
