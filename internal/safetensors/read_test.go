package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// file returns a file with this JSON and data.
func file(text, data string) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) + text + data
}

func read(file string) (*Header, error) {
	return ReadHeader(strings.NewReader(file), int64(len(file)))
}

// TestGolden reads files written by Python's library, see testdata/golden.py.
func TestGolden(t *testing.T) {
	h, _ := golden(t, "empty")
	require.Empty(t, h.Tensors)
	require.Nil(t, h.Metadata)

	h, floats := golden(t, "plain")
	require.Nil(t, h.Metadata)
	require.Equal(t, []Tensor{{"w", F16, []int{2, 2}, 64, 8}}, h.Tensors)
	require.Equal(t, []float32{1, -2.5, float32(math.Inf(1)), 65504}, floats("w"))

	h, floats = golden(t, "mixed")
	require.Equal(t, map[string]string{"format": "np", "note": "naïve 🙂 \\ tab\t"}, h.Metadata)
	const start = 496
	require.Equal(t, []Tensor{
		{"ids", "I64", []int{2}, start, 16},
		{"scalar", F64, []int{}, start + 16, 8},
		{"f32", F32, []int{2, 3}, start + 24, 24},
		{"none", F32, []int{0, 3}, start + 48, 0},
		{"bf16", BF16, []int{3}, start + 48, 6},
		{"größe \"x\"\n", "U8", []int{1}, start + 54, 1},
		{"mask", "BOOL", []int{3}, start + 55, 3},
	}, h.Tensors)
	require.Equal(t, []float32{-0.75}, floats("scalar"))
	require.Equal(t, []float32{1, 2, 3, 4, 5, 1. / 3}, floats("f32"))
	require.Equal(t, []float32{1, -2.5, 0.33398438}, floats("bf16"))
	require.Empty(t, floats("none"))
}

