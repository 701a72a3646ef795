package engine

import (
	"context"
	"sync"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/optim"
)

// A full buffer of a group has the elements of all ranks in the type in which calls read or write
// them. Data that travels in fewer bits uses the same buffer, without separate memory. Parameters
// arrive at its end and are widened from its start, which never overtakes the unread data.
// Gradients are narrowed into its beginning, unless backward has written them in the type in which
// they travel: then the buffer has no more bytes than they have.

// startGather issues the all-gather of the parameters into full.
func (f *flatGroup) startGather(full []byte) comm.Work {
	g, low := f.mesh.Shard, f.arriving(full)
	if f.Gather == f.Store {
		return g.AllGather(f.buffer(low, f.Gather), f.buffer(f.value.Data, f.Gather))
	}
	own := f.ownRange(low)
	f.narrow(own, f.value.Data, f.Gather, 1)
	return g.AllGather(f.buffer(low, f.Gather), f.buffer(own, f.Gather))
}

// keepSecond copies this rank's piece of the second copy from the arrived parameters in full.
func (f *flatGroup) keepSecond(second, full []byte) {
	copy(second, f.arriving(full)[f.Ranks.Place%f.Ranks.Second*len(second):])
}

// startAgain issues the all-gather of the second copy, of which this rank has a piece, into full.
func (f *flatGroup) startAgain(full, second []byte) comm.Work {
	return f.mesh.Second.AllGather(f.buffer(f.arriving(full), f.Gather), f.buffer(second, f.Gather))
}

// finishGather converts the arrived data to the parameters.
func (f *flatGroup) finishGather(full []byte) {
	switch low := f.arriving(full); {
	case f.Gather == f.Read:
	case f.Read == comm.Float32:
		widen(elements[float32](full), low, f.Gather)
	default: // of blocks to bfloat16
		room := rooms.Get().(*[16 * vec.Block8]float32)
		defer rooms.Put(room)
		for to := elements[comm.BF16](full); len(to) > 0; {
			n := min(len(to), len(room))
			bytes := n / vec.Block8 * vec.Bytes8
			vec.Decode8(room[:n], low[:bytes])
			half.Narrow(to[:n], room[:n])
			to, low = to[n:], low[bytes:]
		}
	}
}

// rooms has memory for numbers on their way from one type to another.
var rooms = sync.Pool{New: func() any { return new([16 * vec.Block8]float32) }}

// arriving returns the part of a full buffer of parameters that travels.
func (f *flatGroup) arriving(full []byte) []byte { return full[len(full)-f.Wire(f.Gather):] }

// startReduce issues the sum of the gradients in full over the ranks that share the parameters; if
// every rank has all of them, over the replicas. Gradients that travel in 16 bits are multiplied by
// c first.
func (f *flatGroup) startReduce(full []byte, c float32) comm.Work {
	grads := f.traveling(full)
	switch {
	case f.Reduce == comm.Uint8 && f.mesh.Shard.Size() > 1:
		return f.startBlocks(full)
	case f.Reduce == comm.Uint8:
		f.roundToBlocks(full)
	case len(full) > len(grads):
		f.narrow(grads, full, f.Reduce, c)
	}
	switch {
	case f.mesh.Shard.Size() > 1:
		return f.mesh.Shard.ReduceScatter(f.buffer(f.ownRange(grads), f.Reduce), f.buffer(grads, f.Reduce), comm.Sum)
	case f.mesh.Replica != nil:
		return f.mesh.Replica.AllReduce(f.buffer(grads, f.Sum()), comm.Sum)
	default:
		return nil
	}
}

// Gradients that travel as blocks are at the beginning of the buffer when they are sent, and the
// gradients of all ranks for this one arrive at its end. The sum replaces the sent ones.

// blocks is the Work of this exchange.
type blocks struct {
	comm.Work
	f    *flatGroup
	full []byte
}

// startBlocks sends every rank its part of the gradients in full, and of the rounding errors of
// earlier ones.
func (f *flatGroup) startBlocks(full []byte) comm.Work {
	n := f.Wire(comm.Uint8)
	vec.EncodeError8(full[:n], elements[float32](full), f.lost.Data)
	w := f.mesh.Shard.AllToAll(f.buffer(full[len(full)-n:], comm.Uint8), f.buffer(full[:n], comm.Uint8))
	return blocks{w, f, full}
}

// Wait implements comm.Work. When it returns, the sum, in the order of package comm, is complete.
func (b blocks) Wait(ctx context.Context) error {
	if err := b.Work.Wait(ctx); err != nil {
		return err
	}
	f := b.f
	vec.DecodeSum8(elements[float32](f.sum(b.full)), b.full[len(b.full)-f.Wire(comm.Uint8):], f.Ranks.Shards)
	return nil
}

