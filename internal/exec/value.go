package exec

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/half"
)

// A Value is a dense row-major tensor in memory that it does not own. Its element type is float32,
// float64 or int.
type Value struct {
	Shape tensor.Shape
	DType tensor.Dtype
	Bytes []byte // Len() elements, aligned for the element type
	Form  Form   // of float32 values; zero except in programs that compute in bfloat16
}

// Absent stands for a missing tensor in a batch. Other tensors of batches have elements.
var Absent = Value{Shape: tensor.Shape{0}, DType: tensor.Int}

// Len returns the number of elements. A scalar, of shape (), has one.
func (v Value) Len() int { return Numel(v.Shape) }

// elements returns elements lo to hi of v. The shape is unchanged.
func (v Value) elements(lo, hi int) Value {
	size := len(v.Bytes) / max(1, v.Len())
	v.Bytes = v.Bytes[lo*size : hi*size : hi*size]
	return v
}

// Numel returns the number of elements of a tensor of shape s.
func Numel(s []int) int {
	n := 1
	for _, d := range s {
		n *= d
	}
	return n
}

// Elem is the set of element types.
type Elem interface {
	float32 | float64 | int | half.BFloat16 | half.Float16
}

// Data returns the elements of b, which must hold whole elements of type T.
func Data[T Elem](b []byte) []T {
	var z T
	if len(b) == 0 { // which need not be aligned for T
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(z)))
}

// Bytes returns the memory of s.
func Bytes[T Elem](s []T) []byte {
	var z T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(z)))
}

// FromTensor returns t's memory as a Value. t must be dense, row-major, contiguous and of a
// supported element type; t keeps the memory.
func FromTensor(t tensor.Tensor) (Value, error) {
	d, err := contiguous(t)
	if err != nil {
		return Value{}, err
	}
	v := Value{Shape: d.Shape(), DType: d.Dtype()}
	switch d.Dtype() {
	case tensor.Float32:
		v.Bytes = Bytes(d.Float32s())
	case tensor.Float64:
		v.Bytes = Bytes(d.Float64s())
	case tensor.Int:
		v.Bytes = Bytes(d.Ints())
	default:
		return Value{}, fmt.Errorf("element type %v is not supported: want float32, float64 or int", d.Dtype())
	}
	if n := v.Len() * int(v.DType.Size()); len(v.Bytes) != n {
		return Value{}, fmt.Errorf("tensor of shape %v holds %d bytes, want %d", d.Shape(), len(v.Bytes), n)
	}
	return v, nil
}

// FromBatch is FromTensor for a tensor of a batch, whose integers may also be int64 or int32. int32
// values are copied, and int64 values too where int is shorter.
func FromBatch(t tensor.Tensor) (Value, error) {
	d, err := contiguous(t)
	switch {
	case err != nil:
		return Value{}, err
	case d.Dtype() == tensor.Int32:
		return integers(d, d.Int32s()), nil
	case d.Dtype() == tensor.Int64 && strconv.IntSize < 64:
		return integers(d, d.Int64s()), nil
	case d.Dtype() == tensor.Int64:
		v := d.Int64s()
		return Value{Shape: d.Shape(), DType: tensor.Int, Bytes: unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*8)}, nil
	}
	return FromTensor(d)
}

// integers copies v, the elements of d. A value that int cannot hold becomes one that no operation
// accepts.
func integers[T int32 | int64](d *tensor.Dense, v []T) Value {
	list := make([]int, len(v))
	for i, x := range v {
		if list[i] = int(x); T(list[i]) != x {
			list[i] = math.MinInt
		}
	}
	return Value{Shape: d.Shape(), DType: tensor.Int, Bytes: Bytes(list)}
}

// contiguous returns t if it is dense, row-major, contiguous and not empty.
func contiguous(t tensor.Tensor) (*tensor.Dense, error) {
	d, ok := t.(*tensor.Dense)
	if !ok || d == nil {
		if t == nil || ok {
			return nil, errors.New("the tensor is nil")
		}
		return nil, fmt.Errorf("want a dense tensor, got %T", t)
	}
	if Numel(d.Shape()) == 0 {
		return nil, fmt.Errorf("tensor of shape %v is empty", d.Shape())
	}
	if d.RequiresIterator() || d.DataOrder().IsColMajor() {
		return nil, fmt.Errorf("tensor of shape %v is a view or column-major: clone it into row-major order first", d.Shape())
	}
	return d, nil
}

// Tensor returns v as a tensor that shares v's memory. A scalar, of shape (), becomes a tensor of
// shape (1), because package tensor makes scalars only as copies.
func (v Value) Tensor() *tensor.Dense {
	shape := v.Shape
	if len(shape) == 0 {
		shape = tensor.Shape{1}
	}
	switch v.DType {
	case tensor.Float32:
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(Data[float32](v.Bytes)))
	case tensor.Float64:
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(Data[float64](v.Bytes)))
	default:
		return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(Data[int](v.Bytes)))
	}
}
