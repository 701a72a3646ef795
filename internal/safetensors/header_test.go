package safetensors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestSizes checks the sizes of all types, against the widths in their names.
func TestSizes(t *testing.T) {
	for _, c := range []struct {
		size  int
		types []DType
	}{
		{8, []DType{F64, "I64", "U64", "C64"}},
		{4, []DType{F32, "I32", "U32"}},
		{2, []DType{F16, BF16, "I16", "U16"}},
		{1, []DType{"BOOL", "I8", "U8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}},
		{0, []DType{"F4", "F6_E2M3", "F6_E3M2", "", "f32", "F128"}},
	} {
		for _, d := range c.types {
			require.Equal(t, c.size, d.Size(), d)
		}
	}
}

// TestEncode spells out the bytes of a file, so that they do not change unnoticed.
func TestEncode(t *testing.T) {
	h, err := NewHeader([]Tensor{
		{Name: "b", DType: F32, Shape: []int{2, 3}},
		{Name: "none", DType: F32, Shape: []int{0, 3}},
		{Name: "a \"<ü>", DType: BF16},
	}, map[string]string{"z": "1", "format": "pt"})
	require.NoError(t, err)
	text := `{"__metadata__":{"format":"pt","z":"1"},` +
		`"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},` +
		`"none":{"dtype":"F32","shape":[0,3],"data_offsets":[24,24]},` +
		`"a \"<ü>":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}}`
	require.Equal(t, "\xf8\x00\x00\x00\x00\x00\x00\x00"+text+strings.Repeat(" ", 256-8-len(text)), string(h.Encode()))
	require.Equal(t, int64(256), h.DataStart)
	require.Equal(t, []Tensor{
		{"b", F32, []int{2, 3}, 256, 24},
		{"none", F32, []int{0, 3}, 280, 0},
		{"a \"<ü>", BF16, []int{}, 280, 2},
	}, h.Tensors)

	h, err = NewHeader(nil, map[string]string{})
	require.NoError(t, err)
	require.Equal(t, "\x38\x00\x00\x00\x00\x00\x00\x00{}"+strings.Repeat(" ", 54), string(h.Encode()))
	require.Nil(t, h.Metadata)
}

// TestNewHeaderKeepsOut checks that a header shares no memory with what it was made of.
func TestNewHeaderKeepsOut(t *testing.T) {
	tensors, metadata := []Tensor{{Name: "a", DType: F32, Shape: []int{2}}}, map[string]string{"k": "v"}
	h, err := NewHeader(tensors, metadata)
	require.NoError(t, err)
	require.Zero(t, tensors[0].Offset+tensors[0].Size, "the caller's are left alone")
	before := h.Encode()
	tensors[0].Name, tensors[0].Shape[0], metadata["k"] = "b", 9, "w"
	require.Equal(t, before, h.Encode())
}

func TestNewHeaderRefuses(t *testing.T) {
	a := Tensor{Name: "a", DType: F32, Shape: []int{1}}
	big := Tensor{Name: "big", DType: "U8", Shape: []int{math.MaxInt64 - 10}}
	for name, c := range map[string]struct {
		tensors  []Tensor
		metadata map[string]string
		want     string
	}{
		"twice":          {[]Tensor{a, a}, nil, `tensor "a": two tensors have this name`},
		"metadata name":  {[]Tensor{{Name: "__metadata__", DType: F32}}, nil, `tensor "__metadata__": the name is reserved for the metadata`},
		"UTF-8":          {[]Tensor{{Name: "\xff", DType: F32}}, nil, `tensor "\xff": the name is not valid UTF-8`},
		"metadata UTF-8": {nil, map[string]string{"k": "\xff"}, `metadata "k": "\xff" is not valid UTF-8`},
		"metadata key":   {nil, map[string]string{"\xff": "v"}, `metadata "\xff": "v" is not valid UTF-8`},
		"dtype":          {[]Tensor{{Name: "a", DType: "float"}}, nil, `tensor "a": unknown dtype "float"`},
		"small elements": {[]Tensor{{Name: "a", DType: "F4", Shape: []int{2}}}, nil, `tensor "a": dtype F4: elements of 4 bits are not supported`},
		"negative":       {[]Tensor{{Name: "a", DType: F32, Shape: []int{0, -1}}}, nil, `tensor "a": negative dimension in shape [0 -1]`},
		"rank":           {[]Tensor{{Name: "a", DType: F32, Shape: make([]int, 65)}}, nil, `tensor "a": 65 dimensions, more than 64`},
		"overflow":       {[]Tensor{{Name: "a", DType: F32, Shape: []int{1 << 31, 1 << 30}}}, nil, `tensor "a": shape [2147483648 1073741824] of F32 overflows`},
		"sum overflows":  {[]Tensor{big, {Name: "c", DType: "U8", Shape: []int{11}}}, nil, `tensor "c": shape [11] of U8 after 9223372036854775797 bytes of other tensors is larger than a file can be`},
		"file overflows": {[]Tensor{big}, nil, `9223372036854775797 bytes of tensors are more than a file can have`},
		"alignment":      {[]Tensor{{Name: "u", DType: "U8", Shape: []int{3}}, a}, nil, `tensor "a": the tensor would begin at byte 3 of the data, which is not a multiple of 4, the size of an element of F32`},
		"too long":       {nil, map[string]string{"k": strings.Repeat("x", maxHeader)}, `the header would have 100000056 bytes, at most 100000000 are allowed`},
	} {
		_, err := NewHeader(c.tensors, c.metadata)
		require.EqualError(t, err, "safetensors: "+c.want, name)
	}
	h, err := NewHeader([]Tensor{{Name: "a", DType: F32, Shape: []int{1<<31 - 1, 1 << 30}}}, nil)
	require.NoError(t, err, "the largest that fits")
	require.Equal(t, int64(math.MaxInt64-1<<32+1), h.Tensors[0].Size)
}

// names are those that a header can give to tensors.
var names = rapid.String().Filter(func(s string) bool { return utf8.ValidString(s) && s != metadataName })

// drawTensors draws tensors in an order that NewHeader takes.
func drawTensors(t *rapid.T) []Tensor {
	types := rapid.SampledFrom([]DType{F64, F32, F16, BF16, "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL", "C64", "F8_E4M3"})
	dims := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 4)
	list := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Tensor {
		return Tensor{Name: names.Draw(t, "name"), DType: types.Draw(t, "dtype"), Shape: dims.Draw(t, "shape")}
	}), 0, 8, func(t Tensor) string { return t.Name }).Draw(t, "tensors")
	slices.SortStableFunc(list, Order)
	return list
}

