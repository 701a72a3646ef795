package gemm

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/half"
)

// Workspace holds the packing buffers of one caller. The zero value is ready to use. The buffers
// grow as products need them, up to a fixed maximum (5.5 MiB for each element type used, and 7 MiB
// for results in bfloat16), and are kept. A Workspace must not be used by two calls at the same
// time, and must not be copied after use.
type Workspace struct {
	f32 buffers[float32]
	f64 buffers[float64]
}

// buffers are the memory for types whose sums are of type P: the packed operands, the sums of
// bfloat16 results, and the kernel argument. The argument is here because passing it through a func
// value would otherwise allocate it in every call.
type buffers[P Float] struct {
	apack, bpack []P
	sums         []P // of a strip of C
	block        []P // of a block of C
	bias         []P // for the columns of a block
	scratch      []P // of a kernel of tiles
	crossed      []P // rows of A for tiles, before they are transposed
	tile         tile[P]
}

// Bytes returns the memory the workspace holds, in bytes.
func (w *Workspace) Bytes() int { return w.f32.bytes() + w.f64.bytes() }

// MostBytes returns the largest size, in bytes, of the buffers for elements of type T and results
// of type C.
func MostBytes[T, C Element]() int {
	_, rounds := any(*new(C)).(half.BFloat16)
	switch any(*new(T)).(type) {
	case float32:
		return active.f32.mostBytes(rounds)
	case float64:
		return active.f64.mostBytes(false)
	default:
		return active.bf16.mostBytes(rounds)
	}
}

// mostBytes returns the bytes of the buffers. If rounds is set, results are bfloat16, and the
// buffers include the sums before they are rounded.
func (e *engine[T, P]) mostBytes(rounds bool) int {
	k := e.depth(e.kc)
	rows, scratch, groups := e.strip()*k, 0, 1
	if e.inPlace {
		rows = max(rows, mostWhole/int(unsafe.Sizeof(*new(P))))
	}
	if e.tiles {
		scratch = e.mr*e.nr + pairsAtOnce*stripsAtOnce*e.mr
	}
	if rounds {
		columns := e.nc
		if e.deep > 0 {
			columns, groups = mostColumns, groupsAtOnce
		}
		scratch += (e.mr+1)*columns + max(sumRows(columns)*columns, sumRows(e.nc)*e.nc)
	}
	return (rows + groups*e.nc*k + scratch) * int(unsafe.Sizeof(*new(P)))
}

func (b *buffers[P]) bytes() int {
	return (cap(b.apack) + cap(b.bpack) + cap(b.sums) + cap(b.block) + cap(b.bias) + cap(b.scratch) + cap(b.crossed)) * int(unsafe.Sizeof(*new(P)))
}

// buffersOf returns the buffers of w for the types whose sums are of type P.
func buffersOf[P Float](w *Workspace) *buffers[P] {
	if b, ok := any(&w.f32).(*buffers[P]); ok {
		return b
	}
	return any(&w.f64).(*buffers[P])
}

// grow returns n elements of *s, which it replaces if it is too short. Their contents are
// undefined.
func grow[P Float](s *[]P, n int) []P {
	if cap(*s) < n {
		*s = make([]P, n)
		arena.HugePages(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(*s))), n*int(unsafe.Sizeof(*new(P)))))
	}
	return (*s)[:n]
}
