//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// programVariable makes the test binary the program.
const programVariable = "SURVIVE_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	main()
}

var lossLine = regexp.MustCompile(`^(?:\[\d\] )?(step \d+)  (loss \d\.\d{6})$`)

// build builds fsdprun.
func build(t *testing.T) string {
	launcher := filepath.Join(t.TempDir(), "fsdprun")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", launcher, "../../fsdp/fsdprun").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv(programVariable, "1")
	return launcher
}

// requireLosses compares losses with the losses of a run of ranks in one process.
func requireLosses(t *testing.T, ranks int, got map[string]string) {
	last := 0
	for step := range got {
		n, err := strconv.Atoi(strings.TrimPrefix(step, "step "))
		require.NoError(t, err)
		last = max(last, n)
	}
	alone, err := exec.CommandContext(t.Context(), os.Args[0], "-ranks", strconv.Itoa(ranks), "-steps", strconv.Itoa(last)).Output()
	require.NoError(t, err)
	want := make(map[string]string)
	for line := range strings.Lines(string(alone)) {
		if loss := lossLine.FindStringSubmatch(strings.TrimSpace(line)); loss != nil {
			want[loss[1]] = loss[2]
		}
	}
	require.Len(t, want, last/20)
	for step, loss := range got {
		require.Equal(t, want[step], loss, step)
	}
}

// endless is the number of steps of a run that ends by SIGTERM.
const endless = "1000000000"

// continues matches the line of a rank that continues after a loss.
var continues = regexp.MustCompile(`is process \d+, and continues after step [1-9]`)

// watch reads the lines of a run. After step 40 it calls strike with the rank whose process a line
// names. When ranks have continued it calls end. It returns the losses, and the processes of this
// rank.
func watch(t *testing.T, shown io.Reader, process *regexp.Regexp, strike func(pid int), end func()) (got map[string]string, pids []int) {
	got = make(map[string]string)
	struck, continued, ended := false, false, false
	for lines := bufio.NewScanner(shown); lines.Scan(); {
		if start := process.FindStringSubmatch(lines.Text()); start != nil {
			pid, err := strconv.Atoi(start[1])
			require.NoError(t, err)
			require.Equal(t, len(pids) == 0, start[2] == "0", lines.Text())
			pids = append(pids, pid)
		}
		continued = continued || struck && continues.MatchString(lines.Text())
		loss := lossLine.FindStringSubmatch(lines.Text())
		if loss == nil {
			continue
		}
		got[loss[1]] = loss[2]
		switch {
		case loss[1] == "step 40" && !struck:
			struck = true
			strike(pids[0])
		case continued && !ended:
			ended = true
			end()
		}
	}
	require.True(t, ended)
	return got, pids
}

// kill kills a process.
func kill(t *testing.T) func(pid int) {
	return func(pid int) { require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) }
}

// TestSurvive kills rank 1, and in another run rank 0: losses are the same as in a run without
// kills.
func TestSurvive(t *testing.T) {
	launcher := build(t)
	for victim, transport := range []string{"tcp", "shm"} {
		var problem bytes.Buffer
		run := exec.CommandContext(t.Context(), launcher, "-n", "2", "-replace", "1", "-transport", transport, os.Args[0], "-steps", endless)
		run.Stderr = &problem
		shown, err := run.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, run.Start())
		process := regexp.MustCompile(fmt.Sprintf(`rank %d of 2 is process (\d+), and continues after step (\d+)$`, victim))
		got, pids := watch(t, shown, process, kill(t), func() { require.NoError(t, run.Process.Signal(syscall.SIGTERM)) })
		require.NoError(t, run.Wait(), problem.String())
		requireLosses(t, 2, got)
		require.Len(t, pids, 2)
		require.NotEqual(t, pids[0], pids[1])
		require.Contains(t, problem.String(), fmt.Sprintf("rank %d: killed by SIGKILL; starting it again", victim))
	}
}

// freeAddress returns an address at which nothing listens.
func freeAddress(t *testing.T) string {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, free.Close())
	return free.Addr().String()
}

// notice keeps the output of a launcher, and closes seen when this has a text.
type notice struct {
	out  bytes.Buffer
	text string
	seen chan struct{}
}

func (n *notice) String() string { return n.out.String() }

func (n *notice) Write(b []byte) (int, error) {
	before := strings.Contains(n.String(), n.text)
	count, err := n.out.Write(b)
	if !before && strings.Contains(n.String(), n.text) {
		close(n.seen)
	}
	return count, err
}

// hosts are launchers of one rank each.
type hosts []*exec.Cmd

