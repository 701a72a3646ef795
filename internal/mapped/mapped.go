// Package mapped provides memory in files, for data that does not fit in RAM.
//
// [Files] allocates blocks that are mapped from files of one directory. They are read and written
// like any other memory. The kernel keeps used pages in RAM, writes the others to the disk and
// reads them back on access. So the disk limits the size of a rank's memory, and the size of its
// working set decides the speed. A [Files] is an [arena.Source]:
//
//	f, err := mapped.Open("/scratch")            // a private directory in /scratch
//	a := arena.New(arena.Sources{Shard: f, Spill: f})
//	...
//	err = errors.Join(a.Close(), f.Close())
//
// The kernel cannot predict the next access, but the schedule of a training step can. It calls
// [Files.WillNeed]: read-ahead begins, and the call does not wait for it.
//
// # Invariants
//
//   - The disk space of a block is allocated before the block is returned. If the disk is full,
//     Alloc returns a [SpaceError], and no signal arrives in the middle of a pass. (File systems
//     that copy on write, such as btrfs and ZFS, cannot guarantee this.)
//   - A file in use has no name: when the process ends, in any way, its space is freed, and at most
//     an empty directory is left.
//   - Blocks of 64 KiB and more have their own file and begin with a page. Smaller ones share files
//     of 1 MiB, begin at [arena.Align], and stay in RAM: WillNeed does nothing for them.
//
// If a disk fails to read a page back, a signal ends the process, as for every mapped file. A
// directory in tmpfs is RAM, and files in it save nothing.
//
// The package works on Linux and macOS. On other systems Open returns [ErrUnsupported].
package mapped

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/arena"
)

const (
	smallBytes = 64 << 10 // smaller blocks share files
	sharedSize = 1 << 20  // size of a file that blocks share
)

// ErrUnsupported is wrapped by the error of Open on systems without the required mapped files. It
// is an [errors.ErrUnsupported].
var ErrUnsupported = fmt.Errorf("no mapped files on this system: %w", errors.ErrUnsupported)

// A SpaceError means that the disk has no space for a block.
type SpaceError struct {
	Dir  string // directory of the file
	Size int    // bytes asked for
	Free int    // bytes that were free
	Err  error  // the system's error for a full disk, a quota or a limit on files
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("mapped: no place for %d bytes in %s, where %d are free: %v", e.Size, e.Dir, e.Free, e.Err)
}

func (e *SpaceError) Unwrap() error { return e.Err }

// Files allocates blocks of memory in the files of a directory. Its methods are not safe for
// concurrent use. The blocks are ordinary memory.
type Files struct {
	dir    string        // private to this Files, and empty: the files in use have no names
	maps   []*mapping    // sorted by address; nil after Close
	live   map[*byte]int // bytes of every allocated block, by its first byte
	shared *mapping      // the mapping for new small blocks, or nil
}

var _ arena.Source = (*Files)(nil)

// A mapping is a file in memory.
type mapping struct {
	mem    []byte // the whole mapping, in pages
	shared bool   // by small blocks
	cut    int    // bytes of mem that were allocated once; they are not reused
	live   int    // number of allocated blocks; the mapping ends at 0
}

// Open creates a private directory in dir, which must exist, for files that live until Close. dir
// must not be empty.
func Open(dir string) (*Files, error) {
	if dir == "" {
		return nil, errors.New("mapped: no directory is named for the files")
	}
	if !supported {
		return nil, fmt.Errorf("mapped: files in %s: %w", dir, ErrUnsupported)
	}
	private, err := os.MkdirTemp(dir, "gofsdp-")
	if err != nil {
		return nil, fmt.Errorf("mapped: making a directory: %w", err)
	}
	return &Files{dir: private, maps: []*mapping{}, live: make(map[*byte]int)}, nil
}

// Alloc implements [arena.Source]. The memory is zero.
func (f *Files) Alloc(n int) ([]byte, error) {
	if f.maps == nil {
		return nil, errClosed
	}
	if n <= 0 {
		return nil, fmt.Errorf("mapped: cannot allocate %d bytes", n)
	}
	m, err := f.room(n)
	if err != nil {
		return nil, err
	}
	b := m.mem[m.cut : m.cut+n : m.cut+n]
	m.cut = min(m.cut+roundUp(n, arena.Align), len(m.mem))
	m.live++
	f.live[unsafe.SliceData(b)] = n
	return b, nil
}

// errClosed is the error of allocations after Close.
var errClosed = errors.New("mapped: the files are closed")

