package gpu

import (
	"fmt"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
	optimvec "github.com/gofsdp/gofsdp/optim/vec"
)

// A vector implements optimvec.Adam8Vec and optimvec.BFloat16Vec with elements [from, to) of a
// block. Equal vectors are the same elements. Elements of 2 bytes are bfloat16: see
// optimvec.Is16.
type vector struct {
	d        *Device
	b        *block
	size     int // of an element in bytes
	from, to int
}

// vector returns the elements of a block, or nil if there is none.
func (d *Device) vector(b *block, size int) optim.Vec {
	if b == nil {
		return nil
	}
	return vector{d, b, size, 0, b.Len() / size}
}

// Len implements optim.Vec.
func (v vector) Len() int { return v.to - v.from }

// Float64 implements optim.Vec.
func (v vector) Float64() bool { return v.size == 8 }

// Bits returns the number of bits of an element.
func (v vector) Bits() int { return 8 * v.size }

// dtype returns the type of the elements.
func (v vector) dtype() comm.DType {
	return [...]comm.DType{2: comm.BFloat16, 4: comm.Float32, 8: comm.Float64}[v.size]
}

// addr returns the address of the elements.
func (v vector) addr() uintptr { return v.b.Addr() + uintptr(v.from*v.size) }

// Place implements nccl.Placed.
func (v vector) Place() (addr uintptr, s *nccl.Stream, err error) {
	return v.addr(), v.d.work, v.do(func() error { return nil })
}

// Slice implements optim.Vec.
func (v vector) Slice(from, to int) optim.Vec {
	if from < 0 || to < from || to > v.Len() {
		panic(fmt.Sprintf("gpu: slice [%d:%d] is out of range of %d elements", from, to, v.Len()))
	}
	v.from, v.to = v.from+from, v.from+to
	return v
}

// Zero implements optim.Vec.
func (v vector) Zero() error {
	if v.whole() {
		v.d.vectors.Lock()
		defer v.d.vectors.Unlock()
		v.d.taken(v.b)
		v.d.postpone(v.b, zeroed, 0)
		return v.d.err()
	}
	if v.b.pinned != nil {
		return v.update(fillKernel, piece{})
	}
	return v.do(func() error { return v.d.fail(v.d.work.Set(v.addr(), 0, v.Len()*v.size)) })
}

// Read implements optim.Vec.
func (v vector) Read(to optim.Host) error { return v.move(to, true) }

// Write implements optim.Vec.
func (v vector) Write(from optim.Host) error { return v.move(from, false) }

// move copies the elements to h if read is true, else from h.
func (v vector) move(h optim.Host, read bool) error {
	b, err := v.like(h)
	if err != nil {
		return err
	}
	if v.size == 2 {
		return v.access(!read, func() error { return v.move16(h.F32, read) })
	}
	return v.access(!read, func() error {
		to, from := v.pinned(), b
		switch {
		case to == nil && read:
			return v.d.download(b, v.addr())
		case to == nil:
			return v.d.upload(v.addr(), b)
		case read:
			to, from = from, to
		}
		if err := v.d.wait(v.d.work); err != nil {
			return err
		}
		copy(to, from)
		return nil
	})
}

// move16 copies bfloat16 to x, widened, or from x, rounded to the nearest. All earlier updates are
// launched.
func (v vector) move16(x []float32, read bool) error {
	if v.b.pinned == nil && !read {
		return v.d.send(v.addr(), v.Len()*v.size, func(part []byte, at int) {
			half.Narrow(exec.Data[half.BFloat16](part), x[at/v.size:])
		})
	}
	low := exec.Data[half.BFloat16](v.pinned())
	if v.b.pinned == nil {
		low = vec.Halves(x, 2*len(x))[len(x):] // and then x is widened in place
		if err := v.d.download(exec.Bytes(low), v.addr()); err != nil {
			return err
		}
	} else if err := v.d.wait(v.d.work); err != nil {
		return err
	}
	if read {
		half.Widen(x, low)
	} else {
		half.Narrow(low, x)
	}
	return nil
}

// pinned returns the bytes of v if they are host memory.
func (v vector) pinned() []byte {
	if v.b.pinned == nil {
		return nil
	}
	return v.b.pinned.Bytes()[v.from*v.size : v.to*v.size]
}

// do calls f, which may write v, after all earlier updates, and after the deferred change of the
// memory of v.
func (v vector) do(f func() error) error { return v.access(true, f) }

// access is do. It says whether f may write v.
func (v vector) access(write bool, f func() error) error {
	v.d.vectors.Lock()
	defer v.d.vectors.Unlock()
	v.b.stale = v.b.stale || write
	if err := v.d.apply(v.b); err != nil {
		return err
	}
	if err := v.d.flush(); err != nil {
		return err
	}
	return f()
}

