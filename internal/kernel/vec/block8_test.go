package vec

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestValues8 checks the values that a code can stand for. The sum of all bits is that of the lists
// that create_dynamic_map of bitsandbytes 0.43.3 makes with PyTorch 2 on amd64.
func TestValues8(t *testing.T) {
	h := fnv.New64a()
	for _, tree := range []*tree8{signed8(), unsigned8()} {
		v := tree.values[:]
		require.True(t, slices.IsSorted(v))
		require.Len(t, slices.Compact(slices.Clone(v)), 256, "all different")
		require.EqualValues(t, 1, v[255])
		zero := slices.Index(v, 0)
		require.Equal(t, map[bool]int{true: 127, false: 0}[tree.signed], zero)
		for i := 1; i <= zero; i++ {
			require.Equal(t, v[zero+i], -v[zero-i], "as many on both sides, but for 1")
		}
		at, n := zero+1, 1
		if !tree.signed {
			n = 2
		}
		for decade := -7; decade < 0; decade, n = decade+1, 2*n {
			for _, x := range v[at : at+n] {
				require.Greater(t, float64(x), math.Pow10(decade))
				require.Less(t, float64(x), math.Pow10(decade+1))
			}
			at += n
		}
		require.Equal(t, 255, at)
		fmt.Fprint(h, bitsOf(v))
	}
	require.EqualValues(t, []float32{-0.99296874, -0.9789063}, signed8().values[:2])
	require.EqualValues(t, []float32{0, 3.2500003e-07, 7.75e-07}, unsigned8().values[:3])
	require.EqualValues(t, uint64(0xac0b6ba4b4e28437), h.Sum64())
}

// TestNearest8 compares the search with one through the whole list, for all numbers around which the
// answer can change: the ends of what a place in the table is for, and the middles.
func TestNearest8(t *testing.T) {
	for _, tree := range []*tree8{signed8(), unsigned8()} {
		var numbers []float32
		for upper := range uint32(0x3f81) {
			numbers = append(numbers, math.Float32frombits(upper<<16), math.Float32frombits(min(upper<<16|0xffff, 0x3f800000)))
		}
		for i, x := range tree.values[:255] {
			middle := (x + tree.values[i+1]) / 2
			numbers = append(numbers, middle, math.Nextafter32(middle, -1), math.Nextafter32(middle, 1))
		}
		for _, x := range numbers {
			numbers = append(numbers, -x)
		}
		codes := make([]uint8, len(numbers))
		tree.encode(codes, numbers, 1)
		for i, x := range numbers {
			got, best := math.Abs(float64(tree.values[codes[i]])-float64(x)), math.Inf(1)
			for _, v := range tree.values {
				best = min(best, math.Abs(float64(v)-float64(x)))
			}
			require.Equal(t, best, got, "%v of which the code is %d", x, codes[i])
		}
	}
}

// drawBlocks draws numbers of any magnitude, and where they lie in a vector.
func drawBlocks(t *rapid.T, unsigned bool) (x []float32, offset int) {
	n := rapid.IntRange(0, 700).Draw(t, "n")
	offset = rapid.IntRange(0, 600).Draw(t, "offset")
	scale := math.Pow(2, float64(rapid.IntRange(-149, 126).Draw(t, "scale")))
	lowest := float32(-1)
	if unsigned {
		lowest = 0
	}
	x = make([]float32, n)
	draw := rapid.OneOf(rapid.Float32Range(lowest, 1), rapid.Just(lowest), rapid.Just(float32(0.995)), rapid.Just(float32(0)), rapid.Float32Range(0, 1e-6))
	for i := range x {
		x[i] = float32(float64(draw.Draw(t, "x")) * scale)
	}
	return x, offset
}

// TestBlocks8RoundTrip checks how far numbers are off, and that what was loaded stays as it is, in
// blocks of any magnitude and length.
func TestBlocks8RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unsigned := rapid.Bool().Draw(t, "unsigned")
		x, offset := drawBlocks(t, unsigned)
		q := NewBlocks8(make([]float32, Words8(offset, len(x))), offset, len(x), unsigned)
		got := make([]float32, len(x))
		q.Load(got, 0)
		require.Equal(t, make([]float32, len(x)), got, "zeroed memory is zeros")
		q.Store(x)
		q.Load(got, 0)
		for i := range q.absmax {
			from, to := q.block(i)
			require.True(t, to == len(x) || (offset+to)%Block8 == 0, "a block ends at a multiple")
			absmax := float64(MaxAbs(x[from:to]))
			for j := from; j < to; j++ {
				require.InDelta(t, x[j], got[j], 0.00704*absmax+0x1p-149, "of at most %v", absmax)
			}
		}
		again := NewBlocks8(make([]float32, Words8(offset, len(x))), offset, len(x), unsigned)
		again.Store(got)
		back := make([]float32, len(x))
		again.Load(back, 0)
		require.Equal(t, got, back)
		first := rapid.IntRange(0, len(x)).Draw(t, "first")
		part := make([]float32, rapid.IntRange(0, len(x)-first).Draw(t, "part"))
		q.Load(part, first)
		require.Equal(t, got[first:first+len(part)], part)
	})
}

