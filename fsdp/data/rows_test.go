package data

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenRow is row i of what testdata/golden.py writes with elements of a type.
func goldenRow(dtype string, i int) []float64 {
	a := float64(2 * i)
	switch dtype {
	case "float64", "float16", "bfloat16", "float32":
		return []float64{a/4 - 1, (a+1)/4 - 1}
	case "bool":
		return []float64{0, 1}
	case "uint8":
		return []float64{250 + a, 251 + a}
	case "uint16":
		return []float64{1<<16 - 6 + a, 1<<16 - 5 + a}
	case "uint32":
		return []float64{1<<32 - 6 + a, 1<<32 - 5 + a}
	}
	return []float64{a - 2, a - 1}
}

// integers and floats have a field for each type of numpy's.
type integers struct {
	Int8   []int  `data:"int8"`
	Int16  [2]int `data:"int16"`
	Int32  []int  `data:"int32"`
	Int64  []int  `data:"int64"`
	Uint8  []int  `data:"uint8"`
	Uint16 []int  `data:"uint16"`
	Uint32 []int  `data:"uint32"`
	Bool   []int  `data:"bool"`
}

type floats struct {
	Float16 []float32   `data:"float16"`
	Float32 []float32   `data:"float32"`
	Float64 []float64   `data:"float64"`
	Narrow  [2]float32  `data:"float64"`
	Wide    [2]float64  `data:"float32"`
	Pixels  []float32   `data:"uint8"`
	Counts  []float64   `data:"uint32"`
	None    map[int]int `data:"-"`
}

// checkRows compares the first fields of rows with what was written.
func checkRows[T any](t *testing.T, src *File[T], err error, fields string) {
	require.NoError(t, err)
	for i, row := range readAll(t, src) {
		for k, f := range strings.Fields(fields) {
			v, got := reflect.ValueOf(row).Field(k), []float64{}
			for e := range v.Len() {
				got = append(got, v.Index(e).Convert(reflect.TypeFor[float64]()).Float())
			}
			require.Equal(t, goldenRow(f, i), got, f)
		}
	}
	require.Equal(t, 3, src.Len())
	require.NoError(t, src.Close())
	_, err = src.At(0)
	require.ErrorIs(t, err, os.ErrClosed)
}

func npyFile(name string) string { return filepath.Join("testdata", "npy", name+".npy") }

const (
	integerFields = "int8 int16 int32 int64 uint8 uint16 uint32 bool"
	floatFields   = "float16 float32 float64 float64 float32 uint8 uint32"
)

func TestNpy(t *testing.T) {
	var paths []string
	for name := range strings.FieldsSeq(integerFields + " float16 float32 float64") {
		paths = append(paths, npyFile(name))
	}
	whole, err := OpenNpy[integers](paths...)
	checkRows(t, whole, err, integerFields)
	parts, err := OpenNpy[floats](paths...)
	checkRows(t, parts, err, floatFields)
	f, err := OpenNpy[struct {
		V1 []float64 `data:"version1"`
		V2 []float64 `data:"version2"`
		V3 []float64 `data:"version3"`
	}](npyFile("version1"), npyFile("version2"), npyFile("version3"))
	require.Equal(t, "version1.npy, version2.npy, version3.npy(3 rows)", f.String())
	checkRows(t, f, err, "float32 float32 float32")
	ranks, err := OpenNpy[struct {
		Label  int        `data:"vector"`
		Weight float32    `data:"vector"`
		Image  [4]float32 `data:"cube"`
	}](npyFile("vector"), npyFile("cube"))
	require.NoError(t, err)
	require.Equal(t, "[{3 3 [0 1 2 3]} {1 1 [4 5 6 7]} {2 2 [8 9 10 11]}]", fmt.Sprint(readAll(t, ranks)))
	require.NoError(t, ranks.Close())
}

func TestNpyRefuses(t *testing.T) {
	type row struct {
		X []float32 `data:"float32"`
	}
	for name, want := range map[string]string{
		"bad_fortran":   "the array is in Fortran order: save numpy.ascontiguousarray(array)",
		"bad_bigendian": `dtype ">f4" is big-endian: save it as "<f4"`,
		"bad_uint64":    `dtype "<u8": elements must be bool, float16 to 64, int8 to 64 or uint8 to 32`,
		"bad_text":      `dtype "<U1": elements must be bool, float16 to 64, int8 to 64 or uint8 to 32`,
		"bad_object":    `dtype "|O": elements must be bool, float16 to 64, int8 to 64 or uint8 to 32`,
		"bad_structure": "dtype [('x', '<f4'), ('y', '<i8', (2,))] is a structure: save its fields as separate arrays",
	} {
		_, err := OpenNpy[row](npyFile("float32"), npyFile(name))
		require.EqualError(t, err, "data: "+npyFile(name)+": "+want)
	}
	_, err := OpenNpy[row](npyFile("float32"), "missing.npy")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = OpenNpy[row](npyFile("float32"), npyFile("float32"))
	require.EqualError(t, err, "data: "+npyFile("float32")+": two arrays have the name \"float32\"")
	_, err = OpenNpy[row]()
	require.EqualError(t, err, "data: []float32 `data:\"float32\"`: the file has no such array, only []")

	good, err := os.ReadFile(npyFile("float32"))
	require.NoError(t, err)
	for want, content := range map[string][]byte{
		"not a NumPy array: only 5 bytes":                                                     good[:5],
		"not a NumPy array: it does not begin with \\x93NUMPY":                                append([]byte("x"), good...),
		"NumPy format version 4, want 1, 2 or 3":                                              append([]byte("\x93NUMPY\x04"), good[7:]...),
		"the header says 118 bytes, but the file has 127: the file is truncated or damaged":   good[:127],
		"the file has 23 bytes of elements, but shape [3 2] of F32 needs 24: it is truncated": good[:len(good)-1],
		"the file has 25 bytes of elements, but shape [3 2] of F32 needs 24":                  append(bytes.Clone(good), 0),
		"shape [3 9223372036854775807] of F32 overflows":                                      bytes.Replace(good, []byte("2), }                   "), []byte("9223372036854775807), }  "), 1),
		"shape (3, -2)": bytes.Replace(good, []byte("2), } "), []byte("-2), }"), 1),
		"invalid array header: \"{'descr': '<f4', 'fortran_order': False, 'sharp': ": bytes.Replace(good, []byte("shape"), []byte("sharp"), 1),
	} {
		path := write(t, "float32.npy", content)
		_, err := OpenNpy[row](path)
		require.ErrorContains(t, err, "data: "+path+": "+want)
	}
}

