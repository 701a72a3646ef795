package mesh

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Environment of a child: the test binary as another process of the job.
const (
	childFolder = "GOFSDP_MESH_FOLDER"
	childRank   = "GOFSDP_MESH_RANK"
	childSize   = "GOFSDP_MESH_SIZE"
	childHost   = "GOFSDP_MESH_HOST"
)

// child joins, says so to rank 0, and leaves when its standard input ends.
func child() int {
	rank, err1 := strconv.Atoi(os.Getenv(childRank))
	size, err2 := strconv.Atoi(os.Getenv(childSize))
	j := job{folder(os.Getenv(childFolder)), size, func(c *Config) { c.Host = os.Getenv(childHost) }, patience}
	m, _, err3 := j.join(context.Background(), rank)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	_ = m.Send(0, []byte("hello"))
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = m.Close()
	return 0
}

// offspring is a running child.
type offspring struct {
	*exec.Cmd
	input  io.Closer
	stderr strings.Builder
}

// spawn starts a child as one rank of j.
func (j job) spawn(t *testing.T, rank int, host string) *offspring {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	p := &offspring{Cmd: exec.Command(exe)}
	p.Env = append(os.Environ(), childFolder+"="+string(j.folder), fmt.Sprint(childRank, "=", rank), fmt.Sprint(childSize, "=", j.size), childHost+"="+host)
	p.Stderr = &p.stderr
	p.input, err = p.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	return p
}

// TestProcesses lets one of two other processes be killed and the other leave.
func TestProcesses(t *testing.T) {
	for _, host := range []string{"", "far"} {
		j := newJob(t, 3, nil)
		killed, leaving := j.spawn(t, 1, host), j.spawn(t, 2, host)
		ranks := j.try(t, 0)
		require.NoError(t, ranks[0].err)
		e := ranks[0].ear
		e.first(t, 1, 1)
		e.first(t, 2, 1)

		require.NoError(t, killed.Process.Kill())
		lost := e.first(t, 1, 2)[1]
		require.Equal(t, "lost", lost.what)
		require.Regexp(t, fmt.Sprintf(`^rank 1 on host \S+ pid %d: the connection ended unexpectedly`, killed.Process.Pid), lost.text)

		require.NoError(t, leaving.input.Close())
		require.NoError(t, leaving.Wait(), &leaving.stderr)
		require.Equal(t, heard{"gone", 2, ""}, e.first(t, 2, 2)[1])
	}
}

// TestKilledWhileJoining lets a process die that has joined, but for one rank that never comes.
func TestKilledWhileJoining(t *testing.T) {
	t.Parallel()
	j := newJob(t, 3, nil)
	killed := j.spawn(t, 1, "")
	m := newMesh(mustCheck(t, Config{Rank: 0, Size: 3, Store: j.folder, Job: "test/1", Secret: secret, Handler: newEar()}))
	done := make(chan error)
	ctx := timeout(t, patience)
	go func() {
		err := m.prepare()
		if err == nil {
			err = m.join(ctx)
		}
		done <- err
	}()
	require.Eventually(t, func() bool { _, err := m.peer(1); return err == nil }, patience, 1e6)
	require.NoError(t, killed.Process.Kill())
	require.ErrorContains(t, <-done, "has the process died?")
	m.end(frameAbort, nil)
}
