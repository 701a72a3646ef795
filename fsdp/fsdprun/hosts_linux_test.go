package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/launch"
)

func init() {
	scripts["place until signal"] = func(e launch.Env) int {
		fmt.Println("start", e.Restart, "is", e.Rank, "of", e.Size)
		return untilSignal()
	}
}

// host is an fsdprun in a process of its own, which ends its ranks when it is killed.
type host struct {
	cmd   *exec.Cmd
	lines <-chan string
}

func startHost(t *testing.T, flags []string) host {
	return hostOf(t, "place until signal", append(flags, os.Args[0])...)
}

func hostOf(t *testing.T, script string, args ...string) host {
	cmd, lines := process(t, script, args...)
	return host{cmd, lines}
}

// await reads until lines with all of these texts have come, in any order.
func (h host) await(t *testing.T, want ...string) {
	for line := range h.lines {
		want = slices.DeleteFunc(want, func(text string) bool { return strings.Contains(line, text) })
		if len(want) == 0 {
			return
		}
	}
	t.Fatalf("ended without %q", want)
}

func (h host) end(s syscall.Signal) int {
	_ = h.cmd.Process.Signal(s) // it may have ended
	for range h.lines {
	}
	_ = h.cmd.Wait() // its error is in the state
	return h.cmd.ProcessState.ExitCode()
}

// TestHostsMeetAgain kills hosts one after the other, the first one too, and brings them back.
func TestHostsMeetAgain(t *testing.T) {
	flags := hostFlags(t, 3, "-restarts", "3", "-min", "2")
	var hosts [3]host
	for h := range hosts {
		hosts[h] = startHost(t, flags(h))
		defer func() { hosts[h].end(syscall.SIGKILL) }()
	}
	all := func(places ...string) {
		t.Helper()
		for h, place := range places {
			if place != "" {
				hosts[h].await(t, "start "+place)
				hosts[h].await(t, "ready")
			}
		}
	}
	all("0 is 0 of 3", "0 is 1 of 3", "0 is 2 of 3")

	require.Equal(t, -1, hosts[1].end(syscall.SIGKILL))
	all("1 is 0 of 2", "", "1 is 1 of 2")
	hosts[1] = startHost(t, flags(1))
	all("2 is 0 of 3", "2 is 1 of 3", "2 is 2 of 3")

	require.Equal(t, -1, hosts[0].end(syscall.SIGKILL))
	hosts[0] = startHost(t, flags(0))
	all("3 is 0 of 3", "3 is 1 of 3", "3 is 2 of 3")

	require.Equal(t, 15, hosts[0].end(syscall.SIGTERM)) // of all
	require.Equal(t, 15, hosts[1].end(0))
	require.Equal(t, 15, hosts[2].end(0))
}

// TestHostsGoOn kills the launcher of host 0: the ranks of the others go on, and then without a
// second rank 0, whose host leaves.
func TestHostsGoOn(t *testing.T) {
	t.Setenv(launch.Replace, "1ms")
	flags := hostFlags(t, 3, "-replace", "1")
	hosts := []host{hostOf(t, "go on", append(flags(0), os.Args[0], "1")...)}
	for host := range 2 {
		hosts = append(hosts, hostOf(t, "go on", append(flags(host+1), os.Args[0], "1")...))
	}
	for _, h := range hosts {
		defer func() { h.end(syscall.SIGKILL) }()
	}
	for r, h := range hosts {
		h.await(t, fmt.Sprintf("is %d of 3", r), "all ranks have joined")
	}
	require.Equal(t, -1, hosts[0].end(syscall.SIGKILL))
	hosts[1].await(t, "is 0 of 2")
	hosts[2].await(t, "is 1 of 2")
	require.Zero(t, hosts[1].end(syscall.SIGTERM))
	hosts[2].await(t, "is 0 of 1")
	require.Zero(t, hosts[2].end(0))
}

// TestHostReturns kills the launcher of host 1 and starts it again: its rank joins the others,
// which have gone on.
func TestHostReturns(t *testing.T) {
	t.Setenv(launch.Replace, "1ms")
	flags := hostFlags(t, 3, "-replace", "1")
	var hosts [3]host
	begin := func(h int) { hosts[h] = hostOf(t, "let in", append(flags(h), os.Args[0])...) }
	for h := range hosts {
		begin(h)
		defer func() { hosts[h].end(syscall.SIGKILL) }()
	}
	for r, h := range hosts {
		h.await(t, fmt.Sprintf("rank %d of 3", r), "all ranks have joined")
	}
	require.Equal(t, -1, hosts[1].end(syscall.SIGKILL))
	hosts[0].await(t, "rank 0 of 2")
	hosts[2].await(t, "rank 1 of 2")
	begin(1)
	hosts[0].await(t, "host 1 has joined: starting rank 3, to join when the others call comm.Reconnect", "rank 0 of 3")
	hosts[1].await(t, "rank 2 of 3, started as 3, late true")
	for _, h := range hosts {
		require.Zero(t, h.end(0))
	}
}

// candidateFlags returns the flags of three hosts of one rank that can all hold the meeting.
func candidateFlags(t *testing.T, flags ...string) func(host int) []string {
	at := []string{freeAddress(t), freeAddress(t), freeAddress(t)}
	common := append([]string{"-n", "1", "-min", "1", "-nnodes", "3", "-rdzv", strings.Join(at, ","), "-secret-file", secretFile(t)}, flags...)
	return func(host int) []string { return append(slices.Clone(common), "-node-rank", fmt.Sprint(host)) }
}

// TestAnyHostIsLost kills the launcher of host 0: the others meet at one of them, and take in host
// 0 when it returns. Then host 0 leaves, and one of two launchers is killed: the last host alone
// starts no rank.
func TestAnyHostIsLost(t *testing.T) {
	flags := candidateFlags(t, "-restarts", "9", "-tls")
	var hosts [3]host
	for h := range hosts {
		hosts[h] = startHost(t, flags(h))
		defer func() { hosts[h].end(syscall.SIGKILL) }()
	}
	ranks := func(start int, who ...int) {
		t.Helper()
		for _, h := range who {
			hosts[h].await(t, fmt.Sprintf("start %d is", start), fmt.Sprintf("of %d", len(who)), "ready")
		}
	}
	ranks(0, 0, 1, 2)
	require.Equal(t, -1, hosts[0].end(syscall.SIGKILL))
	ranks(1, 1, 2)
	hosts[0] = startHost(t, flags(0))
	ranks(2, 0, 1, 2)
	require.Equal(t, 15, hosts[0].end(syscall.SIGTERM))
	ranks(3, 1, 2)
	require.Equal(t, -1, hosts[1].end(syscall.SIGKILL))
	hosts[2].await(t, "host 1 has disconnected", "for hosts 0-1")
	require.Zero(t, hosts[2].end(syscall.SIGTERM)) // it waits, and no rank runs: see TestMajority
}