func TestSafetensors(t *testing.T) {
	path := filepath.Join("testdata", "rows.safetensors")
	whole, err := OpenSafetensors[integers](path)
	require.Equal(t, "rows.safetensors(3 rows)", whole.String())
	checkRows(t, whole, err, integerFields)
	parts, err := OpenSafetensors[floats](path)
	checkRows(t, parts, err, floatFields)
	brains, err := OpenSafetensors[struct {
		X []float32 `data:"bfloat16"`
	}](path)
	checkRows(t, brains, err, "bfloat16")
	bad := write(t, "a.safetensors", []byte("12345678"))
	_, err = OpenSafetensors[integers](bad)
	require.ErrorContains(t, err, "data: "+bad+": safetensors: a header of ")
}

// refusesRows opens rows that do not fit T.
func refusesRows[T any](t *testing.T, want string) {
	path := filepath.Join("testdata", "rows.safetensors")
	_, err := OpenSafetensors[T](path)
	require.EqualError(t, err, "data: "+strings.ReplaceAll(want, "PATH", "in "+path))
}

func TestRowsRefuse(t *testing.T) {
	refusesRows[struct {
		X []int `data:"float32"`
	}](t, "[]int `data:\"float32\"` cannot hold \"float32\" of F32 [3 2] PATH")
	refusesRows[struct {
		X []int `data:"uint64"`
	}](t, "[]int `data:\"uint64\"` cannot hold \"uint64\" of U64 [3 2] PATH")
	refusesRows[struct {
		X int `data:"int8"`
	}](t, "int `data:\"int8\"` cannot hold a row of \"int8\" of I8 [3 2] PATH")
	refusesRows[struct {
		X [3]float32 `data:"int8"`
	}](t, "[3]float32 `data:\"int8\"` cannot hold a row of \"int8\" of I8 [3 2] PATH")
	refusesRows[struct {
		X []string `data:"int8"`
	}](t, "[]string `data:\"int8\"`: want float32, float64 or int")
	refusesRows[struct {
		X []float32 `data:"four"`
		Y []float32 `data:"float32"`
	}](t, "\"float32\" of F32 [3 2] PATH has 3 rows, and \"four\" of F32 [4 2] PATH has 4")
	refusesRows[struct {
		X float32 `data:"scalar"`
	}](t, "\"scalar\" of F32 [] PATH has no rows")
	refusesRows[struct {
		X []float32 `data:"none"`
	}](t, "\"none\" of F32 [0 2] PATH has no rows")
	refusesRows[[]float32](t, "samples of []float32, want a struct")
}

// TestIntoKeepsMemory: rows are read into the slices of an earlier one.
func TestIntoKeepsMemory(t *testing.T) {
	f, err := OpenNpy[struct {
		X []float32 `data:"float32"`
	}](npyFile("float32"))
	require.NoError(t, err)
	first, err := f.At(0)
	require.NoError(t, err)
	second, err := f.Into(1, first)
	require.NoError(t, err)
	require.Same(t, &first.X[0], &second.X[0])
	require.Equal(t, []float32{-0.5, -0.25}, second.X)
	require.NoError(t, f.Close())
}

// FuzzRows opens any file as either format. What can be opened can be read.
func FuzzRows(f *testing.F) {
	npys, err := filepath.Glob(npyFile("*"))
	require.NoError(f, err)
	require.NotEmpty(f, npys)
	for _, path := range append(npys, filepath.Join("testdata", "rows.safetensors")) {
		b, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(b)
	}
	path := filepath.Join(f.TempDir(), "rows.npy")
	f.Fuzz(func(t *testing.T, content []byte) {
		require.NoError(t, os.WriteFile(path, content, 0o600))
		if f, err := OpenSafetensors[integers](path); err == nil {
			require.NotEmpty(t, readAll(t, f))
			require.NoError(t, f.Close())
		}
		f, err := OpenNpy[struct {
			X []float32 `data:"rows"`
		}](path)
		if err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		require.NotEmpty(t, readAll(t, f))
		require.NoError(t, f.Close())
	})
}
