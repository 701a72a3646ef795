package gpu

import (
	"errors"

	"github.com/gofsdp/gofsdp/nccl"
)

// stagingBytes is the size of the pinned memory through which the host reads and writes vectors.
const stagingBytes = 8 << 20

// A staging is two halves of pinned memory. While a stream copies one, the host fills or empties
// the other.
type staging struct {
	half [2]*nccl.HostMemory
	done [2]*nccl.Event // the stream no longer uses the half
	next int
}

// newStaging returns a staging of n bytes in all.
func newStaging(dev *nccl.Device, n int) (s staging, err error) {
	for i := range s.half {
		if s.half[i], err = dev.AllocHost(n / 2); err != nil {
			return s, err
		}
		if s.done[i], err = dev.NewEvent(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// free frees the memory of s. No stream uses it.
func (s *staging) free() error {
	var errs []error
	for i := range s.half {
		if s.half[i] != nil {
			errs = append(errs, s.half[i].Free())
		}
		if s.done[i] != nil {
			errs = append(errs, s.done[i].Close())
		}
	}
	*s = staging{}
	return errors.Join(errs...)
}

// take returns the next half, which is unused, and the event to record after its next use.
func (d *Device) take(s *staging) (*nccl.HostMemory, *nccl.Event, error) {
	h, done := s.half[s.next], s.done[s.next]
	s.next ^= 1
	return h, done, d.wait(done)
}

// upload copies from to the device, in the order of work. The caller may change from after the
// return.
func (d *Device) upload(to uintptr, from []byte) error {
	return d.send(to, len(from), func(part []byte, at int) { copy(part, from[at:]) })
}

// send copies n bytes to the device, in the order of work. put writes the bytes from at on to part.
func (d *Device) send(to uintptr, n int, put func(part []byte, at int)) error {
	for at := 0; at < n; {
		h, done, err := d.take(&d.stage)
		if err != nil {
			return err
		}
		part := h.Bytes()[:min(h.Len(), n-at)]
		put(part, at)
		if err := errors.Join(d.work.CopyToDevice(to+uintptr(at), h, 0, len(part)), done.Record(d.work)); err != nil {
			return d.fail(err)
		}
		at += len(part)
	}
	return nil
}

// download copies from the device after all earlier operations in work. The copy of one part to the
// staging overlaps with reading the part before.
func (d *Device) download(to []byte, from uintptr) error {
	var last []byte // destination of the half before
	var half *nccl.HostMemory
	var done *nccl.Event
	for len(to) > 0 || last != nil {
		var part []byte
		before, arrived := half, done
		if len(to) > 0 {
			var err error
			if half, done, err = d.take(&d.stage); err != nil {
				return err
			}
			n := min(len(to), half.Len())
			if err := errors.Join(d.work.CopyToHost(half, 0, from, n), done.Record(d.work)); err != nil {
				return d.fail(err)
			}
			part, to, from = to[:n], to[n:], from+uintptr(n)
		}
		if last != nil {
			if err := d.wait(arrived); err != nil {
				return err
			}
			copy(last, before.Bytes())
		}
		last = part
	}
	return nil
}