// golden reads a file of testdata, and returns a function that reads a tensor of it.
func golden(t *testing.T, name string) (*Header, func(tensor string) []float32) {
	data, err := os.ReadFile(filepath.Join("testdata", name+".safetensors"))
	require.NoError(t, err)
	h, err := ReadHeader(bytes.NewReader(data), int64(len(data)))
	require.NoError(t, err)
	return h, func(tensor string) (x []float32) {
		i := slices.IndexFunc(h.Tensors, func(t Tensor) bool { return t.Name == tensor })
		require.GreaterOrEqual(t, i, 0, tensor)
		at := h.Tensors[i]
		b := make([]byte, 4*int(at.Size)/at.DType.Size())
		require.NoError(t, Convert(b, F32, data[at.Offset:at.Offset+at.Size], at.DType))
		for ; len(b) > 0; b = b[4:] {
			x = append(x, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}
		return x
	}
}

// TestReadsWhatOthersMayWrite has files that this package would not write.
func TestReadsWhatOthersMayWrite(t *testing.T) {
	h, err := read(file("{ \"b\\/\\u00e4\\uD83D\\ude42\" :\r\n\t{\"data_offsets\":[ 1 ,5],\"shape\":[ ],\"dtype\":\"F32\"} ,"+
		`"e":{"dtype":"F64","shape":[7,0],"data_offsets":[1,1]}, "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":{}}   `, "12345"))
	require.NoError(t, err, "any order, any space, no alignment")
	start := h.DataStart
	require.Equal(t, []Tensor{{"a", "U8", []int{1}, start, 1}, {"e", F64, []int{7, 0}, start + 1, 0}, {"b/ä🙂", F32, []int{}, start + 1, 4}}, h.Tensors)
	require.Nil(t, h.Metadata)
	again, err := read(string(h.Encode()) + "12345")
	require.NoError(t, err)
	require.Equal(t, int64(192), again.DataStart)
	require.Equal(t, "b/ä🙂", again.Tensors[2].Name)
}

// TestEmptyTensorsKeepTheirOrder has many at the same two places, before and behind another.
func TestEmptyTensorsKeepTheirOrder(t *testing.T) {
	text := `{"full":{"dtype":"U8","shape":[],"data_offsets":[0,1]}`
	for i := range 100 {
		text += fmt.Sprintf(`,"%d":{"dtype":"U8","shape":[0],"data_offsets":[%d,%[2]d]}`, i, i%2)
	}
	h, err := read(file(text+"}", "x"))
	require.NoError(t, err)
	for i := range 50 {
		require.Equal(t, strconv.Itoa(2*i), h.Tensors[i].Name)
		require.Equal(t, strconv.Itoa(2*i+1), h.Tensors[51+i].Name)
	}
	require.Equal(t, "full", h.Tensors[50].Name)
}

// TestRefuses goes through the rules of the format, each broken in turn.
func TestRefuses(t *testing.T) {
	const one = `{"dtype":"U8","shape":[1],"data_offsets":[0,1]}` // fits the data "x"
	tensor := func(fields string) string { return file(`{"w":{`+fields+`}}`, "x") }
	length := func(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) + "{}" }
	for _, c := range []struct{ name, file, want string }{
		{"no file", "", "the file has 0 bytes, too few for the length of a header"},
		{"too short", "1234567", "the file has 7 bytes, too few"},
		{"beyond the limit", length(maxHeader + 1), "a header of 100000001 bytes, at most 100000000 are allowed"},
		{"as large as can be", length(math.MaxUint64), "a header of 18446744073709551615 bytes"},
		{"beyond the file", length(3), "a header of 3 bytes in a file of 10"},
		{"no header", file("", ""), "the header does not begin with {"},
		{"space first", file(" {}", ""), "the header does not begin with {"},
		{"an array", file("[]", ""), "the header does not begin with {"},
		{"UTF-8", file("{\"\xff\":"+one+"}", "x"), "the header is not valid UTF-8"},
		{"no end", file(`{`, ""), "the header ends, want '\"' at byte 9 of the file"},
		{"no end of a name", file(`{"w`, ""), "the header ends within a string at byte 11"},
		{"no colon", file(`{"w"}`, ""), "'}', want ':' at byte 12"},
		{"no value", file(`{"w":}`, ""), `tensor "w": '}', want '{' at byte 13`},
		{"a comma more", file(`{"w":`+one+`,}`, "x"), "'}', want '\"' at byte"},
		{"a comma less", file(`{"w":`+one+`"v":`+one+`}`, "x"), "'\"', want ',' at byte"},
		{"more text", file(`{"w":`+one+`} {`, "x"), "'{' after the JSON value at byte 62"},
		{"a newline behind", file("{}\n", ""), `'\n' after the JSON value at byte 10`},
		{"a zero behind", file("{} \x00", ""), `'\x00' after the JSON value at byte 11`},
		{"a name twice", file(`{"w":`+one+`,"w":`+one+`}`, "x"), `tensor "w": two tensors have this name`},
		{"a name twice, escaped", file(`{"w":`+one+`,"\u0077":`+one+`}`, "x"), `tensor "w": two tensors have this name`},
		{"a control character", file("{\"a\nb\":"+one+"}", "x"), "a control character in a string at byte 11"},
		{"a bad escape", file(`{"a\x":`+one+"}", "x"), "a bad escape in a string at byte 11"},
		{"an escape of an end", file(`{"\`, ""), "a bad escape in a string at byte 10"},
		{"bad digits", file(`{"\u12g4":`+one+"}", "x"), "a bad escape in a string at byte 10"},
		{"a sign for a digit", file(`{"\u+123":`+one+"}", "x"), "a bad escape in a string at byte 10"},
		{"few digits", file(`{"\u12`, ""), "a bad escape in a string at byte 10"},
		{"half a pair", file(`{"\ud83dx":`+one+"}", "x"), "a bad escape in a string at byte 10"},
		{"the other half", file(`{"\ude42":`+one+"}", "x"), "a bad escape in a string at byte 10"},
		{"two first halves", file(`{"\ud83d\ud83d":`+one+"}", "x"), "a bad escape in a string at byte 10"},

		{"metadata null", file(`{"__metadata__":null}`, ""), "__metadata__: 'n', want '{' at byte 24"},
		{"metadata no string", file(`{"__metadata__":{"k":1}}`, ""), `__metadata__: "k": '1', want '"' at byte 29`},
		{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, ""), "a second __metadata__ at byte"},
		{"metadata name twice", file(`{"__metadata__":{"k":"","k":""}}`, ""), `__metadata__: a second "k" at byte`},

		{"no object", file(`{"w":[]}`, ""), `tensor "w": '[', want '{' at byte 13`},
		{"nothing in it", tensor(``), `tensor "w": no dtype at byte`},
		{"no dtype", tensor(`"shape":[1],"data_offsets":[0,1]`), `tensor "w": no dtype at byte`},
		{"no shape", tensor(`"dtype":"U8","data_offsets":[0,1]`), `tensor "w": no shape at byte`},
		{"no offsets", tensor(`"dtype":"U8","shape":[0]`), `tensor "w": no data_offsets at byte`},
		{"unknown field", tensor(`"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1`), `tensor "w": unknown member "x" at byte`},
		{"two dtypes", tensor(`"dtype":"U8","dtype":"U8"`), `tensor "w": a second "dtype" at byte`},
		{"two shapes", tensor(`"shape":[1],"shape":[]`), `tensor "w": a second "shape" at byte`},
		{"null dtype", tensor(`"dtype":null`), `tensor "w": dtype: 'n', want '"' at byte`},
		{"unknown dtype", tensor(`"dtype":"u8","shape":[1],"data_offsets":[0,1]`), `tensor "w": unknown dtype "u8"`},
		{"sub-byte dtype", tensor(`"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]`), `tensor "w": dtype F6_E2M3: elements of 6 bits are not supported`},
		{"null shape", tensor(`"shape":null`), `tensor "w": shape: 'n', want '[' at byte`},
		{"negative", tensor(`"dtype":"U8","shape":[-1,-1],"data_offsets":[0,1]`), `tensor "w": shape: want a whole number, not negative, at byte`},
		{"a fraction", tensor(`"dtype":"U8","shape":[1.0],"data_offsets":[0,1]`), `tensor "w": shape: '.', want ',' at byte`},
		{"an exponent", tensor(`"dtype":"U8","shape":[1e0],"data_offsets":[0,1]`), `tensor "w": shape: 'e', want ',' at byte`},
		{"a zero first", tensor(`"dtype":"U8","shape":[01],"data_offsets":[0,1]`), `tensor "w": shape: want a whole number`},
		{"an empty place", tensor(`"dtype":"U8","shape":[1,],"data_offsets":[0,1]`), `tensor "w": shape: want a whole number`},
		{"a text", tensor(`"dtype":"U8","shape":["1"],"data_offsets":[0,1]`), `tensor "w": shape: want a whole number`},
		{"too large", tensor(`"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]`), `tensor "w": shape: the number 9223372036854775808 overflows at byte`},
		{"too large together", tensor(`"dtype":"F64","shape":[1073741824,1073741824],"data_offsets":[0,1]`), `tensor "w": shape [1073741824 1073741824] of F64 overflows`},
		{"too large, times zero", tensor(`"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]`), `tensor "w": shape [0 4294967296 4294967296] of U8 overflows`},
		{"too many dimensions", tensor(`"dtype":"U8","shape":[` + strings.Repeat("1,", 64) + `1],"data_offsets":[0,1]`), `tensor "w": shape: more than 64 elements at byte`},
		{"one offset", tensor(`"dtype":"U8","shape":[1],"data_offsets":[0]`), `tensor "w": data_offsets [0] are not two numbers,`},
		{"three offsets", tensor(`"dtype":"U8","shape":[1],"data_offsets":[0,1,2]`), `tensor "w": data_offsets: more than 2 elements at byte`},
		{"backwards", tensor(`"dtype":"U8","shape":[1],"data_offsets":[1,0]`), `tensor "w": data_offsets [1 0] are -1 bytes apart, but shape [1] of U8 has 1`},
		{"too few bytes", tensor(`"dtype":"U8","shape":[2],"data_offsets":[0,1]`), `tensor "w": data_offsets [0 1] are 1 bytes apart, but shape [2] of U8 has 2`},
		{"too many bytes", tensor(`"dtype":"U8","shape":[0],"data_offsets":[0,1]`), `tensor "w": data_offsets [0 1] are 1 bytes apart, but shape [0] of U8 has 0`},
		{"offsets overflow", tensor(`"dtype":"U8","shape":[1],"data_offsets":[9223372036854775807,9223372036854775808]`), `tensor "w": data_offsets: the number 9223372036854775808 overflows`},
		{"offsets at the limit", tensor(`"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]`), `tensor "w" begins at byte 9223372036854775806 of the data, but the data begins at byte 0`},
		{"size at the limit", tensor(`"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]`), `tensor "w" ends at byte 9223372036854775807 of the data, which has 1 bytes: the file is truncated`},

		{"a hole first", tensor(`"dtype":"U8","shape":[0],"data_offsets":[1,1]`), `tensor "w" begins at byte 1 of the data, but the data begins at byte 0`},
		{"a hole", file(`{"w":`+one+`,"v":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, "xyz"), `tensor "v" begins at byte 2 of the data, but tensor "w" ends at byte 1`},
		{"the same place", file(`{"w":`+one+`,"v":`+one+`}`, "x"), `tensor "v" begins at byte 0 of the data, but tensor "w" ends at byte 1`},
		{"an overlap", file(`{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"v":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, "xyz"), `tensor "v" begins at byte 1 of the data, but tensor "w" ends at byte 2`},
		{"one inside another", file(`{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"v":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, "xy"), `tensor "v" begins at byte 1`},
		{"cut short", file(`{"w":`+one+`,"v":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, "x"), `tensor "v" ends at byte 2 of the data, which has 1 bytes: the file is truncated`},
		{"data behind", file(`{"w":`+one+`}`, "xy"), "the tensors end at byte 1 of the data, which has 2 bytes: the header does not describe the rest"},
		{"data of nothing", file(`{}`, "x"), "the tensors end at byte 0 of the data, which has 1"},
		{"deep", file(`{"w":`+strings.Repeat("[", 1<<20), ""), `tensor "w": '[', want '{' at byte 13`},
		{"deep elsewhere", tensor(`"shape":` + strings.Repeat("[", 1<<20)), `tensor "w": shape: want a whole number`},
	} {
		_, err := read(c.file)
		require.ErrorContains(t, err, "safetensors: "+c.want, c.name)
		require.Less(t, len(err.Error()), 400, c.name)
	}
}

// TestLongNames checks that a message repeats no more than the beginning of a name.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("n", 1<<20)
	for _, text := range []string{
		`{"` + long + `":0}`, `{"w":{"` + long + `":0}}`, `{"w":{"dtype":"` + long + `","shape":[],"data_offsets":[0,0]}}`,
		`{"w":{"shape":[` + strings.ReplaceAll(long, "n", "1") + `]}}`, `{"__metadata__":{"` + long + `":0}}`,
		`{"` + long + `":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}`, `{"` + long + `":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`,
	} {
		_, err := read(file(text, ""))
		require.Error(t, err)
		require.Less(t, len(err.Error()), 400)
	}
}

// A brokenReader fails from a byte on.
type brokenReader struct {
	io.ReaderAt
	from int64
}

var errDisk = errors.New("input/output error")

func (r brokenReader) ReadAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) > r.from {
		return 0, errDisk
	}
	return r.ReaderAt.ReadAt(b, at)
}

func TestReadErrors(t *testing.T) {
	const text = "\x02\x00\x00\x00\x00\x00\x00\x00{}"
	for from, want := range map[int64]string{
		7: "safetensors: read the length of the header: input/output error",
		9: "safetensors: read the header of 2 bytes: input/output error",
	} {
		_, err := ReadHeader(brokenReader{strings.NewReader(text), from}, int64(len(text)))
		require.ErrorIs(t, err, errDisk)
		require.EqualError(t, err, want)
	}
	for _, n := range []int{0, 3, 8, 9} { // a file that is shorter than it was said to be
		_, err := ReadHeader(strings.NewReader(text[:n]), int64(len(text)))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, n)
	}
	_, err := ReadHeader(strings.NewReader(text), int64(len(text)))
	require.NoError(t, err)
}

// FuzzReadHeader checks what ReadHeader promises of whatever it does not refuse, and that it comes
// back the same when it is written and read.
func FuzzReadHeader(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.safetensors")
	require.NoError(f, err)
	require.NotEmpty(f, paths)
	for _, p := range paths {
		data, err := os.ReadFile(p)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\ud83d\ude42":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}`, "12345")))
	f.Add([]byte(file(`{"a":{"dtype":"U8","shape":[0,9223372036854775807],"data_offsets":[0,0]}, "a" : null}`, "")))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := ReadHeader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			require.ErrorContains(t, err, "safetensors: ")
			return
		}
		aligned, end := true, h.DataStart
		for _, x := range h.Tensors {
			require.Equal(t, end, x.Offset)
			require.GreaterOrEqual(t, x.Size, int64(0))
			end += x.Size
			aligned = aligned && (x.Offset-h.DataStart)%int64(x.DType.Size()) == 0
		}
		require.EqualValues(t, len(data), end)

		again := h.Encode()
		start := int64(len(again))
		again = append(again, data[h.DataStart:]...)
		got, err := ReadHeader(bytes.NewReader(again), int64(len(again)))
		require.NoError(t, err)
		require.Equal(t, start, got.DataStart)
		made, err := NewHeader(h.Tensors, h.Metadata)
		require.Equal(t, aligned, err == nil, "%v", err)
		if aligned {
			require.Equal(t, made, got)
		}
		for i := range h.Tensors {
			h.Tensors[i].Offset += start - h.DataStart
		}
		h.DataStart = start
		require.Equal(t, h, got)
	})
}
