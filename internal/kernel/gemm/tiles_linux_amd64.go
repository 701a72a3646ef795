//go:build !purego

package gemm

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// errNoTiles means that Linux reported no error but did not allow the tiles.
var errNoTiles = errors.New("gemm: Linux has not allowed the tiles of AMX")

// tilesAllowed asks Linux to let all threads of this process use the tiles of AMX. It returns an error if
// Linux refuses. Linux before 5.16 and some sandboxes lack the call. It also fails if a thread's signal
// stack is too small for the tiles; Go's signal stacks are large enough. Once tiles are allowed, a C
// thread cannot install such a small signal stack any more (ENOMEM). See Linux'
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
