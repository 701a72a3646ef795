package timeline

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/perfetto/perfettotest"
)

// TestFiles has two processes of a job that make models together, and others of their own, and are
// started again with one process less. Each has a file of its own, and a place in the joined trace.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	open := func(restart, place int, size int, g comm.Group, model int) {
		for name, v := range map[string]int{"RANK": place, "WORLD_SIZE": size, "TORCHELASTIC_RESTART_COUNT": restart} {
			t.Setenv(name, strconv.Itoa(v))
		}
		f, err := Open(t.Context(), dir, g, model)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	t.Setenv("MASTER_ADDR", "localhost")
	t.Setenv("MASTER_PORT", "29500")
	for place := range 2 {
		opened.Store(0) // another process
		for model := range 5 {
			open(0, place, 2, comm.Local(1)[0], model+1)
		}
	}
	opened.Store(0)
	for model := range 5 {
		open(1, 0, 1, comm.Local(1)[0], model+1)
	}
	for _, name := range []string{"RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"} {
		t.Setenv(name, "")
	}
	require.NoError(t, comm.Run(t.Context(), 4, func(ctx context.Context, g comm.Group) error {
		f, err := Open(ctx, dir, g, 6)
		if err != nil {
			return err
		}
		return f.Close()
	}))
	files, err := filepath.Glob(filepath.Join(dir, "rank-*"+Suffix))
	require.NoError(t, err)
	require.Len(t, files, 2*5+5+4)
	var all bytes.Buffer
	for _, name := range files {
		file, err := os.ReadFile(name)
		require.NoError(t, err)
		all.Write(file)
	}
	joined := filepath.Join(dir, "all")
	require.NoError(t, os.WriteFile(joined, all.Bytes(), 0o666))
	processes := make(map[string]bool)
	for _, row := range perfettotest.Read(t, joined) {
		processes[row.Process] = true
	}
	require.Len(t, processes, len(files))
}

// TestCloseReportsAnError of writing, on standard error, too: programs may drop the error of Close.
func TestCloseReportsAnError(t *testing.T) {
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	before := os.Stderr
	os.Stderr = stderr
	defer func() { os.Stderr = before }()
	f, err := Open(t.Context(), t.TempDir(), comm.Local(1)[0], 1)
	require.NoError(t, err)
	require.NoError(t, f.file.Close())
	require.ErrorIs(t, f.Close(), os.ErrClosed)
	require.NoError(t, stderr.Close())
	text, err := os.ReadFile(stderr.Name())
	require.NoError(t, err)
	require.Equal(t, 1, bytes.Count(text, []byte("fsdp: rank 0: the trace is not recorded any more: ")), "%s", text)
}
