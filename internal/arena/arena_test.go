package arena

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func alloc(t require.TestingT, a *Arena, n int, class Class) *Block {
	b, err := a.Alloc(n, class)
	require.NoError(t, err)
	return b
}

// testSource is a Source that knows what is out, and fails when it is told to.
type testSource struct {
	out  map[*byte]int // bytes by address
	fail error
}

func newTestSource() *testSource { return &testSource{out: map[*byte]int{}} }

func (s *testSource) Alloc(n int) ([]byte, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	b, _ := goHeap{}.Alloc(n)
	s.out[unsafe.SliceData(b)] = n
	return b, nil
}

func (s *testSource) Free(b []byte) error {
	p := unsafe.SliceData(b)
	if s.out[p] != len(b) || len(b) == 0 {
		return errors.New("not mine")
	}
	delete(s.out, p)
	return s.fail
}

// bytes returns what is out.
func (s *testSource) bytes() (n int) {
	for size := range maps.Values(s.out) {
		n += size
	}
	return n
}

func TestBlocksAreReused(t *testing.T) {
	a := New(Sources{})
	b := alloc(t, a, 1000, Gathered)
	first := unsafe.SliceData(b.Data)
	a.Free(b)
	require.Same(t, first, unsafe.SliceData(alloc(t, a, 900, Work).Data), "a slightly smaller request reuses the block")
	require.NotSame(t, first, unsafe.SliceData(alloc(t, a, 900, Work).Data), "a live block is not handed out again")
}

func TestPoison(t *testing.T) {
	a := New(Sources{})
	a.Poison = true
	b := alloc(t, a, 8, Work)
	data := b.Data
	a.Free(b)
	require.Equal(t, []byte{255, 255, 255, 255, 255, 255, 255, 255}, data)
}

func TestDoubleFreePanics(t *testing.T) {
	a := New(Sources{})
	b := alloc(t, a, 8, Work)
	a.Free(b)
	require.Panics(t, func() { a.Free(b) })
	require.NotPanics(t, func() { a.Free(nil) })
}

func TestUnusedBlocksAreDropped(t *testing.T) {
	for _, class := range []Class{Saved, Gradient} {
		source := newTestSource()
		a := New(Sources{Collective: source})
		a.Free(alloc(t, a, 1<<20, class))
		for range 3 {
			require.Equal(t, 1<<20, a.Stats().Reserved)
			require.NoError(t, a.EndStep())
		}
		require.Zero(t, a.Stats().Reserved)
		require.Zero(t, source.bytes())
	}
}

// TestCountsMatchWhatIsLive compares an arena with a simple model, with and without sources.
func TestCountsMatchWhatIsLive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		source, files := newTestSource(), newTestSource()
		var from Sources
		if rapid.Bool().Draw(t, "collective") {
			from.Collective = source
		}
		if rapid.Bool().Draw(t, "shard") {
			from.Shard = files
		}
		if rapid.Bool().Draw(t, "spill") {
			from.Spill = files // one source may serve two purposes
		}
		a := New(from)
		var live []*Block
		total, peak := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			switch {
			case len(live) > 0 && rapid.Bool().Draw(t, "free"):
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				total -= len(live[i].Data)
				a.Free(live[i])
				live = slices.Delete(live, i, i+1)
			case rapid.IntRange(0, 9).Draw(t, "end step") == 0:
				require.NoError(t, a.EndStep())
			default:
				n := rapid.IntRange(0, 500).Draw(t, "bytes")
				b := alloc(t, a, n, Class(rapid.IntRange(0, int(Classes)-1).Draw(t, "class")))
				require.Len(t, b.Data, n)
				require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(b.Data)))%Align)
				live = append(live, b)
				total += n
			}
			peak = max(peak, total)
			require.Equal(t, total, a.Stats().Total)
			require.Equal(t, peak, a.Stats().Peak)
			require.GreaterOrEqual(t, a.Stats().Reserved, total)
			require.LessOrEqual(t, source.bytes()+files.bytes(), a.Stats().Reserved)
		}
		require.NoError(t, a.Close())
		require.Empty(t, source.out)
		require.Empty(t, files.out)
		require.Equal(t, Stats{Peak: peak}, a.Stats())
	})
}

// TestSourcesAreKeptApart: a class comes from the source that is meant for it, and no block changes
// sides.
func TestSourcesAreKeptApart(t *testing.T) {
	collective, shard, spill := newTestSource(), newTestSource(), newTestSource()
	for name, test := range map[string]struct {
		from Sources
		want map[Class]*testSource // nothing: the heap
	}{
		"heap":       {Sources{}, nil},
		"collective": {Sources{Collective: collective}, map[Class]*testSource{Shard: collective, Gathered: collective, Gradient: collective}},
		"shard":      {Sources{Shard: shard}, map[Class]*testSource{Shard: shard, State: shard}},
		"spill":      {Sources{Spill: spill}, map[Class]*testSource{Spilled: spill, Snapshot: spill}},
		"all": {Sources{Collective: collective, Shard: shard, Spill: spill}, map[Class]*testSource{
			Shard: shard, State: shard, Gathered: collective, Gradient: collective, Spilled: spill, Snapshot: spill}},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(test.from)
			for range 2 { // the second time every block is used again
				var blocks []*Block
				for class := range Classes {
					b := alloc(t, a, 100, class)
					for _, source := range []*testSource{collective, shard, spill} {
						_, from := source.out[unsafe.SliceData(b.Data)]
						require.Equal(t, test.want[class] == source, from, class)
					}
					blocks = append(blocks, b)
				}
				require.Equal(t, 100*len(test.want), collective.bytes()+shard.bytes()+spill.bytes())
				require.Equal(t, 100*int(Classes), a.Stats().Reserved)
				for _, b := range blocks {
					a.Free(b)
				}
			}
			for class := range Classes {
				require.Empty(t, alloc(t, a, 0, class).Data, "no source is asked for nothing")
			}
			require.NoError(t, a.Close())
			require.Zero(t, collective.bytes()+shard.bytes()+spill.bytes())
		})
	}
}

