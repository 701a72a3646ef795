//go:build unix

package main

import (
	"context"
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

// Ranks go on until the group has as many as the argument says, or until they are interrupted. The
// rank in the second argument kills itself, and the process in its place fails.
func init() {
	scripts["go on"] = func(e launch.Env) int {
		if e.Join {
			return 3
		}
		ctx := context.Background()
		interrupt, stop := comm.Interrupt(ctx)
		defer stop()
		step := time.NewTicker(5 * time.Millisecond)
		defer step.Stop()
		g, err := comm.FromEnv(ctx)
		for err == nil {
			fmt.Printf("start %d is %d of %d\nready\n", e.Restart, g.Rank(), g.Size())
			for err == nil && interrupt.Err() == nil && fmt.Sprint(g.Size()) != os.Args[1] {
				<-step.C
				if err = g.Barrier(ctx); len(os.Args) > 2 && fmt.Sprint(e.Rank) == os.Args[2] {
					_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // it cannot fail
				}
			}
			if err == nil {
				err = g.Close()
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

// beginHosts starts a launcher on each of three hosts.
func beginHosts(t *testing.T, script string, flags func(host int) []string, args ...string) (hosts []*running) {
	for host := range 3 {
		hosts = append(hosts, begin(t, script, strings.NewReader(""), flags(host), args...))
	}
	return hosts
}

// TestReplaceOnHosts replaces a rank of another host, and of host 0.
func TestReplaceOnHosts(t *testing.T) {
	for victim := range 2 {
		flags := hostFlags(t, 3, "-replace", "1")
		hosts := beginHosts(t, "replace", flags, fmt.Sprint(victim))
		for host, r := range hosts {
			require.Zero(t, <-r.status, &r.err)
			require.Equal(t, []string{fmt.Sprintf("[%d] rank %d of 3, started as %d, late %t\n", host, host, host, host == victim)}, r.out.sorted())
			again := fmt.Sprintf("rank %d: killed by SIGKILL; starting it again, the others go on\n", host)
			require.Equal(t, host == victim, strings.Contains(r.err.String(), again), &r.err)
		}
	}
}

// TestHostDeparts lets SIGTERM end the part of a host, of host 0 as well. The ranks of the others
// leave when one of them is left alone.
func TestHostDeparts(t *testing.T) {
	for _, order := range [][]int{{0, 2}, {2, 0}} {
		flags := hostFlags(t, 3, "-replace", "1")
		hosts := beginHosts(t, "go on", flags, "1")
		for _, r := range hosts {
			r.err.await("all ranks have joined")
			r.await(1, "of 3")
		}
		for i, host := range order {
			hosts[host].signals <- syscall.SIGTERM
			require.Zero(t, <-hosts[host].status, &hosts[host].err)
			hosts[1].await(1, fmt.Sprintf("of %d", 2-i))
		}
		require.Zero(t, <-hosts[1].status, &hosts[1].err)
		require.NotContains(t, hosts[1].err.String(), "ending the")
		if order[0] == 0 {
			require.Contains(t, hosts[1].err.String(), "host 0 leaves: SIGTERM; the ranks of the other hosts go on\n")
			require.Contains(t, hosts[1].err.String(), "host 0 has disconnected: it has closed the connection; the ranks of the other hosts go on\n")
		}
	}
}

// TestAllDepart lets SIGTERM end all hosts at once, as schedulers do: all leave as planned.
func TestAllDepart(t *testing.T) {
	flags := hostFlags(t, 3, "-replace", "1")
	hosts := beginHosts(t, "go on", flags, "0")
	for _, r := range hosts {
		r.err.await("all ranks have joined")
		r.await(1, "of 3")
	}
	for _, r := range hosts {
		r.signals <- syscall.SIGTERM
	}
	for _, r := range hosts {
		require.Zero(t, <-r.status, &r.err)
	}
}

// TestDepartAlone: SIGINT for host 0 ends the job on all hosts. A host that comes back and fails
// before the others have let it in ends no other one.
func TestDepartAlone(t *testing.T) {
	flags := hostFlags(t, 3, "-replace", "1")
	hosts := beginHosts(t, "go on", flags, "1")
	for _, r := range hosts {
		r.err.await("all ranks have joined")
	}
	hosts[1].signals <- syscall.SIGINT
	require.Zero(t, <-hosts[1].status, &hosts[1].err)
	again := begin(t, "go on", strings.NewReader(""), flags(1), "1")
	require.Equal(t, 3, <-again.status)
	require.Contains(t, again.err.String(), "rank 3: exit status 3; it had not joined, the others go on without it\n")
	hosts[0].signals <- syscall.SIGINT
	require.Zero(t, <-hosts[0].status, &hosts[0].err)
	require.Zero(t, <-hosts[2].status, &hosts[2].err)
	require.Contains(t, hosts[2].err.String(), "host 0 forwards SIGINT on\n")
}

// TestReplaceInVain: a process that cannot take the place of a lost rank ends no other rank. If the
// others complete the job, it has succeeded.
func TestReplaceInVain(t *testing.T) {
	t.Setenv(launch.Replace, "1ms")
	flags := hostFlags(t, 3, "-replace", "1")
	hosts := beginHosts(t, "go on", flags, "2", "1")
	for _, r := range hosts {
		require.Zero(t, <-r.status, &r.err)
	}
	require.Contains(t, hosts[1].err.String(), "rank 1: exit status 3; it had not joined, the others go on without it\n")

	failed := []*ending{{Rank: 1, Signal: syscall.SIGKILL, Early: true, Replaced: true}, {Rank: 1, Code: 3, Early: true, Vain: true}}
	require.Equal(t, failed[1], culprit(failed), "no rank has completed the job")
	require.Nil(t, culprit(append(failed, &ending{Early: true, Join: launch.Joined})))
}
