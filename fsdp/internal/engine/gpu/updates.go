package gpu

import (
	"errors"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/nccl"
)

// A kernel works on a list of pieces: see kernels/optim.cu.
type kernel int

const (
	adamKernel kernel = iota
	adam8Kernel
	adam16Kernel
	sgdKernel
	sgd16Kernel
	scaleKernel
	fillKernel
	largestKernel
	squaresKernel
	averageKernel
	kernels
)

var kernelNames = [kernels]string{"adam", "adam8", "adam16", "sgd", "sgd16", "scale", "fill", "largest", "squares", "average"}

// has reports whether there is the kernel for values of type t. State of fewer bits, and averages
// of values in 16 bits, are not for all types.
func (k kernel) has(t comm.DType) bool {
	switch k {
	case adam8Kernel, averageKernel:
		return t == comm.Float32
	case adam16Kernel, sgd16Kernel:
		return t != comm.Float64
	}
	return true
}

// updates reports whether the kernel updates parameters by gradients, its second vectors.
func (k kernel) updates() bool { return k <= sgd16Kernel }

// writes reports whether the kernel writes its vector i.
func (k kernel) writes(i int) bool { return i != 1 && k != largestKernel && k != squaresKernel }

// A piece is struct piece of kernels/optim.cu.
type piece struct {
	vec    [4]uint64  // addresses
	n      uint64     // elements of each
	block  uint32     // index of the first thread block that works on it
	phase  uint32     // offset of the first element in its block of 8-bit state
	c      [9]float64 // numbers of the update
	key    uint64     // of the rounding of 16-bit state
	offset uint64     // of the first element in the parameter
	scale  float64    // of the gradient of an update
	copied uint64     // address of the copy of updated parameters in bfloat16, or 0
	value  uint64     // key of the rounding of values in 16 bits
}

const (
	pieceBytes  = int(unsafe.Sizeof(piece{}))
	maxPieces   = 1024  // of a list
	span        = 16384 // elements for a block of threads: SPAN of kernels/optim.cu
	resultBytes = 32    // of a piece: four words
)

// Updates are collected into a list, which becomes one launch for any number of parameters. The
// list is launched when it is full, or when another kind of operation is needed.
//
// The pieces of a launch run in no order. So a piece joins a list only if each of its vectors is
// behind all vectors of the same memory in the list. An optimizer visits parameters in memory
// order, so each of its steps is one list.
type updates struct {
	functions [kernels][len(suffixes)]*nccl.Function // by the type of values
	swap      *nccl.Function
	memory    *nccl.Memory // of the device: a list, results, and the code tables of 8-bit state
	stage     staging      // of lists
	results   *nccl.HostMemory

	function *nccl.Function // of the list, or nil if the list is empty
	kernel   kernel
	half     *nccl.HostMemory // memory of the list
	done     *nccl.Event
	n        int    // number of its pieces
	blocks   uint32 // of threads
	number   uint64 // number of the list
	answered int    // results of earlier lists
}

// A mark is the end of the last piece of a list in a block.
type mark struct {
	list uint64
	end  int // elements
}

// newUpdates allocates the memory of updates.
func (d *Device) newUpdates() (err error) {
	u := &d.updates
	for k, name := range kernelNames {
		for _, t := range []comm.DType{comm.Float32, comm.Float64, comm.BFloat16} {
			if !kernel(k).has(t) {
				continue
			}
			if u.functions[k][t], err = d.engine.Function("optim_" + name + suffixes[t]); err != nil {
				return err
			}
		}
	}
	if u.swap, err = d.engine.Function("pass_swap"); err != nil {
		return err
	}
	if u.stage, err = newStaging(d.gpu, 2*maxPieces*pieceBytes); err != nil {
		return err
	}
	if u.results, err = d.gpu.AllocHost(maxPieces * resultBytes); err != nil {
		return err
	}
	codes := vec.Codes8()
	const codeBytes = int(unsafe.Sizeof(codes))
	if u.memory, err = d.gpu.Alloc(maxPieces*(pieceBytes+resultBytes) + codeBytes); err != nil {
		return err
	}
	d.held += u.memory.Len()
	err = d.upload(u.codes(), unsafe.Slice((*byte)(unsafe.Pointer(&codes)), codeBytes))
	return errors.Join(err, d.work.Sync())
}

