package gpu

import (
	"math"
	"unsafe"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
	"github.com/gofsdp/gofsdp/optim"
)

// MaxAbs implements engine.Device.
func (d *Device) MaxAbs(vs []optim.Vec) ([]float64, error) {
	list := make([]float64, len(vs))
	err := d.measure(largestKernel, vs, func(int) piece { return piece{} }, func(i int, words [4]int64) {
		list[i] = math.Float64frombits(uint64(words[0]))
	})
	return list, err
}

// Squares implements engine.Device.
func (d *Device) Squares(vs []optim.Vec, bounds []float64) ([][4]float64, error) {
	list := make([][4]float64, len(vs))
	err := d.measure(squaresKernel, vs, func(i int) piece {
		s := vec.NewSquares(bounds[i])
		return piece{c: [9]float64{s.Scale()}}
	}, func(i int, words [4]int64) {
		if s := vec.NewSquares(bounds[i]); s.Scale() != 0 {
			s.Add(words)
			list[i] = s.Words()
		}
	})
	return list, err
}

// measure runs a kernel on vectors, each with the numbers of a piece, and passes each result to
// result. It waits once for every maxPieces vectors.
func (d *Device) measure(k kernel, vs []optim.Vec, numbers func(i int) piece, result func(i int, words [4]int64)) error {
	d.vectors.Lock()
	defer d.vectors.Unlock()
	for first := 0; first < len(vs); first += maxPieces {
		part := vs[first:min(first+maxPieces, len(vs))]
		words, err := d.answer(k, part, func(i int) piece { return numbers(first + i) })
		if err != nil {
			return err
		}
		for i := range part {
			result(first+i, words[i])
		}
	}
	return d.err()
}

// answer runs a kernel on vectors, and returns the result for each.
func (d *Device) answer(k kernel, vs []optim.Vec, numbers func(i int) piece) ([][4]int64, error) {
	if err := d.flush(); err != nil {
		return nil, err
	}
	u := &d.updates
	u.answered = 0
	if err := d.work.Set(u.answers(), 0, len(vs)*resultBytes); err != nil {
		return nil, d.fail(err)
	}
	for i, v := range vs {
		p := numbers(i)
		p.n = uint64(v.Len())
		if err := d.add(k, p, v.(vector)); err != nil {
			return nil, err
		}
	}
	if err := d.flush(); err != nil {
		return nil, err
	}
	if err := d.work.CopyToHost(u.results, 0, u.answers(), len(vs)*resultBytes); err != nil {
		return nil, d.fail(err)
	}
	if err := d.wait(d.work); err != nil {
		return nil, err
	}
	return unsafe.Slice((*[4]int64)(unsafe.Pointer(&u.results.Bytes()[0])), len(vs)), nil
}

// Scale implements engine.Device.
func (d *Device) Scale(vs []optim.Vec, c float64) error {
	for _, v := range vs {
		if err := v.(vector).scale(c); err != nil {
			return err
		}
	}
	return d.launchUpdates()
}

// scale multiplies v by c, or defers that.
func (v vector) scale(c float64) error {
	if !v.whole() {
		return v.update(scaleKernel, piece{c: [9]float64{c}})
	}
	v.d.vectors.Lock()
	defer v.d.vectors.Unlock()
	if err := v.d.apply(v.b); err != nil {
		return err
	}
	v.d.postpone(v.b, scaled, c)
	return v.d.err()
}
