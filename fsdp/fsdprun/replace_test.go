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
	"time"

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

// The rank in the argument gets SIGTERM, and leaves after its step. The others connect again.
func init() {
	scripts["leave"] = func(e launch.Env) int {
		ctx := context.Background()
		interrupt, stop := comm.Interrupt(ctx)
		defer stop()
		g, err := comm.FromEnv(ctx)
		for err == nil {
			size := g.Size()
			if err = g.Barrier(ctx); err == nil && size == e.Size && fmt.Sprint(e.Rank) == os.Args[1] {
				_ = syscall.Kill(os.Getpid(), syscall.SIGTERM) // it cannot fail
				<-interrupt.Done()
			}
			if err == nil && (interrupt.Err() != nil || size < e.Size) {
				fmt.Printf("rank %d of %d leaves, interrupted %t\n", g.Rank(), size, interrupt.Err() != nil)
				err = g.Close()
				break
			}
			former := g
			if err = g.Barrier(ctx); !errors.Is(err, comm.ErrClosed) {
				err = fmt.Errorf("not the error of a rank that has left: %w", err)
				break
			}
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

// The ranks connect again after a loss, and let processes in. They end when there are three of them
// again, or for the first time.
func init() {
	scripts["let in"] = func(e launch.Env) int {
		ctx := context.Background()
		g, err := comm.FromEnv(ctx)
		step := time.NewTicker(5 * time.Millisecond)
		defer step.Stop()
		for last := e.Join || e.Size < 3; err == nil; last = true {
			fmt.Printf("rank %d of %d, started as %d, late %t\n", g.Rank(), g.Size(), e.Rank, e.Join)
			if last && g.Size() == 3 {
				err = g.Close()
				break
			}
			for waiting := []float32{0}; err == nil && waiting[0] == 0; {
				<-step.C
				waiting[0] = float32(comm.Joining(g))
				err = g.AllReduce(comm.Of(waiting), comm.Sum).Wait(ctx)
			}
			former := g
			if g, err = comm.Reconnect(ctx, former); err == nil {
				_ = former.Close() // it may have failed
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// TestLetIn starts a process in addition while two ranks run. They let it in.
func TestLetIn(t *testing.T) {
	r := begin(t, "let in", strings.NewReader(""), []string{"-n", "2", "-max", "3", "-replace", "1"})
	r.await(2, "of 2")
	r.signals <- syscall.SIGUSR1
	require.Zero(t, <-r.status, &r.err)
	require.Equal(t, []string{
		"[0] rank 0 of 2, started as 0, late false\n", "[0] rank 0 of 3, started as 0, late false\n",
		"[1] rank 1 of 2, started as 1, late false\n", "[1] rank 1 of 3, started as 1, late false\n",
		"[2] rank 2 of 3, started as 2, late true\n",
	}, r.out.sorted())
	require.Contains(t, r.err.String(), "asked to grow: starting rank 2, to join when the others call comm.Reconnect\n")
}

// The ranks wait for SIGTERM, and let no process in. SIGTERM kills a process that waits to join.
func init() {
	scripts["keep out"] = func(e launch.Env) int {
		ctx := context.Background()
		interrupt, stop := ctx, func() {}
		if !e.Join {
			interrupt, stop = comm.Interrupt(ctx)
		}
		defer stop()
		g, err := comm.FromEnv(ctx)
		if err == nil {
			fmt.Printf("rank %d of %d\n", g.Rank(), g.Size())
			<-interrupt.Done()
			err = g.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// TestKeptOut ends a job in which a process still waits to join: the job has succeeded.
func TestKeptOut(t *testing.T) {
	r := begin(t, "keep out", strings.NewReader(""), []string{"-n", "2", "-max", "3", "-replace", "1"})
	r.await(2, "of 2")
	r.signals <- syscall.SIGUSR1
	r.err.await("asked to grow: starting rank 2, to join when")
	r.signals <- syscall.SIGTERM
	require.Zero(t, <-r.status, &r.err)
}

// TestLeave lets a rank leave as planned: nothing replaces it, and the others do not wait for that.
func TestLeave(t *testing.T) {
	for rank, transport := range []string{"tcp", "shm"} {
		begun := time.Now()
		r := begin(t, "leave", strings.NewReader(""), []string{"-n", "3", "-replace", "1", "-transport", transport}, fmt.Sprint(rank))
		require.Equal(t, 0, <-r.status, &r.err)
		var want []string
		others := 0
		for i := range 3 {
			if i == rank {
				want = append(want, fmt.Sprintf("[%d] rank %d of 3 leaves, interrupted true\n", i, i))
				continue
			}
			want = append(want, fmt.Sprintf("[%d] rank %d of 2 leaves, interrupted false\n", i, others))
			others++
		}
		require.Equal(t, want, r.out.sorted())
		require.NotContains(t, r.err.String(), "starting it again")
		require.Less(t, time.Since(begun), time.Minute/2, "ranks waited for a process in its place")
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