// launchHosts starts n launchers. The output of their ranks comes from shown.
func launchHosts(t *testing.T, launcher string, n int, flags ...string) (list hosts, shown io.ReadCloser) {
	t.Setenv("FSDP_SECRET", "known to this test only")
	t.Setenv("TMPDIR", t.TempDir()) // where launchers that are killed leave files
	address := freeAddress(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	for host := range n {
		args := append([]string{"-n", "1", "-nnodes", strconv.Itoa(n), "-node-rank", strconv.Itoa(host), "-rdzv", address, "-replace", "1"}, flags...)
		run := exec.CommandContext(t.Context(), launcher, append(args, os.Args[0], "-steps", endless)...)
		run.Stdout, run.Stderr = write, &notice{text: "all ranks have joined", seen: make(chan struct{})}
		require.NoError(t, run.Start())
		list = append(list, run)
	}
	require.NoError(t, write.Close())
	return list, read
}

// signal sends a signal to each launcher when it has noticed that all ranks have joined.
func (list hosts) signal(t *testing.T, s syscall.Signal) {
	for _, run := range list {
		select {
		case <-run.Stderr.(*notice).seen:
		case <-time.After(time.Minute):
			t.Error("a launcher has not noticed that the ranks have joined")
		}
		require.NoError(t, run.Process.Signal(s))
	}
}

// TestSurviveHosts kills rank 0 of four launchers, which have no directory in common.
func TestSurviveHosts(t *testing.T) {
	hosts, read := launchHosts(t, build(t), 4)
	defer read.Close()
	process := regexp.MustCompile(`rank 0 of 4 is process (\d+), and continues after step (\d+)$`)
	got, pids := watch(t, read, process, kill(t), func() { hosts.signal(t, syscall.SIGTERM) })
	for _, run := range hosts {
		require.NoError(t, run.Wait(), "%v", run.Stderr)
	}
	requireLosses(t, 4, got)
	require.Len(t, pids, 2)
	require.NotEqual(t, pids[0], pids[1])
}

// TestSurviveGrowth starts two ranks, and a third process that joins them. It becomes rank 2, and
// the losses are the same as without it. All three leave after the next loss.
func TestSurviveGrowth(t *testing.T) {
	t.Setenv(programVariable, "1")
	dir := t.TempDir()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	var ranks []*exec.Cmd
	for _, rank := range []string{"RANK=0", "RANK=1", "FSDP_JOIN=1"} {
		run := exec.CommandContext(t.Context(), os.Args[0], "-steps", endless)
		run.Env = append(os.Environ(), "RANK=0", "WORLD_SIZE=2", "FSDP_RENDEZVOUS=file://"+dir, "FSDP_SECRET=known to this test only", rank)
		run.Stdout, run.Stderr = write, new(bytes.Buffer)
		require.NoError(t, run.Start())
		ranks = append(ranks, run)
	}
	require.NoError(t, write.Close())
	got, joined := make(map[string]string), regexp.MustCompile(`^rank 2 of 3 is process \d+, and continues after step [1-9]`)
	grown, asked := false, false
	for lines := bufio.NewScanner(read); lines.Scan(); {
		grown = grown || joined.MatchString(lines.Text())
		loss := lossLine.FindStringSubmatch(lines.Text())
		if loss == nil {
			continue
		}
		got[loss[1]] = loss[2]
		if grown && !asked {
			asked = true
			for _, run := range ranks {
				require.NoError(t, run.Process.Signal(syscall.SIGTERM))
			}
		}
	}
	for _, run := range ranks {
		require.NoError(t, run.Wait(), "%v", run.Stderr)
	}
	require.True(t, grown)
	requireLosses(t, 2, got)
}

// TestSurviveWitness kills the launcher and the rank of host 0 of two, with a witness: the other
// rank goes on alone, and the losses are the same as in a run without kills.
func TestSurviveWitness(t *testing.T) {
	launcher, at := build(t), freeAddress(t)
	t.Setenv("FSDP_REPLACE", "1ms")
	hosts, read := launchHosts(t, launcher, 2, "-witness", at)
	defer read.Close()
	witness := exec.CommandContext(t.Context(), launcher, "-serve-witness", at)
	require.NoError(t, witness.Start())
	process := regexp.MustCompile(`rank 0 of 2 is process (\d+), and continues after step (\d+)$`)
	got, pids := watch(t, read, process, func(int) {
		hosts[1:].signal(t, 0) // it has noticed
		hosts[:1].signal(t, syscall.SIGKILL)
	}, func() { hosts[1:].signal(t, syscall.SIGTERM) })
	require.Error(t, hosts[0].Wait())
	require.NoError(t, hosts[1].Wait(), "%v", hosts[1].Stderr)
	requireLosses(t, 2, got)
	require.Len(t, pids, 1)
	require.NoError(t, witness.Process.Signal(syscall.SIGTERM))
	require.NoError(t, witness.Wait())
}
