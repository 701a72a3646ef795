package fardevice

import (
	"context"
	"slices"

	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/layout"
	"github.com/gofsdp/gofsdp/optim"
	"github.com/gofsdp/gofsdp/optim/vec"
)

// shards implements engine.Shards.
type shards struct {
	d    *Device
	host engine.Shards
}

// Value implements engine.Shards.
func (s *shards) Value(group int) optim.Vec { return s.d.vector(s.host.Value(group)) }

// Grad implements engine.Shards.
func (s *shards) Grad(group int) optim.Vec { return s.d.vector(s.host.Grad(group)) }

// Alloc implements engine.Shards.
func (s *shards) Alloc(group, n int) (v optim.Vec, err error) {
	err = s.d.call(func() (err error) {
		v, err = s.host.Alloc(group, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.d.vector(v), nil
}

// Average implements engine.Shards.
func (s *shards) Average(ctx context.Context, group int) error {
	return s.d.call(func() error { return s.host.Average(ctx, group) })
}

// Whole implements engine.Shards.
func (s *shards) Whole(group int) (whole bool) {
	s.d.always(func() { whole = s.host.Whole(group) })
	return whole
}

// ReduceWhole implements engine.Shards.
func (s *shards) ReduceWhole(ctx context.Context, group int, before float32, after float64) error {
	return s.d.call(func() error { return s.host.ReduceWhole(ctx, group, before, after) })
}

// Turn calls Turn of the host's shards.
func (s *shards) Turn(t engine.Turn, before func(*layout.Group) float32) {
	s.d.do(func() {
		s.host.(interface {
			Turn(engine.Turn, func(*layout.Group) float32)
		}).Turn(t, before)
	})
}

// DropWhole implements engine.Shards.
func (s *shards) DropWhole() { s.d.do(s.host.DropWhole) }

// Forget implements engine.Shards.
func (s *shards) Forget() { s.d.do(s.host.Forget) }

// Free implements engine.Shards.
func (s *shards) Free() { s.d.do(s.host.Free) }

// A vector is memory that only the queue of the device reaches.
type vector struct {
	d    *Device
	host optim.Vec // of the host
}

// A hostVec is a value of a parameter on the Host: an optim.Host, or a vec.Host16.
type hostVec interface {
	vec.BFloat16Vec
	optim.Vec
}

// vector returns v, which is nil or of the Host, as a vector of the device.
func (d *Device) vector(v optim.Vec) optim.Vec {
	if v == nil {
		return nil
	}
	return &vector{d, v}
}

// hostVecs returns the vectors of the host behind vs.
func hostVecs(vs []optim.Vec) []optim.Vec {
	list := make([]optim.Vec, len(vs))
	for i, v := range vs {
		list[i] = v.(*vector).host
	}
	return list
}

// Len implements optim.Vec.
func (v *vector) Len() int { return v.host.Len() }

// Float64 implements optim.Vec.
func (v *vector) Float64() bool { return v.host.Float64() }

// Bits returns the number of bits of an element.
func (v *vector) Bits() int {
	switch {
	case vec.Is16(v.host):
		return 16
	case v.Float64():
		return 64
	}
	return 32
}

// Slice implements optim.Vec.
func (v *vector) Slice(from, to int) optim.Vec { return v.d.vector(v.host.Slice(from, to)) }

// Zero implements optim.Vec.
func (v *vector) Zero() error { return v.d.issue(v.host.Zero) }

// Read implements optim.Vec.
func (v *vector) Read(to optim.Host) error {
	return v.d.call(func() error { return v.host.Read(to) })
}

// Write implements optim.Vec.
func (v *vector) Write(from optim.Host) error {
	if v.Len() != from.Len() || from.Len() > 0 && from.Float64() != v.Float64() {
		return errOther
	}
	from = optim.Host{F32: slices.Clone(from.F32), F64: slices.Clone(from.F64)}
	return v.d.issue(func() error { return v.host.Write(from) })
}

// Adam implements vec.AdamVec.
func (v *vector) Adam(grad, first, second optim.Vec, s vec.AdamStep) error {
	with := hostVecs([]optim.Vec{grad, first, second})
	return v.d.issue(func() error { return v.host.(hostVec).Adam(with[0], with[1], with[2], s) })
}

// Adam8 implements vec.Adam8Vec.
func (v *vector) Adam8(grad, first, second optim.Vec, offset int, s vec.AdamStep) error {
	with := hostVecs([]optim.Vec{grad, first, second})
	return v.d.issue(func() error { return v.host.(optim.Host).Adam8(with[0], with[1], with[2], offset, s) })
}

// SGD implements vec.SGDVec.
func (v *vector) SGD(grad, momentum optim.Vec, s vec.SGDStep) error {
	g, m := grad.(*vector).host, optim.Vec(nil)
	if momentum != nil {
		m = momentum.(*vector).host
	}
	return v.d.issue(func() error { return v.host.(hostVec).SGD(g, m, s) })
}

// Adam16 implements vec.BFloat16Vec.
func (v *vector) Adam16(grad, first, second optim.Vec, r vec.Rounding, s vec.AdamStep) error {
	with := hostVecs([]optim.Vec{grad, first, second})
	return v.d.issue(func() error { return v.host.(hostVec).Adam16(with[0], with[1], with[2], r, s) })
}

// SGD16 implements vec.BFloat16Vec.
func (v *vector) SGD16(grad, momentum optim.Vec, r vec.Rounding, s vec.SGDStep) error {
	with := hostVecs([]optim.Vec{grad, momentum})
	return v.d.issue(func() error { return v.host.(hostVec).SGD16(with[0], with[1], r, s) })
}
