// Package arena hands out the large buffers of one rank and counts every byte of them.
//
// Parameters, gradients and activations of a training step live for a known stretch of a known schedule, so the same
// few buffers can serve every step. An Arena keeps freed blocks and gives them out again: once the steps repeat it asks
// the runtime for little or nothing. It counts what is live by Class and remembers the peak, so that a test can hold the counted
// peak against the one that was planned.
//
//	a := arena.New()
//	b := a.Alloc(1<<20, arena.Gathered) // 64-byte aligned, contents undefined
//	defer a.Free(b)
//
// An Arena belongs to one rank and is not safe for concurrent use.
package arena

import (
	"fmt"
	"sort"
	"unsafe"
)

// Align is the alignment in bytes of every block: a cache line, and the width of the widest vector register.
const Align = 64

// Class says what a block is used for. It only matters for counting.
type Class uint8

// The classes of memory of a sharded training step.
const (
	Shard      Class = iota // the rank's own share of parameters and gradients: lives as long as the model
	Gathered                // full parameters of a group while it computes
	Gradient                // full gradients of a group until they are reduced
	Activation              // values passed between calls, and their gradients
	Saved                   // what a call keeps from its forward for its backward
	Work                    // scratch of the call that runs now
	Classes                 // number of classes
)

// String returns the class in lower case.
func (c Class) String() string {
	names := [Classes]string{"shard", "gathered", "gradient", "activation", "saved", "work"}
	if c < Classes {
		return names[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// A Block is one buffer. Data is valid until the block is freed.
type Block struct {
	Data  []byte
	whole []byte // the allocation behind Data, at least as long
	class Class
	phase Phase // that freed the block last
	step  int   // of that phase
	live  bool  // handed out
}

// Stats counts bytes. Live and Peak count what was asked for; Reserved also counts freed blocks kept for reuse.
type Stats struct {
	Live     [Classes]int
	Total    int // sum of Live
	Peak     int // largest Total since the last ResetPeak
	Reserved int
}

// An Arena allocates blocks.
type Arena struct {
	// Poison fills freed blocks with 0xFF bytes, which read as NaN in every float type: a use after free then shows.
	Poison bool

	free  []*Block // sorted by len(whole)
	stats Stats
	phase Phase
	steps [phases]int // ended so far, by phase
}

// Phase is a kind of step with a working set of its own. Blocks age by the steps of the phase that used them last, so that
// a long evaluation does not cost the training its buffers.
type Phase uint8

// The phases.
const (
	Training Phase = iota
	Evaluation
	phases
)

// New returns an empty arena.
func New() *Arena { return &Arena{} }

// Alloc returns a block of n bytes with undefined contents.
func (a *Arena) Alloc(n int, class Class) *Block {
	b := a.take(n)
	if b == nil {
		b = &Block{whole: aligned(n)}
		a.stats.Reserved += len(b.whole)
	}
	b.Data, b.class, b.live = b.whole[:n:n], class, true
	a.stats.Live[class] += n
	a.stats.Total += n
	a.stats.Peak = max(a.stats.Peak, a.stats.Total)
	return b
}

// take returns the smallest free block that holds n bytes and wastes at most an eighth, or nil.
func (a *Arena) take(n int) *Block {
	i := sort.Search(len(a.free), func(i int) bool { return len(a.free[i].whole) >= n })
	if i == len(a.free) || len(a.free[i].whole) > n+n/8 {
		return nil
	}
	b := a.free[i]
	a.free = append(a.free[:i], a.free[i+1:]...)
	return b
}

// Free takes b back. Freeing nil is a no-op; freeing a block twice is a bug of the caller and panics.
func (a *Arena) Free(b *Block) {
	if b == nil {
		return
	}
	if !b.live {
		panic("arena: block freed twice")
	}
	if a.Poison {
		for i := range b.Data {
			b.Data[i] = 0xFF
		}
	}
	a.stats.Live[b.class] -= len(b.Data)
	a.stats.Total -= len(b.Data)
	b.live, b.phase, b.step = false, a.phase, a.steps[a.phase]
	i := sort.Search(len(a.free), func(i int) bool { return len(a.free[i].whole) >= len(b.whole) })
	a.free = append(a.free, nil)
	copy(a.free[i+1:], a.free[i:])
	a.free[i] = b
}

// Begin says of which phase the steps are that follow.
func (a *Arena) Begin(p Phase) { a.phase = p }

// EndStep ends a step of the current phase and drops the free blocks of that phase that its last two steps have not used,
// so that a change of batch shape does not keep the memory of the old shape.
func (a *Arena) EndStep() {
	a.steps[a.phase]++
	kept := a.free[:0]
	for _, b := range a.free {
		if b.phase == a.phase && a.steps[a.phase]-b.step > 2 {
			a.stats.Reserved -= len(b.whole)
			continue
		}
		kept = append(kept, b)
	}
	clear(a.free[len(kept):])
	a.free = kept
}

// Stats returns the current counts.
func (a *Arena) Stats() Stats { return a.stats }

// ResetPeak sets the peak to what is live now.
func (a *Arena) ResetPeak() { a.stats.Peak = a.stats.Total }

func aligned(n int) []byte {
	raw := make([]byte, n+Align)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Align - 1))
	return raw[skip : skip+n : skip+n]
}
