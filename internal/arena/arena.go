// Package arena hands out the large buffers of one rank and counts every byte of them.
//
// Parameters, gradients and activations of a training step live for a known stretch of a known
// schedule, so the same few buffers can serve every step. An Arena keeps freed blocks and reuses
// them: once the steps repeat, it asks the runtime for little or nothing. It counts live bytes by
// Class and records the peak, so that a test can compare the counted peak with the planned one.
//
//	a := arena.New(arena.Sources{})
//	b, err := a.Alloc(1<<20, arena.Gathered) // 64-byte aligned, contents undefined
//	defer a.Free(b)
//
// Memory comes from the Go heap unless [Sources] names another source: memory that other ranks can
// access, for data that ranks send to each other, or files, for data that does not fit in RAM.
// Sources never mix: a block is only reused for classes with the same source.
//
//	                            Collective    Shard    Spill
//	gathered, gradient              x
//	shard                           x      or   x             Shard, if both are set
//	state                                       x
//	spilled, snapshot                                    x
//	activation, saved, work                                   always the Go heap
//
// An Arena belongs to one rank and is not safe for concurrent use.
package arena

import (
	"errors"
	"fmt"
	"sort"
	"unsafe"
)

// Align is the alignment in bytes of every block: a cache line, and the width of the widest vector
// register.
const Align = 64

// Class is the purpose of a block. It decides how the block is counted and where its memory comes
// from.
type Class uint8

// These are the classes of memory of a sharded training step.
const (
	Shard      Class = iota // the rank's share of parameters and gradients, for the lifetime of the model
	State                   // the optimizer state for this share, for the lifetime of the model; never sent
	Gathered                // full parameters of a group while it computes
	Gradient                // full gradients of a group until they are reduced
	Activation              // values passed between calls, and their gradients
	Saved                   // values that a call saves in its forward for its backward
	Spilled                 // the part of Saved that was moved out of RAM
	Work                    // scratch of the running call
	Snapshot                // a copy of the rank's share, for SaveAsync
	Classes                 // number of classes
)