// free frees the memory of u. The streams are idle.
func (u *updates) free() error {
	err := u.stage.free()
	if u.results != nil {
		err = errors.Join(err, u.results.Free())
	}
	if u.memory != nil {
		err = errors.Join(err, u.memory.Free())
	}
	return err
}

// answers and codes return the addresses of the results and of the code tables for 8-bit state.
func (u *updates) answers() uintptr { return u.memory.Addr() + uintptr(maxPieces*pieceBytes) }
func (u *updates) codes() uintptr   { return u.answers() + uintptr(maxPieces*resultBytes) }

// add appends a piece to the list, after deferred changes that the kernel cannot make. Kernel k
// will work on vs; the first of vs determines the type. The lock is held.
func (d *Device) add(k kernel, p piece, vs ...vector) error {
	p.scale = 1
	for i, v := range vs {
		if i == 1 && k.updates() && v.b.change == scaled {
			p.scale = v.b.factor
		} else if err := d.apply(v.b); err != nil {
			return err
		}
		if i == 0 && k.updates() && v.b.copied != nil {
			p.copied = uint64(v.b.copied.Addr()) + uint64(v.from*copySize)
		} else if k.writes(i) {
			v.b.stale = true
		}
	}
	u := &d.updates
	f := u.functions[k][vs[0].dtype()]
	if u.function != nil && (u.function != f || u.n == maxPieces || !u.fits(vs)) {
		if err := d.flush(); err != nil {
			return err
		}
	}
	if u.function == nil {
		var err error
		if u.half, u.done, err = d.take(&u.stage); err != nil {
			return err
		}
		u.function, u.kernel, u.n, u.blocks = f, k, 0, 0
		u.number++
	}
	for i, v := range vs {
		p.vec[i] = uint64(v.addr())
		if m := &v.b.mark; m.list != u.number || m.end < v.to {
			*m = mark{u.number, v.to}
		}
	}
	p.block = u.blocks
	u.blocks += uint32(p.blocks(k))
	*(*piece)(unsafe.Pointer(&u.half.Bytes()[u.n*pieceBytes])) = p
	u.n++
	return nil
}

// fits reports whether the vectors are behind all vectors of the same memory in the list.
func (u *updates) fits(vs []vector) bool {
	for _, v := range vs {
		if v.b.mark.list == u.number && v.from < v.b.mark.end {
			return false
		}
	}
	return true
}

// blocks returns the number of thread blocks for a piece.
func (p *piece) blocks(k kernel) int {
	if k == adam8Kernel {
		return (int(p.phase) + int(p.n) + vec.Block8 - 1) / vec.Block8
	}
	return (int(p.n) + span - 1) / span
}

// flush launches the list. It returns the reason for which the device ended, if it has ended. The
// lock is held.
func (d *Device) flush() error {
	u := &d.updates
	f := u.function
	u.function = nil
	if err := d.err(); err != nil || f == nil {
		return err
	}
	values := [3]uint64{uint64(u.memory.Addr()), uint64(u.n)}
	args := 2
	switch u.kernel {
	case adam8Kernel:
		values[2], args = uint64(u.codes()), 3
	case largestKernel, squaresKernel:
		values[2], args = uint64(u.answers())+uint64(u.answered*resultBytes), 3
		u.answered += u.n
	}
	err := d.work.CopyToDevice(u.memory.Addr(), u.half, 0, u.n*pieceBytes)
	if err == nil {
		err = u.done.Record(d.work)
	}
	if err == nil && u.blocks > 0 {
		err = f.LaunchArgs(d.work, [3]int{int(u.blocks), 1, 1}, [3]int{256, 1, 1}, 0, values[:args])
	}
	return d.fail(err)
}

// launchUpdates launches the list, if there is one.
func (d *Device) launchUpdates() error {
	d.vectors.Lock()
	defer d.vectors.Unlock()
	return d.flush()
}