// like returns the bytes of h. It fails unless h has the length and type of v.
func (v vector) like(h optim.Host) ([]byte, error) {
	b, n := exec.Bytes(h.F32), len(h.F32)
	if v.Float64() {
		b, n = exec.Bytes(h.F64), len(h.F64)
	}
	if n != v.Len() || n != h.Len() {
		return nil, fmt.Errorf("gpu: copy between a vector of %d elements of %d bytes and a slice of %d float32 or %d float64: lengths and types must be equal", v.Len(), v.size, len(h.F32), len(h.F64))
	}
	return b, nil
}

// Swap exchanges the elements with the elements of another vector of d. It does not wait.
func (v vector) Swap(other optim.Vec) error {
	o, n := other.(vector), v.Len()*v.size/4 // words
	if n == 0 {
		return v.d.err()
	}
	return v.do(func() error {
		o.b.stale = true
		args := []uint64{uint64(v.addr()), uint64(o.addr()), uint64(n)}
		return v.d.fail(v.d.updates.swap.LaunchArgs(v.d.work, [3]int{(n + 255) / 256, 1, 1}, [3]int{256, 1, 1}, 0, args))
	})
}

// Flush launches the pending updates of all vectors.
func (v vector) Flush() error { return v.d.launchUpdates() }

// update adds an update of v to the list. It does nothing if v has no elements.
func (v vector) update(k kernel, p piece, others ...optim.Vec) error {
	if v.Len() == 0 {
		return v.d.err()
	}
	v.d.vectors.Lock()
	defer v.d.vectors.Unlock()
	all := [4]vector{v}
	for i, o := range others {
		all[1+i] = o.(vector)
	}
	p.n = uint64(v.Len())
	return v.d.add(k, p, all[:1+len(others)]...)
}

// Adam implements optimvec.AdamVec.
func (v vector) Adam(g, first, second optim.Vec, s optimvec.AdamStep) error {
	return v.update(adamKernel, piece{c: adamNumbers(&s), offset: uint64(s.Round.Offset), value: s.Round.Key}, g, first, second)
}

// Adam8 implements optimvec.Adam8Vec.
func (v vector) Adam8(g, first, second optim.Vec, offset int, s optimvec.AdamStep) error {
	return v.update(adam8Kernel, piece{phase: uint32(offset % vec.Block8), c: adamNumbers(&s)}, g, first, second)
}

// Adam16 implements optimvec.BFloat16Vec.
func (v vector) Adam16(g, first, second optim.Vec, r optimvec.Rounding, s optimvec.AdamStep) error {
	return v.update(adam16Kernel, piece{c: adamNumbers(&s), key: r.Key, offset: uint64(r.Offset), value: s.Round.Key}, g, first, second)
}

// adamNumbers returns a step in the form of the kernels and of package vec.
func adamNumbers(s *optimvec.AdamStep) [9]float64 {
	decay, l2 := 1.0, s.WeightDecay
	if s.Decoupled {
		decay, l2 = 1-s.LR*s.WeightDecay, 0
	}
	return [9]float64{
		decay, l2, s.Beta1, 1 - s.Beta1, s.Beta2, 1 - s.Beta2, s.LR / s.BiasCorrection1, 1 / s.BiasCorrection2Sqrt, s.Eps,
	}
}

// SGD implements optimvec.SGDVec.
func (v vector) SGD(g, b optim.Vec, s optimvec.SGDStep) error {
	p := piece{c: sgdNumbers(&s), offset: uint64(s.Round.Offset), value: s.Round.Key}
	switch {
	case g.(vector).size < v.size: // an average follows values
		return v.update(averageKernel, p, g)
	case s.Momentum == 0:
		return v.update(sgdKernel, p, g)
	}
	return v.update(sgdKernel, p, g, b)
}

// SGD16 implements optimvec.BFloat16Vec.
func (v vector) SGD16(g, b optim.Vec, r optimvec.Rounding, s optimvec.SGDStep) error {
	return v.update(sgd16Kernel, piece{c: sgdNumbers(&s), key: r.Key, offset: uint64(r.Offset), value: s.Round.Key}, g, b)
}

// sgdNumbers returns a step in the form of the kernels.
func sgdNumbers(s *optimvec.SGDStep) [9]float64 {
	c := [9]float64{s.LR, s.Momentum, s.WeightDecay}
	if s.Nesterov {
		c[3] = 1
	}
	if s.First {
		c[4] = 1
	}
	return c
}
