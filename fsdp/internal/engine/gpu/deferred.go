package gpu

import "slices"

// Clipping and clearing gradients change every element by one factor. These changes of a whole
// gradient shard are deferred, because the next operation on the shard can usually make them in
// passing:
//
//	after    the next operation                      what happens
//	Scale    an update of parameters                 it multiplies the gradients that it reads, not the memory
//	Scale    Zero                                    the factor is dropped
//	Zero     a drain of reduced gradients            it stores, and neither reads nor adds; on one rank calls
//	                                                 may write into the shard, and nothing is drained
//	either   any other, or the beginning of a pass   the memory is changed first, for Zero not by a pass
//
// Bits are the same as if the change were made at once: an update rounds the product before it uses
// it, and a drain adds to 0. The lock of vectors guards all of this.

// A change is a deferred change of a block.
type change uint8

const (
	unchanged change = iota
	scaled           // by block.factor
	zeroed
)

// whole reports whether v is a gradient shard as a whole.
func (v vector) whole() bool { return v.b.gradient > 0 && v.from == 0 && v.to*v.size == v.b.Len() }

// postpone defers a change of a block that has none.
func (d *Device) postpone(b *block, what change, factor float64) {
	b.change, b.factor = what, factor
	d.deferred = append(d.deferred, b)
}

// taken returns the deferred change of a block, which is no longer deferred.
func (d *Device) taken(b *block) (what change, factor float64) {
	what, factor = b.change, b.factor
	if what != unchanged {
		b.change = unchanged
		d.deferred = slices.DeleteFunc(d.deferred, func(o *block) bool { return o == b })
	}
	return what, factor
}

// apply makes the deferred change of a block.
func (d *Device) apply(b *block) error {
	what, factor := d.taken(b)
	all := vector{d, b, b.gradient, 0, 0}
	if what != unchanged {
		all.to = b.Len() / b.gradient
	}
	switch p := (piece{n: uint64(all.to), c: [9]float64{factor}}); {
	case what == scaled:
		return d.add(scaleKernel, p, all)
	case what == zeroed && b.pinned != nil:
		return d.add(fillKernel, p, all)
	case what == zeroed:
		if err := d.flush(); err != nil {
			return err
		}
		return d.fail(d.work.Set(b.Addr(), 0, b.Len()))
	}
	return nil
}

// applyScales makes the deferred changes that a drain cannot make.
func (d *Device) applyScales() error {
	for _, b := range slices.Clone(d.deferred) {
		if b.change == scaled {
			if err := d.apply(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// launchAll makes them, and launches the list.
func (d *Device) launchAll() error {
	d.vectors.Lock()
	defer d.vectors.Unlock()
	if err := d.applyScales(); err != nil {
		return err
	}
	return d.flush()
}

// forget drops the deferred change of a block, and reports whether it was to be cleared.
func (d *Device) forget(b *block) (cleared bool) {
	d.vectors.Lock()
	defer d.vectors.Unlock()
	what, _ := d.taken(b)
	return what == zeroed
}
