//go:build !purego

package gemm

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errNoTiles is returned where Linux reports no error and allows no tiles either.
var errNoTiles = errors.New("gemm: Linux has not allowed the tiles of AMX")

// tilesAllowed asks Linux to let this process and all its threads use the tiles of AMX, and returns
// why it may not. Linux before 5.16 and sandboxes know no such call. Threads whose signal stack is too
// small for the tiles make it fail; those of Go are large enough. Once tiles are allowed, a thread of C
// cannot install such a small signal stack any more (ENOMEM). See Linux'
// Documentation/arch/x86/xstate.rst.
func tilesAllowed() error {
	const allow, allowed, tileData = 0x1023, 0x1022, 18
	if _, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, allow, tileData, 0); errno != 0 {
		return fmt.Errorf("gemm: Linux does not allow the tiles of AMX: %w", errno)
	}
	var features uint64
	if _, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, allowed, uintptr(unsafe.Pointer(&features)), 0); errno != 0 {
		return fmt.Errorf("gemm: asking Linux about the tiles of AMX: %w", errno)
	}
	if features>>tileData&1 == 0 {
		return errNoTiles
	}
	return nil
}