// String returns the class in lower case.
func (c Class) String() string {
	names := [Classes]string{"shard", "state", "gathered", "gradient", "activation", "saved", "spilled", "work", "snapshot"}
	if c < Classes {
		return names[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// A Limit bounds the memory of processes.
type Limit struct {
	ID   uint64 // the same for all processes that share the limit, on any host
	Left int    // bytes
	Name string
}

// A Source provides memory.
type Source interface {
	// Alloc returns n > 0 bytes, aligned to at least Align.
	Alloc(n int) ([]byte, error)
	// Free takes back all of a slice that Alloc returned. It may be called when the memory no
	// longer exists.
	Free(b []byte) error
}

// Sources are the sources of an arena's memory. A nil field means the Go heap.
type Sources struct {
	// Collective provides the memory of data that ranks send each other: Shard, Gathered and
	// Gradient.
	Collective Source
	// Shard provides the memory of Shard, in place of Collective, and of State.
	Shard Source
	// Spill provides the memory of Spilled and Snapshot.
	Spill Source
}

// A Block is one buffer. Data is valid until the block is freed.
type Block struct {
	Data  []byte
	whole []byte // the allocation behind Data, at least as long; nil in a dry arena
	size  int    // of the allocation in bytes
	asked int    // requested bytes
	class Class
	pool  *pool
	phase Phase // phase that last freed the block
	step  int   // of that phase
}

// Stats counts bytes. Live and Peak count requested bytes; Reserved also counts freed blocks kept
// for reuse.
type Stats struct {
	Live     [Classes]int
	Total    int // sum of Live
	Peak     int // largest Total since the last ResetPeak
	Reserved int
}

// An Arena allocates blocks.
type Arena struct {
	// Poison fills freed blocks with 0xFF bytes, which are NaN in every float type: a use after
	// free then shows.
	Poison bool

	heap  *pool
	of    [Classes]*pool      // source of each class: heap, or the pool of a Source
	pools []*pool             // each once
	live  map[*Block]struct{} // allocated blocks; nil after Close
	stats Stats
	phase Phase
	steps [phases]int // number of steps ended, by phase
}

// A pool is the free blocks of one source.
type pool struct {
	source Source
	free   []*Block // sorted by size
}

// Phase is a kind of step with its own working set. Blocks age by the steps of the phase that used
// them last, so that a long evaluation does not free the buffers of the training.
type Phase uint8

// The phases.
const (
	Training Phase = iota
	Evaluation
	phases
)

// New returns an empty arena whose memory comes from s.
func New(s Sources) *Arena {
	heap := &pool{source: goHeap{}}
	a := &Arena{heap: heap, pools: []*pool{heap}, live: make(map[*Block]struct{})}
	for class := range a.of {
		a.of[class] = heap
	}
	a.draw(s.Collective, Shard, Gathered, Gradient)
	a.draw(s.Shard, Shard, State)
	a.draw(s.Spill, Spilled, Snapshot)
	return a
}

// Dry returns an empty arena that counts like a, for blocks without memory. It shows the bytes that
// steps will reserve before they run.
func (a *Arena) Dry() *Arena {
	d := &Arena{live: make(map[*Block]struct{})}
	for _, p := range a.pools {
		dry := &pool{source: nowhere{}}
		d.pools = append(d.pools, dry)
		for class := range a.of {
			if a.of[class] == p {
				d.of[class] = dry
			}
		}
	}
	d.heap = d.pools[0]
	return d
}

// nowhere is the source of blocks without memory.
type nowhere struct{}

// Alloc implements Source.
func (nowhere) Alloc(int) ([]byte, error) { return nil, nil }

// Free implements Source.
func (nowhere) Free([]byte) error { return nil }

// draw makes a source provide the given classes, unless it is nil.
func (a *Arena) draw(from Source, classes ...Class) {
	if from == nil {
		return
	}
	p := &pool{source: from}
	a.pools = append(a.pools, p)
	for _, class := range classes {
		a.of[class] = p
	}
}

// errClosed is the error of allocations from a closed arena.
var errClosed = errors.New("the arena is closed")

// Alloc returns a block of n bytes with undefined contents. It returns an error after Close, or if
// the source of this class has no memory left.
func (a *Arena) Alloc(n int, class Class) (*Block, error) {
	p := a.of[class]
	if n == 0 { // sources need not handle 0 bytes
		p = a.heap
	}
	b, err := a.take(p, n)
	if err != nil {
		return nil, fmt.Errorf("allocating %d bytes of %v memory: %w", n, class, err)
	}
	if b.class, b.asked = class, n; b.whole != nil {
		b.Data = b.whole[:n:n]
	}
	a.live[b] = struct{}{}
	a.stats.Live[class] += n
	a.stats.Total += n
	a.stats.Peak = max(a.stats.Peak, a.stats.Total)
	return b, nil
}

// take returns a free block of p that holds n bytes, or a new one.
func (a *Arena) take(p *pool, n int) (*Block, error) {
	if a.live == nil {
		return nil, errClosed
	}
	if b := p.take(n); b != nil {
		return b, nil
	}
	whole, err := p.source.Alloc(n)
	if err != nil {
		return nil, err
	}
	a.stats.Reserved += n
	return &Block{whole: whole, size: n, pool: p}, nil
}

// take returns the smallest free block that holds n bytes and wastes at most an eighth of its own,
// or nil.
func (p *pool) take(n int) *Block {
	i := sort.Search(len(p.free), func(i int) bool { return p.free[i].size >= n })
	if i == len(p.free) || p.free[i].size > n+n/8 {
		return nil
	}
	b := p.free[i]
	p.free = append(p.free[:i], p.free[i+1:]...)
	return b
}

// put adds b to the free blocks.
func (p *pool) put(b *Block) {
	i := sort.Search(len(p.free), func(i int) bool { return p.free[i].size >= b.size })
	p.free = append(p.free, nil)
	copy(p.free[i+1:], p.free[i:])
	p.free[i] = b
}

// drop returns the free blocks for which old is true to the source.
func (p *pool) drop(old func(*Block) bool) (bytes int, err error) {
	kept := p.free[:0]
	for _, b := range p.free {
		if !old(b) {
			kept = append(kept, b)
			continue
		}
		bytes += b.size
		if e := p.source.Free(b.whole); err == nil {
			err = e
		}
	}
	clear(p.free[len(kept):])
	p.free = kept
	return bytes, err
}

// poison fills free memory: numbers of 32 and 64 bits are NaN there.
var poison = []byte{0xFF}

// Free takes b back. Freeing nil, or anything after Close, is a no-op; freeing a block twice is a
// bug of the caller and panics.
func (a *Arena) Free(b *Block) {
	if b == nil || a.live == nil {
		return
	}
	if _, ok := a.live[b]; !ok {
		panic("arena: block freed twice")
	}
	if a.Poison {
		for n := copy(b.Data, poison); n > 0 && n < len(b.Data); n *= 2 {
			copy(b.Data[n:], b.Data[:n])
		}
	}
	delete(a.live, b)
	a.stats.Live[b.class] -= b.asked
	a.stats.Total -= b.asked
	b.phase, b.step = a.phase, a.steps[a.phase]
	b.pool.put(b)
}

// Swap exchanges the memory of two blocks. It reports false, and does nothing, if they differ in
// length or source.
func (a *Arena) Swap(x, y *Block) bool {
	if x.asked != y.asked || x.pool != y.pool {
		return false
	}
	x.Data, y.Data = y.Data, x.Data
	x.whole, y.whole = y.whole, x.whole
	x.size, y.size = y.size, x.size
	return true
}

// Begin sets the phase of the following steps.
func (a *Arena) Begin(p Phase) { a.phase = p }

// EndStep ends a step of the current phase. It drops the free blocks of that phase that its last
// two steps have not used, so that the memory of an old batch shape is not kept. It returns the
// first error of each source that refused a block; the block is dropped anyway.
func (a *Arena) EndStep() error {
	a.steps[a.phase]++
	return a.drop(func(b *Block) bool { return b.phase == a.phase && a.steps[a.phase]-b.step > 2 })
}

// drop returns free blocks to their sources.
func (a *Arena) drop(old func(*Block) bool) error {
	var failed error
	for _, p := range a.pools {
		bytes, err := p.drop(old)
		a.stats.Reserved -= bytes
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return fmt.Errorf("giving memory back: %w", failed)
	}
	return nil
}

// Close frees all memory, including live blocks. It does not access the memory, so it may be called
// after the source is gone. No more blocks can be allocated. Closing again does nothing.
func (a *Arena) Close() error {
	for b := range a.live {
		b.pool.put(b)
	}
	a.live = nil
	a.stats.Live, a.stats.Total = [Classes]int{}, 0
	return a.drop(func(*Block) bool { return true })
}

// Stats returns the current counts.
func (a *Arena) Stats() Stats { return a.stats }

// ResetPeak sets the peak to the bytes that are live now.
func (a *Arena) ResetPeak() { a.stats.Peak = a.stats.Total }

// goHeap is the source of memory that only this rank uses.
type goHeap struct{}

// Alloc implements Source. It also takes n = 0.
func (goHeap) Alloc(n int) (b []byte, err error) {
	defer func() {
		if r := recover(); r != nil { // make panics for more than any machine has
			err = fmt.Errorf("%v", r)
		}
	}()
	raw := make([]byte, n+Align)
	HugePages(raw)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Align - 1))
	return raw[skip : skip+n : skip+n], nil
}

// Free implements Source. It does nothing: the garbage collector frees the memory.
func (goHeap) Free([]byte) error { return nil }