// room returns a mapping with n unused bytes.
func (f *Files) room(n int) (*mapping, error) {
	if n >= smallBytes {
		return f.newMapping(n)
	}
	if f.shared != nil && n <= len(f.shared.mem)-f.shared.cut {
		return f.shared, nil
	}
	m, err := f.newMapping(sharedSize)
	if err == nil {
		m.shared, f.shared = true, m
	}
	return m, err
}

// newMapping maps a new file of at least n bytes.
func (f *Files) newMapping(n int) (*mapping, error) {
	if free := freeBytes(f.dir); n > free {
		// Without this check the allocation would fill the disk before it fails, at the cost of all
		// other writers.
		return nil, &SpaceError{Dir: f.dir, Size: n, Free: free, Err: errFull}
	}
	file, err := nameless(f.dir)
	if err != nil {
		return nil, fmt.Errorf("mapped: making a file of %d bytes: %w", n, err)
	}
	size := roundUp(n, os.Getpagesize())
	if err := reserve(file, size); err != nil {
		file.Close() // which has nothing to lose
		return nil, &SpaceError{Dir: f.dir, Size: n, Free: freeBytes(f.dir), Err: err}
	}
	mem, err := mmap(file, size)
	if err = errors.Join(err, file.Close()); err != nil { // the mapping keeps the file
		return nil, fmt.Errorf("mapped: mapping a file of %d bytes in %s: %w", n, f.dir, err)
	}
	m := &mapping{mem: mem}
	i, _ := f.find(unsafe.SliceData(mem))
	f.maps = slices.Insert(f.maps, i, m)
	return m, nil
}

// nameless returns a new file in dir whose space is freed when it is neither open nor mapped.
func nameless(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, "block-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// roundUp rounds n up to a multiple of align, a power of two.
func roundUp(n, align int) int { return (n + align - 1) &^ (align - 1) }

// find returns the index of the mapping that p points into, or the index at which it would be.
func (f *Files) find(p *byte) (i int, ok bool) {
	return slices.BinarySearchFunc(f.maps, uintptr(unsafe.Pointer(p)), func(m *mapping, p uintptr) int {
		switch begin := uintptr(unsafe.Pointer(unsafe.SliceData(m.mem))); {
		case p < begin:
			return 1
		case p >= begin+uintptr(len(m.mem)):
			return -1
		}
		return 0
	})
}

// Free implements [arena.Source]. It returns an error if b is not an allocated block, and after
// Close.
func (f *Files) Free(b []byte) error {
	if f.maps == nil {
		return errClosed
	}
	first := unsafe.SliceData(b)
	if n, ok := f.live[first]; !ok || n != len(b) {
		return fmt.Errorf("mapped: freeing %d bytes that were not allocated here, or were freed before", len(b))
	}
	delete(f.live, first)
	i, _ := f.find(first)
	m := f.maps[i]
	if m.live--; m.live > 0 {
		return nil
	}
	f.maps = slices.Delete(f.maps, i, i+1)
	if f.shared == m {
		f.shared = nil
	}
	return unmap(m.mem)
}

// WillNeed begins to read b, a block or a part of one, back into RAM if it is not there. It does
// not wait for the disk.
func (f *Files) WillNeed(b []byte) error {
	pages, err := f.pages(b)
	if err != nil || len(pages) == 0 {
		return err
	}
	if err := willNeed(pages); err != nil {
		return fmt.Errorf("mapped: reading %d bytes ahead: %w", len(b), err)
	}
	return nil
}

// pages returns the whole pages of b's file that hold b. It returns none if other blocks may be on
// them.
func (f *Files) pages(b []byte) ([]byte, error) {
	if f.maps == nil {
		return nil, errClosed
	}
	if len(b) == 0 {
		return nil, nil
	}
	i, ok := f.find(&b[0])
	if !ok {
		return nil, fmt.Errorf("mapped: %d bytes were not allocated here", len(b))
	}
	m := f.maps[i]
	lo := int(uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&m.mem[0])))
	switch page := os.Getpagesize(); {
	case len(b) > len(m.mem)-lo:
		return nil, fmt.Errorf("mapped: of %d bytes only %d were allocated here", len(b), len(m.mem)-lo)
	case m.shared:
		return nil, nil
	default:
		return m.mem[lo&^(page-1) : roundUp(lo+len(b), page)], nil
	}
}

// Close ends all mappings and removes the directory. Live blocks must not be accessed any more.
// Closing again does nothing.
func (f *Files) Close() error {
	if f.maps == nil {
		return nil
	}
	var failed error
	for _, m := range f.maps {
		failed = errors.Join(failed, unmap(m.mem))
	}
	f.maps, f.live, f.shared = nil, nil, nil
	if failed = errors.Join(failed, os.Remove(f.dir)); failed != nil {
		return fmt.Errorf("mapped: closing the files of %s: %w", f.dir, failed)
	}
	return nil
}
