package vec

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPageEdges runs every primitive on slices that end where unreadable memory begins, and on ones
// that begin where it ends: touching one byte outside, even to read it, kills the test.
func TestPageEdges(t *testing.T) {
	t.Run("float32", pageEdges[float32])
	t.Run("float64", pageEdges[float64])
}

func pageEdges[T Float](t *testing.T) {
	const count, longest = 20, 140
	page := unix.Getpagesize()
	memory, err := unix.Mmap(-1, 0, (2*count+1)*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(memory)) }()
	var rooms [count][]T // every other page
	for k := range rooms {
		require.NoError(t, unix.Mprotect(memory[2*k*page:(2*k+1)*page], unix.PROT_NONE))
		start := unsafe.Pointer(&memory[(2*k+1)*page])
		rooms[k] = unsafe.Slice((*T)(start), page/int(unsafe.Sizeof(T(0))))
	}
	require.NoError(t, unix.Mprotect(memory[2*count*page:], unix.PROT_NONE))
	args := make([][]T, count)
	n := numbers{alpha: 0.5, beta: 0.5, rstd: 1, rows: 8}
	eachISA(t, func(*testing.T) {
		for _, o := range ops[T]() {
			for length := range longest {
				for k, room := range rooms {
					args[k] = room[len(room)-length:]
				}
				o.call(args[:o.slices], n)
				for k, room := range rooms {
					args[k] = room[:length]
				}
				o.call(args[:o.slices], n)
			}
		}
		for cols := range longest / 8 {
			at := len(rooms[0]) - 8*cols
			ColSum(rooms[1][len(rooms[1])-cols:], rooms[0][at:], 8, cols)
		}
	})
}
