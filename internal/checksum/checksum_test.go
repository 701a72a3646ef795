package checksum

import (
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// noise returns bytes that follow from the seed, of any length and alignment.
func noise(t *rapid.T, most int) []byte {
	off, n := rapid.IntRange(0, 64).Draw(t, "off"), rapid.IntRange(0, most).Draw(t, "n")
	b := make([]byte, off+n)
	x := rapid.Uint64().Draw(t, "seed")
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x >> 56)
	}
	return b[off:]
}

func TestIsTheOneOfTheStandardLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := noise(t, 3*piece)
		require.Equal(t, crc32.ChecksumIEEE(b), Update(0, b))
	})
}

func TestGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := noise(t, 8<<10)
		cut := rapid.IntRange(0, len(b)).Draw(t, "cut")
		require.Equal(t, Update(0, b), Update(Update(0, b[:cut]), b[cut:]))
	})
}

func TestCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, off := noise(t, 3*piece), rapid.SampledFrom([]int{0, 0, 1, 32}).Draw(t, "destination")
		to := make([]byte, off+len(b)+1)
		require.Equal(t, Update(7, b), Copy(7, to[off:off+len(b)], b))
		require.Equal(t, b, to[off:off+len(b)])
		require.Zero(t, to[off+len(b)])
	})
}

func TestFindsEveryBurst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := append(noise(t, 4<<10), make([]byte, 8)...)
		sum := Update(0, b)
		burst := uint64(rapid.Uint32Min(1).Draw(t, "burst")) << rapid.IntRange(0, 7).Draw(t, "bit")
		at := rapid.IntRange(0, len(b)-8).Draw(t, "at")
		for i := range 8 {
			b[at+i] ^= byte(burst >> (8 * i))
		}
		require.NotEqual(t, sum, Update(0, b))
	})
}

func TestAllocatesNothing(t *testing.T) {
	b := make([]byte, piece+1)
	to := make([]byte, len(b))
	require.Zero(t, testing.AllocsPerRun(10, func() { Update(1, b); Copy(1, to, b) }))
}

// BenchmarkUpdate is for data in the first, second and third cache, and in memory.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1 << 10, 16 << 10, 256 << 10, 4 << 20, 256 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(i)
			}
			b.SetBytes(int64(n))
			sum := uint32(0)
			for b.Loop() {
				sum = Update(sum, p)
			}
		})
	}
}

// BenchmarkCopy is beside the copy alone.
func BenchmarkCopy(b *testing.B) {
	src, dst := make([]byte, 64<<20), make([]byte, 64<<20)
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"copy", func() { copy(dst, src) }},
		{"copy, then Update", func() { copy(dst, src); Update(0, src) }},
		{"Copy", func() { Copy(0, dst, src) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				c.do()
			}
		})
	}
}

func TestJoins(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := noise(t, 8<<10)
		cut := rapid.IntRange(0, len(b)).Draw(t, "cut")
		require.Equal(t, Update(0, b), Join(Update(0, b[:cut]), Update(0, b[cut:]), len(b)-cut))
	})
}