// TestSourceFails: an error names bytes and class, and leaves the counts alone.
func TestSourceFails(t *testing.T) {
	full := errors.New("memory full")
	source := newTestSource()
	a := New(Sources{Collective: source})
	a.Free(alloc(t, a, 64, Gathered))
	source.fail = full
	before := a.Stats()
	b, err := a.Alloc(1000, Gradient)
	require.Nil(t, b)
	require.ErrorIs(t, err, full)
	require.EqualError(t, err, "allocating 1000 bytes of gradient memory: memory full")
	require.Equal(t, before, a.Stats())
	a.Free(alloc(t, a, 1000, Work))
	a.Free(alloc(t, a, 60, Shard))
	require.NoError(t, a.EndStep())
	require.NoError(t, a.EndStep())
	require.EqualError(t, a.EndStep(), "giving memory back: memory full")
	require.Zero(t, a.Stats().Reserved, "it is not kept")
}

// TestClose gives everything back without a look at it, for the source may be gone.
func TestClose(t *testing.T) {
	source := newTestSource()
	a := New(Sources{Collective: source})
	a.Poison = true
	live, free := alloc(t, a, 100, Shard), alloc(t, a, 300, Gathered)
	a.Free(free)
	copy(live.Data, "live")
	copy(free.whole, "free")
	require.NoError(t, a.Close())
	require.Empty(t, source.out)
	require.Equal(t, "live", string(live.Data[:4]))
	require.Equal(t, "free", string(free.whole[:4]))
	_, err := a.Alloc(1, Work)
	require.EqualError(t, err, "allocating 1 bytes of work memory: the arena is closed")
	a.Free(live)
	require.NoError(t, a.EndStep())
	require.NoError(t, a.Close())
	require.Equal(t, Stats{Peak: 400}, a.Stats())
}

func TestClassNames(t *testing.T) {
	require.Equal(t, "gradient", Gradient.String())
	require.Equal(t, "state", State.String())
	require.Equal(t, "spilled", Spilled.String())
	require.Equal(t, "work", Work.String())
	require.Equal(t, "class(9)", Class(9).String())
}

// TestPhasesAgeApart: a long evaluation leaves the blocks of the training alone, and its own go
// when it stops using them.
func TestPhasesAgeApart(t *testing.T) {
	a := New(Sources{})
	a.Free(alloc(t, a, 1000, Saved))
	a.Begin(Evaluation)
	a.Free(alloc(t, a, 10, Work))
	for range 10 {
		require.NoError(t, a.EndStep())
	}
	require.Equal(t, 1000, a.Stats().Reserved)
	a.Begin(Training)
	for range 3 {
		require.NoError(t, a.EndStep())
	}
	require.Zero(t, a.Stats().Reserved)
}

// TestDry has an arena with memory and one without do the same, and compares the counts.
func TestDry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wet := New(Sources{Collective: newTestSource(), Spill: newTestSource()})
		dry := wet.Dry()
		var blocks [][2]*Block
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what == 0:
				require.NoError(t, wet.EndStep())
				require.NoError(t, dry.EndStep())
			case what < 3 && len(blocks) > 0:
				i := rapid.IntRange(0, len(blocks)-1).Draw(t, "which")
				wet.Free(blocks[i][0])
				dry.Free(blocks[i][1])
				blocks = slices.Delete(blocks, i, i+1)
			default:
				n, class := rapid.IntRange(0, 300).Draw(t, "bytes"), Class(rapid.IntRange(0, int(Classes)-1).Draw(t, "class"))
				b, err := wet.Alloc(n, class)
				require.NoError(t, err)
				d, err := dry.Alloc(n, class)
				require.NoError(t, err)
				require.Empty(t, d.Data)
				blocks = append(blocks, [2]*Block{b, d})
			}
			require.Equal(t, wet.Stats(), dry.Stats())
		}
	})
}

// TestSwap exchanges the memory of two blocks. What each counts for does not change.
func TestSwap(t *testing.T) {
	files := newTestSource()
	a := New(Sources{Spill: files})
	x, y := alloc(t, a, 100, Shard), alloc(t, a, 100, Gradient)
	x.Data[0], y.Data[0] = 1, 2
	before := a.Stats()
	require.True(t, a.Swap(x, y))
	require.Equal(t, []byte{2, 1}, []byte{x.Data[0], y.Data[0]})
	require.Equal(t, before, a.Stats())
	require.False(t, a.Swap(x, alloc(t, a, 101, Gradient)), "other length")
	require.False(t, a.Swap(x, alloc(t, a, 100, Snapshot)), "other source")
	a.Free(x)
	require.Equal(t, 0, a.Stats().Live[Shard])
	require.NoError(t, a.Close())
	require.Zero(t, files.bytes())
}
