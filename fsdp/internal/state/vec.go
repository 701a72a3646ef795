package state

import (
	"context"
	"strings"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/checkpoint"
	"github.com/gofsdp/gofsdp/internal/safetensors"
	"github.com/gofsdp/gofsdp/optim"
)

// NewHost returns n elements of type t.
func NewHost(t comm.DType, n int) optim.Host {
	if t == comm.Float64 {
		return optim.Host{F64: make([]float64, n)}
	}
	return optim.Host{F32: make([]float32, n)}
}

// undefined returns n bytes of memory that has its pages already, aligned for any element. Its
// content is undefined.
func undefined(n int) []byte {
	var b strings.Builder // only this way returns memory that the runtime does not clear
	b.Grow(n + 1)
	b.WriteByte(0)
	mem := unsafe.Slice(unsafe.StringData(b.String()), n)
	populate(mem)
	return mem
}

// blocks gives memory to tensors, of which there may be thousands. It takes memory in blocks of the
// size at which a page costs least, and small tensors share a block.
type blocks struct {
	left int // bytes of the small tensors to come
	free []byte
}

const blockBytes = 1 << 20

// expect announces a tensor of n bytes.
func (b *blocks) expect(n int) {
	if n <= blockBytes/smallParts {
		b.left += n
	}
}

// take returns n undefined bytes for a tensor that expect has announced.
func (b *blocks) take(n int) []byte {
	if n > blockBytes/smallParts {
		return undefined(n)
	}
	if n > len(b.free) {
		b.free = undefined(min(blockBytes, b.left))
	}
	mem := b.free[:n:n]
	b.left, b.free = b.left-n, b.free[n:]
	return mem
}

// BytesOf returns the memory of v.
func BytesOf(v optim.Host) []byte {
	if v.F64 != nil {
		return comm.Of(v.F64).Bytes()
	}
	return comm.Of(v.F32).Bytes()
}

// host returns b, whose elements are of type t, as a vector.
func host(t comm.DType, b []byte) optim.Host {
	if t == comm.Float64 {
		return optim.Host{F64: elements[float64](b)}
	}
	return optim.Host{F32: elements[float32](b)}
}

// buffer returns b, whose elements are of type t, for a collective.
func buffer(t comm.DType, b []byte, label string) comm.Buffer {
	if t == comm.Float64 {
		return comm.Of(elements[float64](b)).Named(label)
	}
	return comm.Of(elements[float32](b)).Named(label)
}

// elements returns the elements of type T in b.
func elements[T float32 | float64](b []byte) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(z)))
}

// contents returns the elements of v: in place, if that is ordinary memory, or else a copy.
func contents(v optim.Vec) ([]byte, error) {
	if h, ok := v.(optim.Host); ok {
		return BytesOf(h), nil
	}
	h := room(v)
	return BytesOf(h), v.Read(h)
}

// replace has f write new elements of v: in place, if that is ordinary memory, or else elsewhere.
func replace(v optim.Vec, f func(to []byte) error) error {
	if h, ok := v.(optim.Host); ok {
		return f(BytesOf(h))
	}
	h := room(v)
	if err := f(BytesOf(h)); err != nil {
		return err
	}
	return v.Write(h)
}

// portions calls f with the elements of v, some at a time, until ctx ends: in place, if that is
// ordinary memory, or else with copies.
func portions(ctx context.Context, v optim.Vec, f func(b []byte) error) error {
	const most = checkpoint.ChunkBytes / float64Bytes
	var copied optim.Host
	for at := 0; at < v.Len(); at += most {
		if ctx.Err() != nil { // the memory may be in use again
			return context.Cause(ctx)
		}
		part := v.Slice(at, min(at+most, v.Len()))
		h, here := part.(optim.Host)
		if !here {
			if at == 0 {
				copied = room(part)
			}
			h = copied.Slice(0, part.Len()).(optim.Host)
			if err := part.Read(h); err != nil {
				return err
			}
		}
		if err := f(BytesOf(h)); err != nil {
			return err
		}
	}
	return nil
}

// room returns memory for the elements of v.
func room(v optim.Vec) optim.Host {
	if v.Float64() {
		return NewHost(comm.Float64, v.Len())
	}
	return NewHost(comm.Float32, v.Len())
}

// convert returns the memory of v if its elements are of type t, or else room with the elements as
// t.
func convert(room []byte, t comm.DType, v optim.Host) []byte {
	switch {
	case v.F64 != nil && t == comm.Float32:
		to := elements[float32](room)
		for i, x := range v.F64 {
			to[i] = float32(x)
		}
		return room
	case v.F32 != nil && t == comm.Float64:
		to := elements[float64](room)
		for i, x := range v.F32 {
			to[i] = float64(x)
		}
		return room
	default:
		return BytesOf(v)
	}
}

// fileType returns the name of an element type in files.
func fileType(t comm.DType) safetensors.DType {
	return map[comm.DType]safetensors.DType{
		comm.Float32: safetensors.F32, comm.Float64: safetensors.F64, comm.BFloat16: safetensors.BF16, comm.Float16: safetensors.F16,
	}[t]
}
