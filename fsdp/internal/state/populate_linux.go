package state

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// populate makes the system give pages to all of b at once, before b is written. One by one, pages
// take twice as long.
func populate(mem []byte) {
	page := uintptr(os.Getpagesize())
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(mem))) % page
	if whole := (uintptr(len(mem)) - min(skip, uintptr(len(mem)))) / page * page; whole > 0 {
		_ = unix.Madvise(mem[skip:skip+whole], unix.MADV_POPULATE_WRITE) // a hint, before Linux 5.14 unknown
	}
}
