//go:build !purego

package gemm

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// refusing is the variable that makes a process of this test refuse itself the tiles first.
const refusing = "GEMM_TEST_REFUSE_TILES"

// TestTilesRefused starts a process whose seccomp filter answers EPERM to the request for tiles. It
// computes with the next instruction set.
func TestTilesRefused(t *testing.T) {
	if os.Getenv(refusing) == "1" {
		require.NoError(t, refuseTiles())
		require.NoError(t, os.Setenv(refusing, "2"))
		require.NoError(t, syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	if os.Getenv(refusing) == "2" {
		require.ErrorIs(t, tilesAllowed(), unix.EPERM)
		require.False(t, Tiles())
		p := newHalfProblem(false, true, 33, 34, 70, 0, 1, 1, draws["ordinary"], 1)
		requireBits(t, p, p.naive(), p.gemm(new(Workspace)))
		fmt.Println("computed with", active.name)
		return
	}
	child := exec.Command("/proc/self/exe", "-test.run=^TestTilesRefused$", "-test.v")
	child.Env = append(os.Environ(), refusing+"=1")
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "computed with")
}

// refuseTiles makes Linux answer EPERM to arch_prctl(ARCH_REQ_XCOMP_PERM), for this thread and for the
// programs that it executes.
func refuseTiles() error {
	runtime.LockOSThread()
	const arg0 = 16 // offset of the first argument in struct seccomp_data
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_ARCH_PRCTL, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: arg0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x1023, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}
