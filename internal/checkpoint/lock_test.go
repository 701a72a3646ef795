package checkpoint_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/checkpoint/crashfs"
)

// holderEnv names the directory that the test's own program, run again, is to lock.
const holderEnv = "CHECKPOINT_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holderEnv); dir != "" {
		hold(dir)
	}
	os.Exit(m.Run())
}

// hold locks a directory, says so, and stays until it is killed or its input ends.
func hold(dir string) {
	s, err := checkpoint.Open(checkpoint.OS(), dir)
	if err == nil {
		err = s.Lock(ctx)
	}
	fmt.Println("lock:", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func TestLock(t *testing.T) {
	for name, fsys := range map[string]checkpoint.FS{"OS": checkpoint.OS(), "crashfs": crashfs.New()} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ckpt")
			if name == "crashfs" {
				dir = "ckpt"
			}
			first, err := checkpoint.Open(fsys, dir)
			require.NoError(t, err)
			second, err := checkpoint.Open(fsys, dir)
			require.NoError(t, err)
			for range 2 {
				require.NoError(t, first.Lock(ctx))
				err = second.Lock(ctx)
				require.ErrorIs(t, err, checkpoint.ErrLocked)
				requireOwner(t, err, filepath.Join(dir, "lock"), os.Getpid())
				require.NoError(t, second.Close(), "it has nothing to close")
				require.ErrorIs(t, second.Lock(ctx), checkpoint.ErrLocked)
				require.NoError(t, first.Close())
				first, second = second, first
			}
			over, cancel := context.WithCancel(ctx)
			cancel()
			require.ErrorIs(t, first.Lock(over), context.Canceled)
		})
	}
}

// requireOwner checks that an error names the holder of a lock.
func requireOwner(t *testing.T, err error, path string, pid int) {
	host, hostErr := os.Hostname()
	require.NoError(t, hostErr)
	var locked *checkpoint.LockedError
	require.ErrorAs(t, err, &locked)
	require.Equal(t, path, locked.Path)
	require.Contains(t, locked.Owner, fmt.Sprintf("host %s, pid %d, since 2", host, pid))
	require.Contains(t, err.Error(), locked.Owner)
	if pid == os.Getpid() {
		require.ErrorContains(t, err, "in use by another model of this process")
	} else {
		require.ErrorContains(t, err, "in use by another job")
	}
	require.NotContains(t, err.Error(), "\n")
}

// TestLockOfTheDead checks that the lock of another process holds until that process dies, however
// it does, and no longer.
func TestLockOfTheDead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ckpt")
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), holderEnv+"="+dir)
	_, err := other.StdinPipe() // which ends with this process, if not before
	require.NoError(t, err)
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "lock: <nil>", strings.TrimSpace(line))

	_, err = save(checkpoint.OS(), dir, 1, 1)
	require.ErrorIs(t, err, checkpoint.ErrLocked)
	requireOwner(t, err, filepath.Join(dir, "lock"), other.Process.Pid)
	require.NoError(t, other.Process.Kill())
	_ = other.Wait() // it says that the process was killed

	_, err = save(checkpoint.OS(), dir, 1, 1)
	require.NoError(t, err)
}

// TestLockWithoutText checks that the text in the file is no part of the lock.
func TestLockWithoutText(t *testing.T) {
	dir := t.TempDir()
	first, err := checkpoint.Open(checkpoint.OS(), dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), []byte("host a, pid 1, since 2020-01-01T00:00:00Z\n\x00\x00"), 0o644))
	require.NoError(t, first.Lock(ctx))
	text, err := os.ReadFile(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	require.Regexp(t, `^host .*, pid \d+, since \S+\n$`, string(text))
	require.NoError(t, os.Truncate(filepath.Join(dir, "lock"), 0))
	second, err := checkpoint.Open(checkpoint.OS(), dir)
	require.NoError(t, err)
	err = second.Lock(ctx)
	require.ErrorIs(t, err, checkpoint.ErrLocked)
	require.ErrorContains(t, err, "one that has just begun")
	require.NoError(t, first.Close())
	require.NoError(t, second.Lock(ctx))
	require.NoError(t, second.Close())
	text, err = os.ReadFile(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	require.Empty(t, text, "nobody holds it")
}

// TestLockIsNotOurs has somebody else's file where the lock should be: it stays as it is.
func TestLockIsNotOurs(t *testing.T) {
	for _, text := range []string{
		"a thesis", "host of others\n", "host a, pid 1, since 2020-01-01T00:00:00Z\nand more", strings.Repeat("\x00", 2000),
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "lock")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		_, err := save(checkpoint.OS(), dir, 1, 1)
		require.EqualError(t, err, "checkpoint: lock "+path+": it is not a lock file, so it is not changed")
		left, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, text, string(left))
		require.Equal(t, []string{"lock"}, bases(t, checkpoint.OS(), dir))
	}
}
