package transport

import (
	"fmt"
	"reflect"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/half"
)

// DType is the element type of a [Buffer]. The zero value is no type.
type DType uint8

// The element types that collectives move.
const (
	Float32 DType = iota + 1
	Float64
	Int32
	Int64
	Uint8    // bytes
	BFloat16 // of Go type [BF16]
	Float16  // of Go type [F16]
)

// BF16 is a bfloat16: the upper half of a float32. F16 is a binary16 of IEEE 754.
// Both are types to store and move bits: their method Float32 returns the value,
// and [Widen] and [Narrow] convert slices. Reductions calculate in float32 and
// round once.
type (
	BF16 = half.BFloat16
	F16  = half.Float16
)

// Widen sets elements of dst to the values of elements of src, exactly. Like copy
// it converts as many as both have, and returns their number.
func Widen[T BF16 | F16](dst []float32, src []T) int { return half.Widen(dst, src) }

// Narrow rounds elements of src to elements of dst: to nearest, ties to even.
// Like copy it converts as many as both have, and returns their number.
func Narrow[T BF16 | F16](dst []T, src []float32) int { return half.Narrow(dst, src) }

// dtypes holds the properties of the types; row 0 is the invalid type.
var dtypes = [...]struct {
	name string
	size int
}{
	{"invalid", 0}, {"float32", 4}, {"float64", 8}, {"int32", 4}, {"int64", 8}, {"uint8", 1},
	{"bfloat16", 2}, {"float16", 2},
}

// Size returns the bytes of one element, 0 if d is no type.
func (d DType) Size() int {
	if !d.valid() {
		return 0
	}
	return dtypes[d].size
}

// String returns the name of the type in lower case.
func (d DType) String() string {
	if !d.valid() {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

func (d DType) valid() bool { return d >= Float32 && d <= Float16 }

// IsFloat reports whether elements are floats.
func (d DType) IsFloat() bool {
	return d == Float32 || d == Float64 || d == BFloat16 || d == Float16
}

// Elem are the Go types a [Buffer] can hold.
type Elem interface {
	~float32 | ~float64 | ~int32 | ~int64 | ~uint8 | BF16 | F16
}

// Buffer is a typed, contiguous piece of memory with an optional label. Like a
// slice, it is a small value that refers to memory of its maker: memory of the
// host or, made by [OnDevice], of a device. The zero Buffer holds nothing, and
// every collective refuses it.
type Buffer struct {
	ptr    unsafe.Pointer // nil on a device
	addr   uintptr        // 0 on the host
	len    int            // elements
	dtype  DType
	device bool
	label  string
}

// Of returns a Buffer of the elements of s, which shares their memory.
func Of[T Elem](s []T) Buffer {
	return Buffer{ptr: unsafe.Pointer(unsafe.SliceData(s)), len: len(s), dtype: dtypeOf[T]()}
}

// OnDevice returns the Buffer of n elements at an address of device memory, which
// the program never accesses. Groups of package nccl move them; any other group
// refuses them with [ErrInvalid]. The zero Buffer is returned for a negative n.
func OnDevice[T Elem](addr uintptr, n int) Buffer {
	if n < 0 {
		return Buffer{}
	}
	return Buffer{addr: addr, len: n, dtype: dtypeOf[T](), device: true}
}

// HostMemory returns the Buffer of n elements of type d at p, for transports that
// share memory. The caller keeps the memory valid while the Buffer is in use.
func HostMemory(p unsafe.Pointer, n int, d DType) Buffer { return Buffer{ptr: p, len: n, dtype: d} }

// At returns b, a Buffer of host memory, with its elements at p instead. The caller
// keeps them valid, as for [HostMemory].
func (b Buffer) At(p unsafe.Pointer) Buffer {
	b.ptr = p
	return b
}

// Pointer returns the address of the first element, nil for device memory.
func (b Buffer) Pointer() unsafe.Pointer { return b.ptr }

func dtypeOf[T Elem]() DType {
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Float32:
		return Float32
	case reflect.Float64:
		return Float64
	case reflect.Int32:
		return Int32
	case reflect.Int64:
		return Int64
	case reflect.Uint8:
		return Uint8
	}
	if reflect.TypeFor[T]() == reflect.TypeFor[BF16]() {
		return BFloat16
	}
	return Float16
}

// Named returns b with a label, the name of its contents ("h.3"). It appears in
// errors, and ranks whose labels differ do not match.
func (b Buffer) Named(label string) Buffer {
	b.label = label
	return b
}

// Len returns the number of elements.
func (b Buffer) Len() int { return b.len }

// DType returns the element type.
func (b Buffer) DType() DType { return b.dtype }

// Label returns the label, "" if there is none.
func (b Buffer) Label() string { return b.label }

// Device returns the address of device memory, and whether b is such memory.
func (b Buffer) Device() (addr uintptr, ok bool) { return b.addr, b.device }

// Bytes returns the memory of b as bytes, without a copy, in the machine's byte
// order. It returns nil for device memory.
func (b Buffer) Bytes() []byte {
	if b.device {
		return nil
	}
	return unsafe.Slice((*byte)(b.ptr), b.len*b.dtype.Size())
}

// Slice returns the elements [lo, hi) of b, with the same memory and label.
// Bounds outside of b give a Buffer without a type, which every collective
// refuses.
func (b Buffer) Slice(lo, hi int) Buffer {
	if lo < 0 || hi < lo || hi > b.len {
		return Buffer{label: b.label}
	}
	return b.Part(lo, hi)
}

// Part is [Buffer.Slice] without its checks: b has at least hi elements, and 0 <= lo <= hi.
func (b Buffer) Part(lo, hi int) Buffer {
	switch {
	case b.device:
		b.addr += uintptr(lo * b.dtype.Size())
	case hi > lo: // an empty range may start past the end, where a pointer must not point
		b.ptr = unsafe.Add(b.ptr, lo*b.dtype.Size())
	}
	b.len = hi - lo
	return b
}

// String describes b as in errors: float32[1024] "h.3".
func (b Buffer) String() string {
	s := fmt.Sprintf("%v[%d]", b.dtype, b.len)
	if b.label != "" {
		s += fmt.Sprintf(" %q", b.label)
	}
	return s
}

// Slice returns the memory of b as a slice of T, without a copy. It fails if T is
// not the element type of b, or b is device memory.
func Slice[T Elem](b Buffer) ([]T, error) {
	if b.device {
		return nil, fmt.Errorf("comm: buffer %v is device memory", b)
	}
	if d := dtypeOf[T](); d != b.dtype {
		return nil, fmt.Errorf("comm: buffer %v does not hold %v", b, d)
	}
	return View[T](b), nil
}

// View is [Slice] without its checks: b is memory of the host, and T its element type.
func View[T Elem](b Buffer) []T { return unsafe.Slice((*T)(b.ptr), b.len) }

// start returns the address of the first byte. Addresses of device memory and of
// host memory must not be compared.
func (b Buffer) start() uintptr {
	if b.device {
		return b.addr
	}
	return uintptr(b.ptr)
}

// overlap reports whether a and b share memory.
func overlap(a, b Buffer) bool {
	if a.len == 0 || b.len == 0 || a.device != b.device {
		return false
	}
	pa, pb := a.start(), b.start()
	return pa < pb+uintptr(b.len*b.dtype.Size()) && pb < pa+uintptr(a.len*a.dtype.Size())
}

// Move copies src to dst, which has the same size in bytes and may be the same memory. Neither is device memory.
func Move(dst, src Buffer) {
	if dst.ptr != src.ptr {
		copy(dst.Bytes(), src.Bytes())
	}
}