// TestRoundTrip checks that what is written is read, and that tensors lie as NewHeader says.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tensors := drawTensors(t)
		h, err := NewHeader(tensors, rapid.MapOfN(names, names, 0, 3).Draw(t, "metadata"))
		require.NoError(t, err)
		require.Len(t, h.Tensors, len(tensors))
		end := h.DataStart
		require.Zero(t, end%64)
		for i, x := range h.Tensors {
			require.Equal(t, tensors[i].Name, x.Name)
			require.Equal(t, end, x.Offset)
			require.Zero(t, x.Offset%int64(x.DType.Size()))
			want := x.DType.Size()
			for _, n := range tensors[i].Shape {
				want *= n
			}
			require.EqualValues(t, want, x.Size)
			end += x.Size
		}
		file := append(h.Encode(), make([]byte, end-h.DataStart)...)
		require.Len(t, file, int(end))
		got, err := ReadHeader(bytes.NewReader(file), end)
		require.NoError(t, err)
		require.Equal(t, h, got)
		require.True(t, json.Valid(file[prefix:h.DataStart]))
	})
}

// many returns a file of n tensors, without data: they are empty.
func many(t testing.TB, n int) []byte {
	var tensors []Tensor
	for i := range n {
		tensors = append(tensors, Tensor{Name: fmt.Sprintf("model.layers.%d.mlp.weight", i), DType: BF16, Shape: []int{4096, 0}})
	}
	h, err := NewHeader(tensors, nil)
	require.NoError(t, err)
	return h.Encode()
}

func TestManyTensors(t *testing.T) {
	file := many(t, 10_000)
	h, err := ReadHeader(bytes.NewReader(file), int64(len(file)))
	require.NoError(t, err)
	require.Len(t, h.Tensors, 10_000)
	require.Equal(t, file, h.Encode())
	require.Equal(t, "model.layers.9999.mlp.weight", h.Tensors[9999].Name)
}

func BenchmarkHeader(b *testing.B) {
	file := many(b, 100_000)
	h, err := ReadHeader(bytes.NewReader(file), int64(len(file)))
	require.NoError(b, err)
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(file)))
		b.ReportAllocs()
		for b.Loop() {
			_, err = ReadHeader(bytes.NewReader(file), int64(len(file)))
		}
	})
	b.Run("new and encode", func(b *testing.B) {
		b.SetBytes(int64(len(file)))
		b.ReportAllocs()
		for b.Loop() {
			h, err = NewHeader(h.Tensors, nil)
			h.Encode()
		}
	})
}
