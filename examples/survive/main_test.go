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

var lossLine = regexp.MustCompile(`^(?:\[0\] )?(step \d+)  (loss \d\.\d{6})$`)

// build builds fsdprun.
func build(t *testing.T) string {
	launcher := filepath.Join(t.TempDir(), "fsdprun")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", launcher, "../../fsdp/fsdprun").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv(programVariable, "1")
	return launcher
}

// losses returns the losses of a run of ranks in one process.
func losses(t *testing.T, ranks int) map[string]string {
	alone, err := exec.CommandContext(t.Context(), os.Args[0], "-ranks", strconv.Itoa(ranks), "-steps", "60").Output()
	require.NoError(t, err)
	want := make(map[string]string)
	for line := range strings.Lines(string(alone)) {
		if loss := lossLine.FindStringSubmatch(strings.TrimSpace(line)); loss != nil {
			want[loss[1]] = loss[2]
		}
	}
	require.Len(t, want, 3)
	return want
}

// watch reads the lines of a run. After step 40 it kills the rank whose process a line names. It
// returns the losses, and the processes of this rank.
func watch(t *testing.T, shown io.Reader, process *regexp.Regexp) (got map[string]string, pids []int) {
	got = make(map[string]string)
	for lines := bufio.NewScanner(shown); lines.Scan(); {
		if start := process.FindStringSubmatch(lines.Text()); start != nil {
			pid, err := strconv.Atoi(start[1])
			require.NoError(t, err)
			require.Equal(t, len(pids) == 0, start[2] == "0", lines.Text())
			pids = append(pids, pid)
		}
		if loss := lossLine.FindStringSubmatch(lines.Text()); loss != nil {
			got[loss[1]] = loss[2]
			if loss[1] == "step 40" && len(pids) == 1 {
				require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
			}
		}
	}
	return got, pids
}

// TestSurvive kills rank 1, and in another run rank 0: losses are the same as in a run without
// kills.
func TestSurvive(t *testing.T) {
	launcher, want := build(t), losses(t, 2)
	for victim, transport := range []string{"tcp", "shm"} {
		var problem bytes.Buffer
		run := exec.CommandContext(t.Context(), launcher, "-n", "2", "-replace", "1", "-transport", transport, os.Args[0], "-steps", "60")
		run.Stderr = &problem
		shown, err := run.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, run.Start())
		got, pids := watch(t, shown, regexp.MustCompile(fmt.Sprintf(`rank %d of 2 is process (\d+), and continues after step (\d+)$`, victim)))
		require.NoError(t, run.Wait(), problem.String())
		require.Equal(t, want, got)
		require.Len(t, pids, 2)
		require.NotEqual(t, pids[0], pids[1])
		require.Contains(t, problem.String(), fmt.Sprintf("rank %d: killed by SIGKILL; starting it again", victim))
	}
}

// TestSurviveHosts kills rank 0 of four launchers, which have no directory in common.
func TestSurviveHosts(t *testing.T) {
	launcher, want := build(t), losses(t, 4)
	t.Setenv("FSDP_SECRET", "known to this test only")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	var hosts []*exec.Cmd
	for host := range 4 {
		run := exec.CommandContext(t.Context(), launcher, "-n", "1", "-nnodes", "4", "-node-rank", strconv.Itoa(host), "-rdzv", address, "-replace", "1", os.Args[0], "-steps", "60")
		run.Stdout, run.Stderr = write, new(bytes.Buffer)
		require.NoError(t, run.Start())
		hosts = append(hosts, run)
	}
	require.NoError(t, write.Close())
	got, pids := watch(t, read, regexp.MustCompile(`rank 0 of 4 is process (\d+), and continues after step (\d+)$`))
	for _, run := range hosts {
		require.NoError(t, run.Wait(), "%v", run.Stderr)
	}
	require.Equal(t, want, got)
	require.Len(t, pids, 2)
	require.NotEqual(t, pids[0], pids[1])
}
