//go:build netns

package netns

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOpenMPI trains examples/gpt on two hosts by examples/cluster/mpi.sh, ends it by SIGTERM to
// mpirun and goes on: to the weights of a run on one host that nobody has disturbed.
func TestOpenMPI(t *testing.T) {
	n := build(t, 2)
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	dir := t.TempDir()
	gpt := filepath.Join(dir, "gpt")
	must(t, "go -C", root, "build -o", gpt, "./examples/gpt")
	job := []string{"-data", root + "/comm", "-size", "tiny", "-steps", "500", "-sample-bytes", "0", "-export"}

	calm := exec.Command(gpt, append(job, dir+"/calm", "-ranks", "4")...)
	out, err := calm.CombinedOutput()
	require.NoError(t, err, "%s", out)

	run := n.mpirun(t, dir, append([]string{root + "/examples/cluster/mpi.sh", "hosts"}, append(job, dir+"/disturbed")...))
	text, err := run(syscall.SIGTERM)
	require.Error(t, err)
	require.Contains(t, text, "interrupted after step")
	text, err = run(0)
	require.NoError(t, err, text)
	require.Contains(t, text, "resumed after step")
	require.Contains(t, text, "which 4 ranks saved")

	want, err := os.ReadFile(dir + "/calm")
	require.NoError(t, err)
	got, err := os.ReadFile(dir + "/disturbed")
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// mpirun prepares hosts for Open MPI. run executes a command on the first of them, which gets a
// signal when it trains, unless that is 0.
func (n *network) mpirun(t *testing.T, dir string, command []string) (run func(syscall.Signal) (string, error)) {
	// What mpirun calls in place of ssh has the address of a host and a line for its shell.
	agent := fmt.Sprintf("#!/bin/sh\nhost=$((${1##*.} - 1))\nshift\n"+
		`exec ip netns exec gofsdp-%d-host$host unshare --uts sh -c 'hostname "$0"; eval "$1"' host$host "$*"`+"\n", os.Getpid())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "agent"), []byte(agent), 0o700))
	var hosts strings.Builder
	for h := range n.hosts {
		fmt.Fprintf(&hosts, "10.77.0.%d slots=%d\n", h+1, perHost)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hosts"), []byte(hosts.String()), 0o600))

	return func(s syscall.Signal) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", space(0), "unshare", "--uts", "sh", "-c", `hostname host0; exec "$@"`, "sh"},
			command...)...) // each becomes the next, and mpirun in the end
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "OMPI_MCA_plm_rsh_agent="+filepath.Join(dir, "agent"), "GRACE=1",
			"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr = cmd.Stdout
		require.NoError(t, cmd.Start())
		var text strings.Builder
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Fprintln(&text, lines.Text())
			if s != 0 && strings.HasPrefix(lines.Text(), "step ") {
				require.NoError(t, cmd.Process.Signal(s))
				s = 0
			}
		}
		return text.String(), cmd.Wait()
	}
}
