package arena

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the bytes of a huge page on all machines measured here.
const hugePage = 2 << 20

// HugePages asks Linux for huge pages for the whole ones in b, before they are touched. A block is
// read by rows and by columns, and a page of 4 KiB has only one or two rows of a matrix. This is a
// hint: a kernel without huge pages, or with none left, provides small ones.
//
// The pages at both ends are not included. With them a step of ranks in one process was faster, 380
// to 300 ms in bfloat16, but a step of two processes took 330 ms, not 205 (Intel Xeon with AMX,
// 2026-11-29). The reason is not known.
func HugePages(b []byte) {
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (hugePage - 1))
	if whole := (len(b) - skip) / hugePage * hugePage; whole > 0 {
		_ = unix.Madvise(b[skip:skip+whole], unix.MADV_HUGEPAGE)
	}
}