// TestAdam8 compares the update with that of all elements in 32 bits between Load and Store, and
// with that of two pieces which a multiple of the block parts.
func TestAdam8(t *testing.T) {
	h := AdamHyper{
		LR: 0.01, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1,
		BiasCorrection1: 0.3, BiasCorrection2Sqrt: 0.2, GradScale: 1, Decoupled: true,
	}
	eachISA(t, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			g, offset := drawBlocks(t, false)
			m, _ := drawBlocks(t, false)
			n := min(len(g), len(m))
			g, m = g[:n], m[:n]
			type state struct {
				p    []float32
				m, v Blocks8
			}
			make := func(from, to int) state {
				s := state{make([]float32, to-from), NewBlocks8(make([]float32, Words8(offset+from, to-from)), offset+from, to-from, false),
					NewBlocks8(make([]float32, Words8(offset+from, to-from)), offset+from, to-from, true)}
				s.m.Store(m[from:to])
				return s
			}
			whole := make(0, n)
			first := min(n, Block8-offset%Block8)
			halves := []state{make(0, first), make(first, n)}
			var wide [3][]float32
			for i := range wide {
				wide[i] = append([]float32(nil), g...)
			}
			clear(wide[0])
			for range 3 {
				whole.m.Load(wide[1], 0)
				whole.v.Load(wide[2], 0)
				Adam(wide[0], g, wide[1], wide[2], h)
				naive := make(0, n)
				for i := range naive.m.absmax {
					from, to := naive.m.block(i)
					naive.m.absmax[i] = signed8().store(naive.m.codes[from:to], wide[1][from:to])
					naive.v.absmax[i] = unsigned8().store(naive.v.codes[from:to], wide[2][from:to])
				}
				Adam8(whole.p, g, whole.m, whole.v, h)
				Adam8(halves[0].p, g[:first], halves[0].m, halves[0].v, h)
				Adam8(halves[1].p, g[first:], halves[1].m, halves[1].v, h)
				require.Equal(t, bitsOf(wide[0]), bitsOf(whole.p))
				require.Equal(t, bitsOf(naive.m.absmax), bitsOf(whole.m.absmax))
				require.Equal(t, bitsOf(naive.v.absmax), bitsOf(whole.v.absmax))
				require.Equal(t, naive.m.codes, whole.m.codes)
				require.Equal(t, naive.v.codes, whole.v.codes)
				require.Equal(t, bitsOf(whole.p), bitsOf(append(halves[0].p[:first:first], halves[1].p...)))
				require.Equal(t, whole.m.codes, append(halves[0].m.codes[:first:first], halves[1].m.codes...))
				require.Equal(t, whole.v.codes, append(halves[0].v.codes[:first:first], halves[1].v.codes...))
			}
		})
	})
}

func bitsOf(x []float32) []uint32 {
	list := make([]uint32, len(x))
	for i := range x {
		list[i] = math.Float32bits(x[i])
	}
	return list
}

// TestAdam8NotFinite: a gradient that is not finite makes NaN of its block, and of nothing else.
func TestAdam8NotFinite(t *testing.T) {
	const n = 3 * Block8
	h := AdamHyper{LR: 1, Beta1: 0.9, Beta2: 0.9, Eps: 1, BiasCorrection1: 1, BiasCorrection2Sqrt: 1, GradScale: 1}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		p, g := make([]float32, n), make([]float32, n)
		g[Block8+7] = bad
		m := NewBlocks8(make([]float32, Words8(0, n)), 0, n, false)
		v := NewBlocks8(make([]float32, Words8(0, n)), 0, n, true)
		Adam8(p, g, m, v, h)
		for _, q := range []Blocks8{m, v} {
			x := make([]float32, n)
			q.Load(x, 0)
			for i := range x {
				require.Equal(t, i/Block8 == 1, x[i] != x[i], "element %d", i)
			}
			x = make([]float32, n)
			x[Block8+7] = bad
			q.Store(x)
			q.Load(x, 0)
			for i := range x {
				require.Equal(t, i/Block8 == 1, x[i] != x[i], "element %d", i)
			}
		}
	}
}

// TestCodes8 finds codes by the lists of Codes8, next to where they change and anywhere.
func TestCodes8(t *testing.T) {
	lists := Codes8()
	rng := rand.New(rand.NewPCG(8, 8))
	for i, tree := range []*tree8{signed8(), unsigned8()} {
		values, from := lists[2*i], lists[2*i+1]
		require.Equal(t, tree.values, values)
		require.True(t, slices.IsSorted(from[:]))
		var numbers []float32
		for _, x := range from[1:] {
			numbers = append(numbers, math.Nextafter32(x, -2), x, math.Nextafter32(x, 2))
		}
		for range 10_000 {
			numbers = append(numbers, float32(rng.NormFloat64()*math.Pow(10, -7*rng.Float64())))
		}
		for _, x := range numbers {
			x = min(x, 1)
			if tree.signed {
				x = max(x, -1)
			} else {
				x = max(x, -x)
			}
			var code [1]uint8
			tree.encode(code[:], []float32{x}, 1)
			next := sort.Search(len(from), func(c int) bool { return from[c] > x })
			require.Equal(t, int(code[0]), next-1, "%v", x)
		}
	}
}
