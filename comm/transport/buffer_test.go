package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type celsius float32

func TestBufferTypes(t *testing.T) {
	for _, c := range []struct {
		b     Buffer
		dtype DType
		size  int
		text  string
	}{
		{Of([]float32{1, 2}), Float32, 4, "float32[2]"},
		{Of([]float64{1}), Float64, 8, "float64[1]"},
		{Of([]int32(nil)), Int32, 4, "int32[0]"},
		{Of([]int64{1}), Int64, 8, "int64[1]"},
		{Of([]byte("abc")).Named("text"), Uint8, 1, `uint8[3] "text"`},
		{Of([]celsius{20}), Float32, 4, "float32[1]"},
		{Of([]BF16{1, 2, 3}), BFloat16, 2, "bfloat16[3]"},
		{Of([]F16{1}), Float16, 2, "float16[1]"},
		{Buffer{}, 0, 0, "DType(0)[0]"},
	} {
		require.Equal(t, c.dtype, c.b.DType())
		require.Equal(t, c.size, c.b.DType().Size())
		require.Equal(t, c.text, c.b.String())
		require.Len(t, c.b.Bytes(), c.b.Len()*c.size)
	}
}

func TestBufferSharesMemory(t *testing.T) {
	x := []float32{0, 1, 2, 3}
	b := Of(x).Named("x")
	part := b.Slice(1, 3)
	require.Equal(t, "x", part.Label())
	s, err := Slice[float32](part)
	require.NoError(t, err)
	s[0] = 7
	require.Equal(t, []float32{0, 7, 2, 3}, x)

	_, err = Slice[float64](b)
	require.EqualError(t, err, `comm: buffer float32[4] "x" does not hold float64`)
	require.Zero(t, b.Slice(4, 4).Len())
	for _, bad := range [][2]int{{-1, 2}, {2, 5}, {3, 2}} {
		require.Equal(t, Buffer{label: "x"}, b.Slice(bad[0], bad[1]))
	}
}

func TestOverlap(t *testing.T) {
	b := Of(make([]int64, 8))
	require.True(t, overlap(b, b.Slice(7, 8)))
	require.True(t, overlap(b.Slice(0, 4), b.Slice(3, 5)))
	require.False(t, overlap(b.Slice(0, 4), b.Slice(4, 8)))
	require.False(t, overlap(b, b.Slice(3, 3)))
}

// The two 16-bit types differ only by name: neither passes for the other.
func TestHalfTypes(t *testing.T) {
	b, f := []BF16{0}, []F16{0}
	_, err := Slice[F16](Of(b))
	require.EqualError(t, err, "comm: buffer bfloat16[1] does not hold float16")
	_, err = Slice[BF16](Of(f))
	require.EqualError(t, err, "comm: buffer float16[1] does not hold bfloat16")

	require.Equal(t, 1, Narrow(b, []float32{1.003, 7}))
	require.Equal(t, 1, Narrow(f, []float32{1.003, 7}))
	require.Equal(t, "1 1.0029297", b[0].String()+" "+f[0].String())
	wide := make([]float32, 3)
	require.Equal(t, 1, Widen(wide, f))
	require.Equal(t, []float32{1.0029297, 0, 0}, wide)
}

func TestOnDevice(t *testing.T) {
	b := OnDevice[BF16](0x1000, 8).Named("x")
	require.Equal(t, `bfloat16[8] "x"`, b.String())
	require.Nil(t, b.Bytes())
	_, err := Slice[BF16](b)
	require.ErrorContains(t, err, "device memory")
	part := b.Slice(3, 5)
	addr, ok := part.Device()
	require.True(t, ok)
	require.EqualValues(t, 0x1006, addr)
	require.Equal(t, 2, part.Len())
	_, ok = Of([]float32{1}).Device()
	require.False(t, ok)
	require.False(t, OnDevice[uint8](0x1000, -1).DType().valid())
	require.True(t, overlap(b, part))
	require.False(t, overlap(b.Slice(0, 3), part))
	require.False(t, overlap(b, Of([]BF16{0})), "memories of two kinds")
	inPlace := Call{Kind: KindAllGather, Dst: b, Src: b.Slice(4, 8)}
	require.NoError(t, inPlace.checkAnywhere(1, 2))
	require.ErrorIs(t, inPlace.checkAnywhere(0, 2), ErrInvalid)
}
