//go:build unix

package main

import (
	"bufio"
	"bytes"
	"fmt"
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

// TestSurvive kills rank 1, and in another run rank 0: losses are the same as in a run without
// kills.
func TestSurvive(t *testing.T) {
	launcher := filepath.Join(t.TempDir(), "fsdprun")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", launcher, "../../fsdp/fsdprun").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv(programVariable, "1")
	alone, err := exec.CommandContext(t.Context(), os.Args[0], "-ranks", "2", "-steps", "60").Output()
	require.NoError(t, err)
	want := make(map[string]string)
	for line := range strings.Lines(string(alone)) {
		if loss := lossLine.FindStringSubmatch(strings.TrimSpace(line)); loss != nil {
			want[loss[1]] = loss[2]
		}
	}
	require.Len(t, want, 3)
	for victim, transport := range []string{"tcp", "shm"} {
		var problem bytes.Buffer
		run := exec.CommandContext(t.Context(), launcher, "-n", "2", "-replace", "1", "-transport", transport, os.Args[0], "-steps", "60")
		run.Stderr = &problem
		shown, err := run.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, run.Start())
		process := regexp.MustCompile(fmt.Sprintf(`rank %d of 2 is process (\d+), and continues after step (\d+)$`, victim))
		got, pids := make(map[string]string), []int{}
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
		require.NoError(t, run.Wait(), problem.String())
		require.Equal(t, want, got)
		require.Len(t, pids, 2)
		require.NotEqual(t, pids[0], pids[1])
		require.Contains(t, problem.String(), fmt.Sprintf("rank %d: killed by SIGKILL; starting it again", victim))
	}
}
