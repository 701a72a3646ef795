package kit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
)

// MemoryGroup is a group that provides memory: a [comm.Allocator]. It records the allocated memory
// and the operations that use it, and fails on request. Memory is full of NaN when it is allocated
// and after it is freed.
type MemoryGroup struct {
	comm.Group
	Out       [][]byte
	Sizes     map[int]bool // requested sizes
	Allocs    int
	Frees     int
	FailAlloc int // number of the Alloc that fails, counted from 1
	FailFree  error
	Working   []*MemoryWork
	gone      bool         // the group is closed: allocated memory must not be written
	Seen      int          // collectives whose buffers were all in this memory
	Strangers map[int]bool // lengths in bytes of buffers that were not in this memory
}

// MemoryWork is a collective that uses memory of a MemoryGroup.
type MemoryWork struct {
	comm.Work
	buffers []comm.Buffer
	Waited  bool
}

// Wait implements comm.Work.
func (w *MemoryWork) Wait(ctx context.Context) error {
	err := w.Work.Wait(ctx)
	w.Waited = true
	return err
}

// NewMemoryGroup returns a MemoryGroup over g.
func NewMemoryGroup(g comm.Group) *MemoryGroup {
	return &MemoryGroup{Group: g, Sizes: map[int]bool{}, Strangers: map[int]bool{}}
}

// These are errors of a MemoryGroup that fails on request.
var (
	ErrMemoryFull = errors.New("the group's memory is full")
	errMemoryGone = errors.New("the group is closed, so its memory is freed")
)

// Alloc implements comm.Allocator.
func (g *MemoryGroup) Alloc(n int) ([]byte, error) {
	g.Allocs++
	if g.gone {
		return nil, errMemoryGone
	}
	if g.Allocs == g.FailAlloc {
		return nil, ErrMemoryFull
	}
	raw := make([]byte, n+64)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & 63)
	b := raw[skip : skip+n : skip+n]
	fill(b, nan)
	g.Out, g.Sizes[n] = append(g.Out, b), true
	return b, nil
}

// Free implements comm.Allocator.
func (g *MemoryGroup) Free(b []byte) error {
	if g.gone {
		return errMemoryGone
	}
	g.Frees++
	i := slices.IndexFunc(g.Out, func(o []byte) bool { return len(o) == len(b) && within(b, o) })
	if i < 0 {
		return fmt.Errorf("freeing %d bytes that Alloc did not return", len(b))
	}
	for _, w := range g.Working {
		for _, u := range w.buffers {
			if !w.Waited && within(u.Bytes(), b) {
				return fmt.Errorf("freeing memory of %v, which a collective still uses", u)
			}
		}
	}
	fill(b, nan)
	g.Out = slices.Delete(g.Out, i, i+1)
	return g.FailFree
}

// Memory without an owner is filled with nan, which makes every float a NaN, or with Untouched,
// which fsdp does not write.
const (
	nan       = 0xFF
	Untouched = 0x55
)

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

// within reports whether all of b is inside o.
func within(b, o []byte) bool {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(o)))
	return len(b) <= len(o) && lo <= uintptr(len(o)-len(b))
}

// Close implements comm.Group.
func (g *MemoryGroup) Close() error {
	err := g.Group.Close()
	g.gone = true
	for _, b := range g.Out {
		fill(b, Untouched)
	}
	return err
}

// AllGather implements comm.Group.
func (g *MemoryGroup) AllGather(dst, src comm.Buffer) comm.Work {
	return g.watch(g.Group.AllGather(dst, src), dst, src)
}

// ReduceScatter implements comm.Group.
func (g *MemoryGroup) ReduceScatter(dst, src comm.Buffer, op comm.Op) comm.Work {
	return g.watch(g.Group.ReduceScatter(dst, src, op), dst, src)
}

// AllReduce implements comm.Group.
func (g *MemoryGroup) AllReduce(buf comm.Buffer, op comm.Op) comm.Work {
	return g.watch(g.Group.AllReduce(buf, op), buf)
}

// Broadcast implements comm.Group.
func (g *MemoryGroup) Broadcast(buf comm.Buffer, root int) comm.Work {
	return g.watch(g.Group.Broadcast(buf, root), buf)
}

// fewWords are the labels of exchanges about the model. They are small, and are on the stack or the
// Go heap.
var fewWords = []string{"agreement", "gradient norm", "lengths of bytes", "bytes"}

func (g *MemoryGroup) watch(w comm.Work, buffers ...comm.Buffer) comm.Work {
	if slices.Contains(fewWords, buffers[0].Label()) {
		return w
	}
	g.Seen++
	for _, b := range buffers {
		inside := b.Len() == 0
		for _, o := range g.Out {
			inside = inside || within(b.Bytes(), o)
		}
		if !inside {
			g.Strangers[len(b.Bytes())] = true
		}
	}
	mw := &MemoryWork{Work: w, buffers: buffers}
	g.Working = append(slices.DeleteFunc(g.Working, func(w *MemoryWork) bool { return w.Waited }), mw)
	return mw
}
