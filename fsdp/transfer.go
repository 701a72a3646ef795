package fsdp

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// A full buffer of a group has the elements of all ranks in the type of the computation. What travels in 16 bits does so
// inside of it, without memory of its own: parameters arrive in its second half and are widened from its start, which never
// overtakes what is still to be read; gradients are narrowed into its first half.

// startGather issues the all-gather of the parameters into full.
func (f *flatGroup) startGather(full []byte) comm.Work {
	g := f.mesh.shard
	if f.gather == f.dtype {
		return g.AllGather(f.buffer(full, f.dtype), f.buffer(f.value.Data, f.dtype))
	}
	low := full[len(full)/2:]
	own := f.own(low)
	f.narrow(own, f.value.Data, f.gather, 1)
	return g.AllGather(f.buffer(low, f.gather), f.buffer(own, f.gather))
}

// finishGather makes what has arrived the parameters.
func (f *flatGroup) finishGather(full []byte) {
	if f.gather != f.dtype {
		widen(elements[float32](full), full[len(full)/2:], f.gather)
	}
}

// startReduce issues the sum of the gradients in full over the ranks that share the parameters; if every rank has all of
// them, over the replicas. They are multiplied by c first if they travel in 16 bits.
func (f *flatGroup) startReduce(full []byte, c float32) comm.Work {
	if f.reduce != f.dtype {
		f.narrow(f.traveling(full), full, f.reduce, c)
	}
	grads := f.traveling(full)
	switch {
	case f.mesh.shard.Size() > 1:
		return f.mesh.shard.ReduceScatter(f.buffer(f.own(grads), f.reduce), f.buffer(grads, f.reduce), comm.Sum)
	case f.mesh.replica != nil:
		return f.mesh.replica.AllReduce(f.buffer(grads, f.reduce), comm.Sum)
	default:
		return nil
	}
}

// startSync issues the sum of this rank's range of the gradients over the replicas.
func (f *flatGroup) startSync(full []byte) comm.Work {
	return f.mesh.replica.AllReduce(f.buffer(f.own(f.traveling(full)), f.reduce), comm.Sum)
}

// finishReduce adds c times this rank's range of the sums in full to the gradient shard.
func (f *flatGroup) finishReduce(full []byte, c float64) {
	own := f.own(f.traveling(full))
	switch {
	case f.dtype == Float64:
		vec.AddScaled(elements[float64](f.grad.Data), elements[float64](own), c)
	case f.reduce == Float32:
		vec.AddScaled(elements[float32](f.grad.Data), elements[float32](own), float32(c))
	default:
		var chunk [1024]float32
		for grad := elements[float32](f.grad.Data); len(grad) > 0; {
			n := min(len(grad), len(chunk))
			widen(chunk[:n], own[:2*n], f.reduce)
			vec.AddScaled(grad[:n], chunk[:n], float32(c))
			grad, own = grad[n:], own[2*n:]
		}
	}
}

// gatherNow gathers a shard buffer of the group.
func (f *flatGroup) gatherNow(ctx context.Context, full, shard []byte) error {
	full = full[:f.bytes()]
	if err := f.mesh.shard.AllGather(f.buffer(full, f.dtype), f.buffer(shard, f.dtype)).Wait(ctx); err != nil {
		return fmt.Errorf("gathering group %s: %w", f.name, err)
	}
	return nil
}

// take copies what this rank owns of parameter i, whose elements are in whole, to a shard buffer.
func (f *flatGroup) take(shard []byte, i int, whole []byte) {
	es := f.dtype.size()
	for _, seg := range f.segments() {
		if seg.Param == i {
			copy(shard[seg.At*es:][:seg.Len*es], whole[seg.Offset*es:])
		}
	}
}

// traveling returns the part of a full gradient buffer that travels.
func (f *flatGroup) traveling(full []byte) []byte { return full[:f.layout.Len()*f.reduce.size()] }

// own returns this rank's range of a full buffer of any type.
func (f *flatGroup) own(full []byte) []byte {
	n := len(full) / f.layout.World()
	lo := f.mesh.shard.Rank() * n
	return full[lo : lo+n : lo+n]
}

// buffer returns b as a communication buffer labelled with the group's name.
func (f *flatGroup) buffer(b []byte, t DType) comm.Buffer {
	switch t {
	case Float64:
		return comm.Of(elements[float64](b)).Named(f.name)
	case BFloat16:
		return comm.Of(elements[comm.BF16](b)).Named(f.name)
	case Float16:
		return comm.Of(elements[comm.F16](b)).Named(f.name)
	default:
		return comm.Of(elements[float32](b)).Named(f.name)
	}
}

// narrow rounds c times the float32 elements of src to the 16-bit type t.
func (f *flatGroup) narrow(dst, src []byte, t DType, c float32) {
	if t == BFloat16 {
		half.NarrowScaled(elements[comm.BF16](dst), elements[float32](src), c)
	} else {
		half.NarrowScaled(elements[comm.F16](dst), elements[float32](src), c)
	}
}

// widen sets dst to the values of src, of the 16-bit type t.
func widen(dst []float32, src []byte, t DType) {
	if t == BFloat16 {
		half.Widen(dst, elements[comm.BF16](src))
	} else {
		half.Widen(dst, elements[comm.F16](src))
	}
}

// elements returns the elements of type T in b.
func elements[T comm.Elem](b []byte) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(z)))
}
