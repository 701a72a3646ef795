package arena

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBlocksAreReused(t *testing.T) {
	a := New()
	b := a.Alloc(1000, Gathered)
	first := unsafe.SliceData(b.Data)
	a.Free(b)
	require.Same(t, first, unsafe.SliceData(a.Alloc(900, Work).Data), "a slightly smaller request reuses the block")
	require.NotSame(t, first, unsafe.SliceData(a.Alloc(900, Work).Data), "a live block is not handed out again")
}

func TestPoison(t *testing.T) {
	a := New()
	a.Poison = true
	b := a.Alloc(8, Work)
	data := b.Data
	a.Free(b)
	require.Equal(t, []byte{255, 255, 255, 255, 255, 255, 255, 255}, data)
}

func TestDoubleFreePanics(t *testing.T) {
	a := New()
	b := a.Alloc(8, Work)
	a.Free(b)
	require.Panics(t, func() { a.Free(b) })
	require.NotPanics(t, func() { a.Free(nil) })
}

func TestUnusedBlocksAreDropped(t *testing.T) {
	a := New()
	a.Free(a.Alloc(1<<20, Saved))
	for range 3 {
		require.Equal(t, 1<<20, a.Stats().Reserved)
		a.EndStep()
	}
	require.Zero(t, a.Stats().Reserved)
}

func TestCountsMatchWhatIsLive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New()
		var live []*Block
		total, peak := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			if len(live) > 0 && rapid.Bool().Draw(t, "free") {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				total -= len(live[i].Data)
				a.Free(live[i])
				live = append(live[:i], live[i+1:]...)
			} else {
				n := rapid.IntRange(0, 500).Draw(t, "bytes")
				b := a.Alloc(n, Class(rapid.IntRange(0, int(Classes)-1).Draw(t, "class")))
				require.Len(t, b.Data, n)
				require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b.Data)))%Align)
				live = append(live, b)
				total += n
			}
			peak = max(peak, total)
			require.Equal(t, total, a.Stats().Total)
			require.Equal(t, peak, a.Stats().Peak)
			require.GreaterOrEqual(t, a.Stats().Reserved, total)
		}
	})
}

func TestClassNames(t *testing.T) {
	require.Equal(t, "gradient", Gradient.String())
	require.Equal(t, "class(9)", Class(9).String())
}

// TestPhasesAgeApart: a long evaluation leaves the blocks of the training alone, and its own go when it stops using them.
func TestPhasesAgeApart(t *testing.T) {
	a := New()
	a.Free(a.Alloc(1000, Saved))
	a.Begin(Evaluation)
	a.Free(a.Alloc(10, Work))
	for range 10 {
		a.EndStep()
	}
	require.Equal(t, 1000, a.Stats().Reserved)
	a.Begin(Training)
	for range 3 {
		a.EndStep()
	}
	require.Zero(t, a.Stats().Reserved)
}
