package engine

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// A full buffer of a group has the elements of all ranks in the type in which calls read or write
// them. What travels in 16 bits does so inside of it, without memory of its own. Parameters that
// calls read in float32 arrive in its second half and are widened from its start, which never
// overtakes what is still to be read. Gradients are narrowed into its first half.

// startGather issues the all-gather of the parameters into full.
func (f *flatGroup) startGather(full []byte) comm.Work {
	g := f.mesh.Shard
	if f.Gather == f.Compute {
		return g.AllGather(f.buffer(full, f.Compute), f.buffer(f.value.Data, f.Compute))
	}
	low := full[len(full)-f.Flat.Len()*f.Gather.Size():]
	own := f.own(low)
	f.narrow(own, f.value.Data, f.Gather, 1)
	return g.AllGather(f.buffer(low, f.Gather), f.buffer(own, f.Gather))
}

// finishGather makes what has arrived the parameters.
func (f *flatGroup) finishGather(full []byte) {
	if f.Gather != f.Read {
		widen(elements[float32](full), full[len(full)/2:], f.Gather)
	}
}

// startReduce issues the sum of the gradients in full over the ranks that share the parameters; if
// every rank has all of them, over the replicas. Gradients that travel in 16 bits are multiplied by
// c first.
func (f *flatGroup) startReduce(full []byte, c float32) comm.Work {
	if f.Reduce != f.Compute {
		f.narrow(f.traveling(full), full, f.Reduce, c)
	}
	grads := f.traveling(full)
	switch {
	case f.mesh.Shard.Size() > 1:
		return f.mesh.Shard.ReduceScatter(f.buffer(f.own(grads), f.Reduce), f.buffer(grads, f.Reduce), comm.Sum)
	case f.mesh.Replica != nil:
		return f.mesh.Replica.AllReduce(f.buffer(grads, f.Reduce), comm.Sum)
	default:
		return nil
	}
}

// startSync issues the sum of this rank's range of the gradients over the replicas.
func (f *flatGroup) startSync(full []byte) comm.Work {
	return f.mesh.Replica.AllReduce(f.buffer(f.own(f.traveling(full)), f.Reduce), comm.Sum)
}

// finishReduce adds c times this rank's range of the sums in full to the gradient shard.
func (f *flatGroup) finishReduce(full []byte, c float64) {
	own := f.own(f.traveling(full))
	switch {
	case f.Compute == comm.Float64:
		vec.AddScaled(elements[float64](f.grad.Data), elements[float64](own), c)
	case f.Reduce == comm.Float32:
		vec.AddScaled(elements[float32](f.grad.Data), elements[float32](own), float32(c))
	default:
		var chunk [1024]float32
		for grad := elements[float32](f.grad.Data); len(grad) > 0; {
			n := min(len(grad), len(chunk))
			widen(chunk[:n], own[:2*n], f.Reduce)
			vec.AddScaled(grad[:n], chunk[:n], float32(c))
			grad, own = grad[n:], own[2*n:]
		}
	}
}

// traveling returns the part of a full gradient buffer that travels.
func (f *flatGroup) traveling(full []byte) []byte { return full[:f.Flat.Len()*f.Reduce.Size()] }

// own returns this rank's range of a full buffer of any type.
func (f *flatGroup) own(full []byte) []byte {
	n := len(full) / f.Ranks.Shards
	lo := f.Ranks.Place * n
	return full[lo : lo+n : lo+n]
}

// buffer returns b as a communication buffer labelled with the group's name.
func (f *flatGroup) buffer(b []byte, t comm.DType) comm.Buffer {
	switch t {
	case comm.Float64:
		return comm.Of(elements[float64](b)).Named(f.Name)
	case comm.BFloat16:
		return comm.Of(elements[comm.BF16](b)).Named(f.Name)
	case comm.Float16:
		return comm.Of(elements[comm.F16](b)).Named(f.Name)
	default:
		return comm.Of(elements[float32](b)).Named(f.Name)
	}
}

// narrow rounds c times the float32 elements of src to the 16-bit type t.
func (f *flatGroup) narrow(dst, src []byte, t comm.DType, c float32) {
	if t == comm.BFloat16 {
		half.NarrowScaled(elements[comm.BF16](dst), elements[float32](src), c)
	} else {
		half.NarrowScaled(elements[comm.F16](dst), elements[float32](src), c)
	}
}

// widen sets dst to the values of src, of the 16-bit type t.
func widen(dst []float32, src []byte, t comm.DType) {
	if t == comm.BFloat16 {
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
