package gpu

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/arena"
	compute "github.com/gofsdp/gofsdp/internal/gpu"
	"github.com/gofsdp/gofsdp/optim"
	optimvec "github.com/gofsdp/gofsdp/optim/vec"
)

// squareBlocks is BLOCKS of kernels/muon.cu.
const squareBlocks = 256

var _ optimvec.MuonVec = vector{}

// number returns the bits of a number of the type of v, as an argument of a kernel.
func (v vector) number(x float64) uint64 {
	if v.Float64() {
		return math.Float64bits(x)
	}
	return uint64(math.Float32bits(float32(x)))
}

// muon launches a kernel with a thread for each element of v. The lock is held.
func (v vector) muon(name string, args ...uint64) error {
	return v.d.fail(v.d.launch(v.d.work, "muon_"+name+suffixes[v.dtype()], v.Len(), args...))
}

// mix sets y to a·v + b·y.
func (v vector) mix(y vector, a, b float64) error {
	return v.muon("mix", uint64(y.addr()), uint64(v.addr()), uint64(v.Len()), v.number(a), v.number(b))
}

// Momentum implements optimvec.MuonVec.
func (v vector) Momentum(g, b optim.Vec, mu float64, nesterov bool) error {
	grad, first := g.(vector), b.(vector)
	return v.do(func() error {
		if err := v.d.apply(grad.b); err != nil {
			return err
		}
		if err := v.d.flush(); err != nil {
			return err
		}
		flag, rest := uint64(0), 1-mu
		if nesterov {
			flag = 1
		}
		if !v.Float64() {
			rest = float64(1 - float32(mu))
		}
		return v.muon("momentum", uint64(v.addr()), uint64(grad.addr()), uint64(first.addr()), uint64(v.Len()), v.number(mu), v.number(rest), flag)
	})
}

// Descend implements optimvec.MuonVec.
func (v vector) Descend(o optim.Vec, decay, rate float64) error {
	return v.do(func() error { return o.(vector).mix(v, -rate, decay) })
}

// Orthogonalize implements optimvec.MuonVec. It works in a slab that no pass uses. The order of
// sums is decided by cuBLASLt and the kernels.
func (v vector) Orthogonalize(rows, cols int, s optimvec.MuonStep) error {
	d, n, side := v.d, rows*cols, min(rows, cols)
	matrix, square := aligned(max(n*v.size, 8*squareBlocks)), aligned(side*side*v.size)
	return v.do(func() error {
		slab, err := d.takeSlab(2*matrix + 2*square)
		if err != nil {
			return err
		}
		defer func() { slab.taken = false }() // later operations in work run after these
		counted, err := d.counts.Alloc(2*matrix+2*square, arena.Work)
		if err != nil {
			return err
		}
		defer d.counts.Free(counted)
		room := &block{memory: slab.Memory}
		part := func(at, n int) vector { return vector{d, room, v.size, at / v.size, at/v.size + n} }
		x, y, a, b := part(0, n), part(matrix, n), part(2*matrix, side*side), part(2*matrix+square, side*side)
		if err := v.copyTo(x); err != nil {
			return err
		}
		if err := x.normalize(y, s.Eps); err != nil {
			return err
		}
		for range s.Steps {
			if err := x.newtonSchulz(y, a, b, rows, cols, &s); err != nil {
				return err
			}
			x, y = y, x
		}
		return x.copyTo(v)
	})
}

// copyTo copies v to another vector. At most one of them is in memory of the host.
func (v vector) copyTo(to vector) error {
	w, n := v.d.work, v.Len()*v.size
	switch {
	case v.b.pinned != nil:
		return v.d.fail(w.CopyToDevice(to.addr(), v.b.pinned, v.from*v.size, n))
	case to.b.pinned != nil:
		return v.d.fail(w.CopyToHost(to.b.pinned, to.from*v.size, v.addr(), n))
	}
	return v.d.fail(w.CopyDevice(to.addr(), v.addr(), n))
}

// normalize divides v by its norm, or by eps if that is larger. Room is for sums.
func (v vector) normalize(room vector, eps float64) error {
	f, err := v.d.engine.Function("muon_squares" + suffixes[v.dtype()])
	if err == nil {
		err = f.LaunchArgs(v.d.work, [3]int{squareBlocks, 1, 1}, [3]int{256, 1, 1}, 0, []uint64{uint64(room.addr()), uint64(v.addr()), uint64(v.Len())})
	}
	if err != nil {
		return v.d.fail(err)
	}
	return v.muon("normalize", uint64(v.addr()), uint64(room.addr()), uint64(v.Len()), math.Float64bits(eps))
}

// newtonSchulz sets y to the next step of the iteration from the matrix v. It uses the squares a
// and b.
func (v vector) newtonSchulz(y, a, b vector, rows, cols int, s *optimvec.MuonStep) error {
	side := min(rows, cols)
	gram := compute.Product{Rows: side, Cols: side, Depth: max(rows, cols), TransA: rows >= cols, TransB: rows < cols}
	last, left, right := compute.Product{Rows: rows, Cols: cols, Depth: cols}, v, b
	if rows < cols {
		last.Depth, left, right = rows, b, v
	}
	if err := v.times(v, a, gram); err != nil {
		return err
	}
	if err := a.times(a, b, compute.Product{Rows: side, Cols: side, Depth: side}); err != nil {
		return err
	}
	if err := a.mix(b, s.B, s.C); err != nil {
		return err
	}
	if err := left.times(right, y, last); err != nil {
		return err
	}
	return v.mix(y, s.A, 1)
}

// times sets d to the product of v and w.
func (v vector) times(w, d vector, p compute.Product) error {
	p.Float64, p.A, p.B, p.D = v.Float64(), v.addr(), w.addr(), d.addr()
	return v.d.fail(v.d.engine.Multiply(v.d.work, p))
}
