//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSignals sends the program, as a process of two ranks, what a user or a scheduler sends: it
// loses no step, and with -interrupted says that it is not over.
func TestSignals(t *testing.T) {
	heard := make(chan os.Signal, 1) // else the program ignores what nohup has this process ignore
	signal.Notify(heard, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(heard)
	for _, c := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGINT, 0}, {syscall.SIGTERM, 0}, {syscall.SIGHUP, 0}, {syscall.SIGTERM, 143}} {
		dir := t.TempDir()
		args := smallJob(t, "-ranks", "2", "-steps", "1000000", "-sample-bytes", "0", "-save", dir, "-interrupted", fmt.Sprint(c.status))
		cmd := exec.Command(os.Args[0], args...)
		cmd.Env = append(os.Environ(), mainVariable+"=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var text, step string
		for lines, sent := bufio.NewScanner(out), false; lines.Scan(); {
			text += lines.Text() + "\n"
			if strings.HasPrefix(lines.Text(), "step ") && !sent {
				sent = true
				require.NoError(t, cmd.Process.Signal(c.signal))
			}
			if after, ok := strings.CutPrefix(lines.Text(), "interrupted after step "); ok {
				step = after
			}
		}
		_ = cmd.Wait() // the status says it
		require.Equal(t, c.status, cmd.ProcessState.ExitCode(), text)
		require.Equal(t, c.status == 0, strings.Contains(text, "validation loss"), text)
		require.NotEmpty(t, step, text)
		require.Len(t, checkpoints(t, dir), 1)
		require.Equal(t, step, strings.TrimLeft(checkpoints(t, dir)[0], "0"))
	}
}
