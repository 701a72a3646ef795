package arena

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the bytes of a huge page on all machines that are measured here.
const hugePage = 2 << 20

// hugePages asks Linux for huge pages where b has whole ones, before they are touched: a block is
// read by rows and by columns, and a page of 4 KiB has one or two rows of a matrix.
// It is a hint: a kernel without huge pages, or with none left, gives small ones.
func hugePages(b []byte) {
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (hugePage - 1))
	if whole := (len(b) - skip) / hugePage * hugePage; whole > 0 {
		_ = unix.Madvise(b[skip:skip+whole], unix.MADV_HUGEPAGE)
	}
}
