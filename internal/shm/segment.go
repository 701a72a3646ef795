package shm

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"
)

// ErrUnsupported is wrapped by the errors of Create and Open where processes
// cannot share memory in the way this package needs.
var ErrUnsupported = errors.New("shm: no shared memory on this system")

// layout identifies a segment and the version of what it holds.
const layout = 0x67_6f_66_73_64_70_00_01

const (
	headerBytes = 8 << 10
	entries     = (headerBytes - 64) / 16
)

// header is what a segment begins with.
type header struct {
	layout    atomic.Uint64
	bell      atomic.Uint32 // rung by every Publish
	_         [52]byte
	directory [entries]entry
}

// entry of the directory. An entry with key 0 is free.
type entry struct {
	key, off atomic.Uint64
}

// A header that does not fit does not compile.
const _ = uint(headerBytes - unsafe.Sizeof(header{}))

// Segment is a piece of memory that several processes map. The process that has
// created it allocates in it; its methods are safe for concurrent use.
type Segment struct {
	mem  []byte   // all of the mapping, most of it without memory yet
	file *os.File // nil in a segment of another process, and after Close

	mu      sync.Mutex
	heap    heap
	closing bool // Close has been called, but memory is allocated
}

// Create makes a segment that can grow up to about limit bytes.
func Create(limit int) (*Segment, error) {
	limit = up(max(min(limit, math.MaxInt-pageBytes), 2*headerBytes), pageBytes)
	file, mem, err := create(limit)
	if err != nil {
		return nil, fmt.Errorf("shm: creating a segment of %d bytes: %w", limit, err)
	}
	s := &Segment{mem: mem, file: file}
	s.heap = heap{top: headerBytes, limit: limit}
	if err := reserve(file, mem, 0, headerBytes); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: reserving the header: %w", err), s.Close())
	}
	s.header().layout.Store(layout)
	return s, nil
}

// Open maps the segment of another process. The file may be closed afterwards.
// A file that is no segment, or that could shrink, is refused.
func Open(file *os.File) (*Segment, error) {
	mem, err := open(file)
	if err != nil {
		return nil, fmt.Errorf("shm: opening a segment: %w", err)
	}
	s := &Segment{mem: mem}
	if got := s.header().layout.Load(); got != layout {
		return nil, errors.Join(fmt.Errorf("shm: opening a segment: layout %#x, want %#x", got, uint64(layout)), s.Close())
	}
	return s, nil
}

func (s *Segment) header() *header { return (*header)(s.base()) }

func (s *Segment) base() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s.mem)) }

// File returns the file to pass to other processes. The segment keeps it.
func (s *Segment) File() *os.File { return s.file }

// Alloc returns n bytes of memory, zeroed, aligned to 64 bytes or, from a page
// on, to a page. In a segment of another process there is nothing to allocate.
func (s *Segment) Alloc(n int) ([]byte, error) {
	b, fresh, err := s.alloc(n)
	if !fresh {
		clear(b)
	}
	return b, err
}

// AllocDirty is Alloc for memory that may hold anything.
func (s *Segment) AllocDirty(n int) ([]byte, error) {
	b, _, err := s.alloc(n)
	return b, err
}

// alloc also reports whether the memory has never been used.
func (s *Segment) alloc(n int) (b []byte, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || n < 0 {
		return nil, false, fmt.Errorf("shm: cannot allocate %d bytes here", n)
	}
	off, ok := s.heap.take(n)
	if !ok {
		lo, hi, ok := s.heap.room(n)
		if !ok {
			return nil, false, fmt.Errorf("shm: no %d bytes left of the %d of the segment", n, len(s.mem))
		}
		if err := reserve(s.file, s.mem, lo, hi); err != nil {
			return nil, false, fmt.Errorf("shm: reserving %d bytes for an allocation of %d: %w", hi-lo, n, err)
		}
		s.heap.grow(hi)
		if off, ok = s.heap.take(n); !ok {
			return nil, false, fmt.Errorf("shm: heap of %d bytes is inconsistent", s.heap.top)
		}
		fresh = off >= lo // else it begins in memory that was free, but used before
	}
	return s.mem[off : off+n : off+max(n, 1)], fresh, nil
}

// Free gives back what Alloc has returned, or a part of it that begins at the
// same place. Memory that is not allocated, or not any more, is an error.
func (s *Segment) Free(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	off, ok := s.Offset(b)
	if !ok || !s.heap.give(off) {
		return fmt.Errorf("shm: freeing %d bytes that are not allocated here, or have been freed", len(b))
	}
	if s.closing && len(s.heap.live) == 0 {
		return s.unmap()
	}
	return nil
}

// Live returns the number of bytes that are allocated, and of those reserved.
func (s *Segment) Live() (allocated, reserved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.heap.live {
		allocated += b.hi - b.lo
	}
	return allocated, s.heap.top
}

// Offset returns where b begins in the segment, and whether all of it lies there.
func (s *Segment) Offset(b []byte) (off int, ok bool) {
	return s.Locate(unsafe.Pointer(unsafe.SliceData(b)), len(b))
}

// Locate is Offset for the n bytes at p.
func (s *Segment) Locate(p unsafe.Pointer, n int) (off int, ok bool) {
	d := uintptr(p) - uintptr(s.base()) // wraps below the segment, to more than any size
	if d >= uintptr(len(s.mem)) || uintptr(n) > uintptr(len(s.mem))-d {
		return 0, false
	}
	return int(d), true
}

// Bytes returns the n bytes from off, and whether they lie in the segment.
func (s *Segment) Bytes(off, n int) ([]byte, bool) {
	if off < 0 || n < 0 || off > len(s.mem) || n > len(s.mem)-off {
		return nil, false
	}
	return s.mem[off : off+n : off+n], true
}

// Publish makes off known under a key other than 0 to all processes that map the
// segment. It is for the few words that processes need to find each other:
// hundreds of keys fit at a time.
func (s *Segment) Publish(key uint64, off int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.header()
	for i := range h.directory {
		if e := &h.directory[i]; e.key.Load() == 0 {
			e.off.Store(uint64(off))
			e.key.Store(key)
			h.bell.Add(1)
			Wake(&h.bell)
			return nil
		}
	}
	return fmt.Errorf("shm: directory of %d entries is full", entries)
}

// Retract ends what Publish has begun.
func (s *Segment) Retract(key uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.header()
	for i := range h.directory {
		if e := &h.directory[i]; e.key.Load() == key {
			e.key.Store(0)
		}
	}
}

// Lookup returns what has been published under a key. Otherwise bell and rung are
// what to [Wait] for before looking again.
func (s *Segment) Lookup(key uint64) (off int, bell *atomic.Uint32, rung uint32, ok bool) {
	h := s.header()
	rung = h.bell.Load()
	for i := range h.directory {
		if e := &h.directory[i]; e.key.Load() == key {
			return int(e.off.Load()), nil, 0, true
		}
	}
	return 0, &h.bell, rung, false
}

// Close ends the use of the segment. What has been allocated in it stays valid
// until it is freed; all other memory of the mapping is gone at once, or when the
// last allocation is. Processes that have opened the segment keep theirs.
func (s *Segment) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem == nil || s.closing {
		return nil
	}
	var err error
	if s.file != nil {
		err = s.file.Close()
		s.file = nil
	}
	if s.closing = len(s.heap.live) > 0; s.closing {
		return err
	}
	return errors.Join(err, s.unmap())
}

func (s *Segment) unmap() error {
	err := unmap(s.mem)
	s.mem = nil
	return err
}
