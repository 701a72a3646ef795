package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// maxNpyHeader is a limit for headers that only arrays of structures could exceed.
const maxNpyHeader = 1 << 16

// npy finds the array in a file of numpy's format,
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html:
//
//	byte 0         6            8              10 or 12
//	├─ \x93NUMPY ──┼─ version ──┼─ length ─────┼─ {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } ─┼─ elements
func (in *input) npy() (*array, error) {
	var first [12]byte
	if in.size < int64(len(first)) {
		return nil, in.errorf("not a NumPy array: only %d bytes", in.size)
	}
	if err := in.read(first[:], 0); err != nil {
		return nil, err
	}
	if string(first[:6]) != "\x93NUMPY" {
		return nil, in.errorf("not a NumPy array: it does not begin with \\x93NUMPY")
	}
	begin, length := int64(12), int64(binary.LittleEndian.Uint32(first[8:]))
	switch major := first[6]; major {
	case 1:
		begin, length = 10, int64(binary.LittleEndian.Uint16(first[8:]))
	case 2, 3:
	default:
		return nil, in.errorf("NumPy format version %d, want 1, 2 or 3", major)
	}
	if length > min(in.size-begin, maxNpyHeader) {
		return nil, in.errorf("the header says %d bytes, but the file has %d: the file is truncated or damaged", length, in.size)
	}
	header := make([]byte, length)
	if err := in.read(header, begin); err != nil {
		return nil, err
	}
	a, err := parseNpy(string(header))
	if err != nil {
		return nil, in.errorf("%w", err)
	}
	a.in, a.name, a.offset = in, strings.TrimSuffix(filepath.Base(in.path), ".npy"), begin+length
	return a, a.checkSize()
}

// checkSize checks that the file has exactly the elements of its array.
func (a *array) checkSize() error {
	want := int64(a.dtype.Size())
	for _, d := range a.shape {
		if d > 0 && want > math.MaxInt64/int64(d) {
			return a.in.errorf("shape %v of %s overflows", a.shape, a.dtype)
		}
		want *= int64(d)
	}
	if got := a.in.size - a.offset; got != want {
		return a.in.errorf("the file has %d bytes of elements, but shape %v of %s needs %d: it is truncated, or holds more than one array", got, a.shape, a.dtype, want)
	}
	return nil
}

// npyTypes are numpy's names of element types, without the byte order.
var npyTypes = map[string]safetensors.DType{
	"f2": safetensors.F16, "f4": safetensors.F32, "f8": safetensors.F64, "b1": "BOOL",
	"i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "u1": "U8", "u2": "U16", "u4": "U32",
}

// npyItem matches an item of the dictionary in a header, and its end.
var npyItem = regexp.MustCompile(`^\s*['"](\w+)['"]\s*:\s*('[^']*'|"[^"]*"|True|False|\([^()]*\)|\[.*\])\s*(,?)`)

// parseNpy parses the type and the shape in a header: a dictionary as Python writes it, and space.
func parseNpy(header string) (*array, error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(header), "{")
	items := make(map[string]string)
	for comma := ","; ok && comma != ""; {
		m := npyItem.FindStringSubmatch(rest)
		if m == nil {
			break
		}
		rest, comma, items[m[1]] = rest[len(m[0]):], m[3], m[2]
	}
	descr, fortran, shape := strings.Trim(items["descr"], `'"`), items["fortran_order"], items["shape"]
	a := &array{dtype: npyTypes[strings.TrimLeft(descr, "<|=")]}
	switch {
	case !ok || strings.TrimSpace(rest) != "}" || len(items) != 3 || descr == "" || fortran == "" || !strings.HasPrefix(shape, "("):
		return nil, fmt.Errorf("invalid array header: %.200q", header)
	case fortran != "False":
		return nil, errors.New("the array is in Fortran order: save numpy.ascontiguousarray(array)")
	case strings.HasPrefix(descr, ">"):
		return nil, fmt.Errorf("dtype %q is big-endian: save it as %q", descr, "<"+descr[1:])
	case strings.HasPrefix(descr, "["):
		return nil, fmt.Errorf("dtype %.100s is a structure: save its fields as separate arrays", descr)
	case a.dtype == "":
		return nil, fmt.Errorf("dtype %.100q: elements must be bool, float16 to 64, int8 to 64 or uint8 to 32", descr)
	}
	for text := range strings.SplitSeq(strings.Trim(shape, "()"), ",") {
		if text = strings.TrimSuffix(strings.TrimSpace(text), "L"); text == "" { // Python 2 writes L
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("shape %.100s", shape)
		}
		a.shape = append(a.shape, n)
	}
	return a, nil
}
