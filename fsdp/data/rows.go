package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/safetensors"
)

// OpenSafetensors opens a file of safetensors. Its samples are the rows of tensors. All tensors
// must have the same number of rows: the first dimension.
//
// T is a struct. A field holds a row of the tensor with its name, or with the name in its tag. The
// field is a number if a row has one element, or an array or a slice, row-major, of float32,
// float64 or int. Integers, and true and false, can become any of these; floats, also of 16 bits,
// become float32 or float64. Fields with the tag "-" and tensors without a field are skipped.
//
//	type digit struct {
//		Pixels []float32 `data:"images"` // [N, 8, 8] of any type
//		Label  int       `data:"labels"` // [N] of integers
//	}
//	digits, err := data.OpenSafetensors[digit]("digits.safetensors")
func OpenSafetensors[T any](path string) (*File[T], error) {
	in, err := openInput(path)
	if err != nil {
		return nil, err
	}
	h, err := safetensors.ReadHeader(in.file, in.size)
	if err != nil {
		return nil, errors.Join(in.errorf("%w", err), in.file.Close())
	}
	var arrays []*array
	for _, t := range h.Tensors {
		arrays = append(arrays, &array{in, t.Name, t.DType, t.Shape, t.Offset})
	}
	return openRows[T]([]*input{in}, arrays)
}

// OpenNpy opens files of arrays that numpy.save wrote, of its versions 1 to 3. The name of an array
// is the name of its file without ".npy", so all file names must differ. The rows become samples as
// for [OpenSafetensors]. The arrays must be in C order, the order of rows, and little-endian. Both
// are numpy's defaults.
//
//	digits, err := data.OpenNpy[digit]("images.npy", "labels.npy")
func OpenNpy[T any](paths ...string) (*File[T], error) {
	var inputs []*input
	var arrays []*array
	for _, path := range paths {
		in, err := openInput(path)
		if err != nil {
			return nil, errors.Join(err, closeAll(inputs))
		}
		inputs = append(inputs, in)
		a, err := in.npy()
		if err == nil && slices.ContainsFunc(arrays, func(b *array) bool { return b.name == a.name }) {
			err = in.errorf("two arrays have the name %q", a.name)
		}
		if err != nil {
			return nil, errors.Join(err, closeAll(inputs))
		}
		arrays = append(arrays, a)
	}
	return openRows[T](inputs, arrays)
}

// An array is an array of numbers in a file.
type array struct {
	in     *input
	name   string
	dtype  safetensors.DType
	shape  []int
	offset int64
}

func (a *array) String() string {
	return fmt.Sprintf("%q of %s %v in %s", a.name, a.dtype, a.shape, a.in.path)
}

// piece is an array's part of a row, and the field that holds it.
type piece struct {
	field
	*array
	elements int
}

// openRows returns the rows of arrays. If it fails, it closes the files.
func openRows[T any](inputs []*input, arrays []*array) (*File[T], error) {
	pieces, err := piecesOf(reflect.TypeFor[T](), arrays)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data: %w", err), closeAll(inputs))
	}
	return newFile("rows", inputs, pieces[0].shape[0], func(i int, x T) (T, error) {
		for _, p := range pieces {
			if err := p.fill(reflect.ValueOf(&x).Elem(), i); err != nil {
				return x, err
			}
		}
		return x, nil
	}), nil
}

// piecesOf finds an array for every field of T.
func piecesOf(t reflect.Type, arrays []*array) (list []piece, err error) {
	fields, err := fieldsOf(t)
	for _, f := range fields {
		i := slices.IndexFunc(arrays, func(a *array) bool { return a.name == f.name })
		if i < 0 {
			return nil, fmt.Errorf("%v: the file has no such array, only %v", f, arrays)
		}
		p := piece{f, arrays[i], 1}
		if len(p.shape) == 0 || slices.Contains(p.shape, 0) {
			return nil, fmt.Errorf("%v has no rows", p.array)
		}
		for _, n := range p.shape[1:] {
			p.elements *= n
		}
		integer, known := elementTypes[p.dtype]
		switch kind := f.element.Kind(); {
		case kind != reflect.Float32 && kind != reflect.Float64 && kind != reflect.Int:
			return nil, fmt.Errorf("%v: want float32, float64 or int", f)
		case !known || kind == reflect.Int && !integer:
			return nil, fmt.Errorf("%v cannot hold %v", f, p.array)
		case !f.holds(p.elements):
			return nil, fmt.Errorf("%v cannot hold a row of %v", f, p.array)
		case len(list) > 0 && p.shape[0] != list[0].shape[0]:
			return nil, fmt.Errorf("%v has %d rows, and %v has %d", p.array, p.shape[0], list[0].array, list[0].shape[0])
		}
		list = append(list, p)
	}
	return list, err
}

// elementTypes are the element types of files that Go numbers can hold, and whether they are
// integers.
var elementTypes = map[safetensors.DType]bool{
	safetensors.F64: false, safetensors.F32: false, safetensors.F16: false, safetensors.BF16: false,
	"I64": true, "I32": true, "I16": true, "I8": true, "U32": true, "U16": true, "U8": true, "BOOL": true,
}

// fill sets the field of x, a struct, to row i of the array.
func (p piece) fill(x reflect.Value, i int) error {
	v := p.value(x, p.elements)
	to := v.Addr().UnsafePointer()
	if v.Kind() == reflect.Slice {
		to = v.UnsafePointer()
	}
	switch p.element.Kind() {
	case reflect.Float32:
		return readRow(p.array, unsafe.Slice((*float32)(to), p.elements), i)
	case reflect.Float64:
		return readRow(p.array, unsafe.Slice((*float64)(to), p.elements), i)
	}
	return readRow(p.array, unsafe.Slice((*int)(to), p.elements), i)
}

// readRow sets dst to row i.
func readRow[E float32 | float64 | int](a *array, dst []E, i int) error {
	width := a.dtype.Size()
	raw := tail(dst, width)
	if err := a.in.read(raw, a.offset+int64(i)*int64(len(raw))); err != nil {
		return err
	}
	le := binary.LittleEndian
	switch a.dtype {
	case safetensors.F64:
		convert(dst, raw, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) })
	case safetensors.F32:
		convert(dst, raw, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) })
	case safetensors.F16:
		convert(dst, raw, func(b []byte) float32 { return half.Float16(le.Uint16(b)).Float32() })
	case safetensors.BF16:
		convert(dst, raw, func(b []byte) float32 { return half.BFloat16(le.Uint16(b)).Float32() })
	case "I64":
		convert(dst, raw, func(b []byte) int64 { return int64(le.Uint64(b)) })
	case "I32":
		convert(dst, raw, func(b []byte) int32 { return int32(le.Uint32(b)) })
	case "U32":
		convert(dst, raw, le.Uint32)
	case "I16":
		convert(dst, raw, func(b []byte) int16 { return int16(le.Uint16(b)) })
	case "U16":
		convert(dst, raw, le.Uint16)
	case "I8":
		convert(dst, raw, func(b []byte) int8 { return int8(b[0]) })
	default: // U8, BOOL
		convert(dst, raw, func(b []byte) uint8 { return b[0] })
	}
	return nil
}

type number interface {
	float32 | float64 | int | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32
}

// convert sets dst to the elements in raw.
func convert[E, F number](dst []E, raw []byte, element func([]byte) F) {
	width := len(raw) / max(1, len(dst))
	for i := range dst {
		dst[i] = E(element(raw[i*width:]))
	}
}