// roundToBlocks rounds whole gradients as if they travelled.
func (f *flatGroup) roundToBlocks(full []byte) {
	x, n := elements[float32](full), f.Wire(comm.Uint8)
	vec.EncodeError8(full[:n], x, f.lost.Data)
	end := full[len(full)-n:]
	copy(end, full[:n])
	vec.Decode8(x, end)
}

// startSync issues the sum of this rank's range of the gradients over the replicas.
func (f *flatGroup) startSync(full []byte) comm.Work {
	return f.mesh.Replica.AllReduce(f.buffer(f.sum(full), f.Sum()), comm.Sum)
}

// finishReduce adds c times this rank's range of the sums in full to the gradient shard.
func (f *flatGroup) finishReduce(full []byte, c float64) {
	own := f.sum(full)
	f.round(own, 1)
	room := rooms.Get().(*[16 * vec.Block8]float32)
	defer rooms.Put(room)
	// sums returns elements of the sums, in the type of the shard, or as float32.
	sums := func(at, end int) optim.Host {
		switch {
		case f.Sum() == comm.Float64:
			return optim.Host{F64: elements[float64](own)[at:end]}
		case f.Sum() == comm.Float32:
			return optim.Host{F32: elements[float32](own)[at:end]}
		}
		widen(room[:end-at], own[2*at:2*end], f.Sum())
		return optim.Host{F32: room[:end-at]}
	}
	n := f.Flat.ShardLen()
	if f.grads == nil {
		f.addTo16(elements[comm.BF16](f.grad.Data), sums, float32(c))
		return
	}
	d := f.grads.drain()
	defer d.end()
	for at := 0; at < n; at += len(room) {
		d.add(at, sums(at, min(at+len(room), n)), c)
	}
}

// addTo16 adds c times the sums to a shard in bfloat16, rounded to the nearest.
func (f *flatGroup) addTo16(shard []comm.BF16, sums func(at, end int) optim.Host, c float32) {
	room := rooms.Get().(*[16 * vec.Block8]float32)
	defer rooms.Put(room)
	for at := 0; at < len(shard); at += len(room) {
		part := shard[at:min(at+len(room), len(shard))]
		wide := room[:len(part)]
		half.Widen(wide, part)
		vec.AddScaled(wide, sums(at, at+len(part)).F32, c)
		half.Narrow(part, wide)
	}
}

// takeSums makes whole gradients, which no other rank has a part in, the shard, if the shard is
// clear and they could be its memory. The block gets the former memory of the shard.
func (f *flatGroup) takeSums(a *arena.Arena, full *arena.Block) bool {
	return f.grads != nil && f.Reduce == f.Compute && f.Round == f.Reduce && f.grads.replace(func() (optim.Host, bool) {
		ok := a.Swap(f.grad, full)
		return vector(f.Compute, f.grad.Data).(optim.Host), ok
	})
}

// traveling returns the part of a full gradient buffer that travels.
func (f *flatGroup) traveling(full []byte) []byte { return full[:f.Wire(f.Sum())] }

// sum returns the part of a full gradient buffer that has this rank's range of the sums.
func (f *flatGroup) sum(full []byte) []byte {
	if f.Reduce == comm.Uint8 && f.Ranks.Shards > 1 {
		return full[:f.Flat.ShardLen()*f.Compute.Size()]
	}
	return f.ownRange(f.traveling(full))
}

// ownRange returns this rank's range of a full buffer of any type.
func (f *flatGroup) ownRange(full []byte) []byte {
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
	case comm.Uint8:
		return comm.Of(b).Named(f.Name)
	default:
		return comm.Of(elements[float32](b)).Named(f.Name)
	}
}

// narrow rounds c times the float32 elements of src to type t, which has fewer bits. For blocks c
// is 1.
func (f *flatGroup) narrow(dst, src []byte, t comm.DType, c float32) {
	switch t {
	case comm.BFloat16:
		half.NarrowScaled(elements[comm.BF16](dst), elements[float32](src), c)
	case comm.Float16:
		half.NarrowScaled(elements[comm.F16](dst), elements[float32](src), c)
	default:
		vec.Encode8(dst, elements[float32](src))
	}
}

// widen sets dst to the values of src, of type t, which has fewer bits.
func widen(dst []float32, src []byte, t comm.DType) {
	switch t {
	case comm.BFloat16:
		half.Widen(dst, elements[comm.BF16](src))
	case comm.Float16:
		half.Widen(dst, elements[comm.F16](src))
	default:
		vec.Decode8(dst, src)
	}
}

// elements returns the elements of type T in b.
func elements[T comm.Elem](b []byte) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(z)))
}
