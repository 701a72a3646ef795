//go:build linux && cgo

package gpudouble

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// hold names what a child process does: it builds the doubles, says where, and waits.
const hold = "FSDP_DOUBLE_TEST_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(hold) == "" {
		goleak.VerifyTestMain(m)
	}
	os.Exit(m.Run())
}

func TestBuild(t *testing.T) {
	libs := Build(t)
	if os.Getenv(hold) != "" {
		fmt.Println(filepath.Dir(filepath.Dir(libs.CUDA)))
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	require.Equal(t, "libcuda.so.1", filepath.Base(libs.CUDA))
	require.Equal(t, "libnccl.so.2", filepath.Base(libs.NCCL))
	require.FileExists(t, libs.CUDA)
	require.FileExists(t, libs.NCCL)
	require.Equal(t, libs, Build(t), "built once")
	require.NotEqual(t, libs, Build(t, "-DSOMETHING_ELSE"))
}

// TestNothingIsLeftOnDisk checks that a process's libraries are removed even if it is killed.
func TestNothingIsLeftOnDisk(t *testing.T) {
	child := exec.Command(os.Args[0], "-test.run=^TestBuild$")
	child.Env = append(os.Environ(), hold+"=1")
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	dir, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	dir = dir[:len(dir)-1]
	require.DirExists(t, dir)

	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	_ = in.Close()
	require.Eventually(t, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) }, 10*time.Second, 10*time.Millisecond)
}
