// Package arena hands out the large buffers of one rank and counts every byte of them.
//
// Parameters, gradients and activations of a training step live for a known stretch of a known
// schedule, so the same few buffers can serve every step. An Arena keeps freed blocks and gives
// them out again: once the steps repeat it asks the runtime for little or nothing. It counts what
// is live by Class and remembers the peak, so that a test can hold the counted peak against the one
// that was planned.
//
//	a := arena.New(arena.Sources{})
//	b, err := a.Alloc(1<<20, arena.Gathered) // 64-byte aligned, contents undefined
//	defer a.Free(b)
//
// Memory comes from the Go heap unless [Sources] names another place: memory that the other ranks
// can reach for what ranks send to each other, files for what is too much for RAM. They never mix:
// a block is only given out again to a class that comes from the same place.
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

// Class says what a block is used for: what it counts as, and where its memory comes from.
type Class uint8

// The classes of memory of a sharded training step.
const (
	Shard      Class = iota // the rank's share of parameters and gradients, as long as the model
	State                   // what the optimizer keeps for it, as long as the model; never sent
	Gathered                // full parameters of a group while it computes
	Gradient                // full gradients of a group until they are reduced
	Activation              // values passed between calls, and their gradients
	Saved                   // what a call keeps from its forward for its backward
	Spilled                 // the part of it that was moved out of RAM
	Work                    // scratch of the call that runs now
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

// A Source is where memory comes from.
type Source interface {
	// Alloc returns n > 0 bytes, aligned to Align at least.
	Alloc(n int) ([]byte, error)
	// Free takes back what Alloc returned, all of it. It may be called when the memory does not
	// exist any more.
	Free(b []byte) error
}

// Sources says where the memory of an arena comes from. A field that is nil means the Go heap.
type Sources struct {
	// Collective gives what ranks send each other: Shard, Gathered and Gradient.
	Collective Source
	// Shard gives Shard, in place of Collective, and State.
	Shard Source
	// Spill gives Spilled and Snapshot.
	Spill Source
}

// A Block is one buffer. Data is valid until the block is freed.
type Block struct {
	Data  []byte
	whole []byte // the allocation behind Data, at least as long; nil in a dry arena
	size  int    // of the allocation in bytes
	asked int    // bytes that were asked for
	class Class
	pool  *pool
	phase Phase // that freed the block last
	step  int   // of that phase
}

// Stats counts bytes. Live and Peak count what was asked for; Reserved also counts freed blocks
// kept for reuse.
type Stats struct {
	Live     [Classes]int
	Total    int // sum of Live
	Peak     int // largest Total since the last ResetPeak
	Reserved int
}

// An Arena allocates blocks.
type Arena struct {
	// Poison fills freed blocks with 0xFF bytes, which read as NaN in every float type: a use after
	// free then shows.
	Poison bool

	heap  *pool
	of    [Classes]*pool      // that a class comes from: heap, or one of a source
	pools []*pool             // each once
	live  map[*Block]struct{} // handed out; nil once closed
	stats Stats
	phase Phase
	steps [phases]int // ended so far, by phase
}

// A pool is the free blocks of one source.
type pool struct {
	source Source
	free   []*Block // sorted by size
}

// Phase is a kind of step with a working set of its own. Blocks age by the steps of the phase that
// used them last, so that a long evaluation does not cost the training its buffers.
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

// Dry returns an empty arena that counts as a does, of blocks without memory. It shows what steps
// will come to reserve before they run.
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

// draw has the given classes come from a source, if there is one.
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

// errClosed is why a closed arena gives no memory.
var errClosed = errors.New("the arena is closed")

// Alloc returns a block of n bytes with undefined contents. It fails if the source of the class
// does, or after Close.
func (a *Arena) Alloc(n int, class Class) (*Block, error) {
	p := a.of[class]
	if n == 0 { // no source has to know what nothing is
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

// take returns the smallest free block that holds n bytes and wastes at most an eighth, or nil.
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

// drop gives the free blocks for which old is true back to the source.
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

// poison fills memory that is free: numbers of 32 and 64 bits are NaN there.
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

// Begin says of which phase the steps are that follow.
func (a *Arena) Begin(p Phase) { a.phase = p }

// EndStep ends a step of the current phase and drops the free blocks of that phase that its last
// two steps have not used, so that a change of batch shape does not keep the memory of the old
// shape. An error is the first of each source that did not take a block back; the block is dropped
// all the same.
func (a *Arena) EndStep() error {
	a.steps[a.phase]++
	return a.drop(func(b *Block) bool { return b.phase == a.phase && a.steps[a.phase]-b.step > 2 })
}

// drop gives free blocks back to where they came from.
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

// Close gives all memory back, that of live blocks too. It looks at none of it, so it may come
// after the source has gone. No more blocks can be allocated. Closing again does nothing.
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

// ResetPeak sets the peak to what is live now.
func (a *Arena) ResetPeak() { a.stats.Peak = a.stats.Total }

// goHeap is the source of what only this rank touches.
type goHeap struct{}

// Alloc implements Source. It also takes n = 0.
func (goHeap) Alloc(n int) (b []byte, err error) {
	defer func() {
		if r := recover(); r != nil { // more than any machine has: make panics
			err = fmt.Errorf("%v", r)
		}
	}()
	raw := make([]byte, n+Align)
	hugePages(raw)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Align - 1))
	return raw[skip : skip+n : skip+n], nil
}

// Free implements Source: the garbage collector finds out by itself.
func (goHeap) Free([]byte) error { return nil }
