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

// ErrUnsupported is wrapped by the errors of Create and Open on systems without the required shared
// memory.
var ErrUnsupported = errors.New("shm: no shared memory on this system")

// layout identifies a segment and the version of its layout.
const layout = 0x67_6f_66_73_64_70_00_01

const (
	headerBytes = 8 << 10
	entries     = (headerBytes - 64) / 16
)

// header is the beginning of a segment.
type header struct {
	layout    atomic.Uint64
	bell      atomic.Uint32 // raised by every Publish
	_         [52]byte
	directory [entries]entry
}

// entry is an entry of the directory. An entry with key 0 is free.
type entry struct {
	key, off atomic.Uint64
}

// The next line does not compile if the header is too large.
const _ = uint(headerBytes - unsafe.Sizeof(header{}))

// Segment is a piece of memory that several processes map. The process that created it allocates in
// it. Its methods are safe for concurrent use.
type Segment struct {
	mem  []byte   // the whole mapping, most of it without memory yet
	file *os.File // nil in a segment of another process, and after Close

	mu      sync.Mutex
	heap    heap
	closing bool // Close was called while memory is allocated
}

// Create creates a segment that can grow up to about limit bytes.
func Create(limit int) (*Segment, error) {
	limit = roundUp(max(min(limit, math.MaxInt-pageBytes), 2*headerBytes), pageBytes)
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

// Open maps the segment of another process. The file may be closed afterwards. It refuses a file
// that is not a segment, or that could shrink.
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

// Alloc returns n bytes of zeroed memory, aligned to 64 bytes, or to a page if it is a page or
// more. It fails for a segment of another process.
func (s *Segment) Alloc(n int) ([]byte, error) {
	b, fresh, err := s.alloc(n)
	if !fresh {
		clear(b)
	}
	return b, err
}

// AllocDirty is Alloc for memory with undefined contents.
func (s *Segment) AllocDirty(n int) ([]byte, error) {
	b, _, err := s.alloc(n)
	return b, err
}

// alloc also reports whether the memory has never been used.
func (s *Segment) alloc(n int) (b []byte, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil || n < 0 {
		return nil, false, fmt.Errorf("shm: cannot allocate %d bytes: the segment is closed, or the number is negative", n)
	}
	off, ok := s.heap.take(n)
	if !ok {
		lo, hi, ok := s.heap.room(n)
		if !ok {
			return nil, false, fmt.Errorf("shm: cannot allocate %d bytes: the segment of %d bytes is too full", n, len(s.mem))
		}
		if err := reserve(s.file, s.mem, lo, hi); err != nil {
			return nil, false, fmt.Errorf("shm: reserving %d bytes for an allocation of %d: %w", hi-lo, n, err)
		}
		s.heap.grow(hi)
		if off, ok = s.heap.take(n); !ok {
			return nil, false, fmt.Errorf("shm: heap of %d bytes is inconsistent", s.heap.top)
		}
		fresh = off >= lo // otherwise it begins in memory that was used and freed
	}
	return s.mem[off : off+n : off+max(n, 1)], fresh, nil
}

// Free frees memory that Alloc returned, or a part of it that begins at the same address. It
// returns an error if the memory is not allocated.
func (s *Segment) Free(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	off, ok := s.Offset(b)
	if !ok || !s.heap.give(off) {
		return fmt.Errorf("shm: freeing %d bytes that were not allocated here, or were freed before", len(b))
	}
	if s.closing && len(s.heap.live) == 0 {
		return s.unmap()
	}
	return nil
}

// Live returns the numbers of allocated and of reserved bytes.
func (s *Segment) Live() (allocated, reserved int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.heap.live {
		allocated += b.hi - b.lo
	}
	return allocated, s.heap.top
}

// Offset returns the offset of b in the segment, and whether all of b is inside.
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

// Bytes returns the n bytes from off, and whether they are inside the segment.
func (s *Segment) Bytes(off, n int) ([]byte, bool) {
	if off < 0 || n < 0 || off > len(s.mem) || n > len(s.mem)-off {
		return nil, false
	}
	return s.mem[off : off+n : off+n], true
}

// Publish makes off available under a key other than 0 to all processes that map the segment. It is
// for the few words by which processes find each other: there is room for hundreds of keys at a
// time.
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

// Retract removes a key of Publish.
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

// Lookup returns the offset published under a key. If there is none, the caller can [Wait] for bell
// to change from rung, and look again.
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

// Close ends the use of the segment. Allocations stay valid until they are freed. All other memory
// of the mapping is freed at once, or with the last allocation. Processes that have opened the
// segment keep their mappings.
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
