package nccl

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
)

// staging is the memory through which host buffers travel: two bays, so that the host
// fills and empties one while the stream works on the other.
//
//	host    fill 0 │ fill 1 │ empty 0, fill 0 │ …
//	stream         │ in, NCCL, out of 0       │ in, NCCL, out of 1 …
type staging [2]bay

// bay holds one piece of a collective.
type bay struct {
	host    *HostMemory
	dev     *Memory
	reached *Event // the end of the piece
	busy    bool   // the stream was given a piece
	piece
}

// piece is what happens to some elements of every part of a tensor.
type piece struct {
	in  []span // is copied to the staging memory
	ops []Op   // works there
	out []span // is copied from there
}

// span is a buffer of the caller's and its place in the staging memory, in bytes.
type span struct {
	at  int
	buf comm.Buffer
}

// reserve gives both bays n bytes at least.
func (s *staging) reserve(dev *Device, n int) error {
	for i := range s {
		h := &s[i]
		if h.reached == nil {
			e, err := dev.NewEvent()
			if err != nil {
				return err
			}
			h.reached = e
		}
		if h.host != nil && h.host.Len() >= n && h.dev != nil {
			continue
		}
		if err := h.shrink(); err != nil {
			return err
		}
		var err error
		if h.dev, err = dev.Alloc(n); err != nil {
			return err
		}
		if h.host, err = dev.AllocHost(n); err != nil {
			return err
		}
	}
	return nil
}

// shrink frees the memory of h.
func (h *bay) shrink() error {
	var errs []error
	if h.host != nil {
		errs = append(errs, h.host.Free())
	}
	if h.dev != nil {
		errs = append(errs, h.dev.Free())
	}
	h.host, h.dev = nil, nil
	return errors.Join(errs...)
}

func (s *staging) free() error {
	var errs []error
	for i := range s {
		errs = append(errs, s[i].shrink())
		if s[i].reached != nil {
			errs = append(errs, s[i].reached.Close())
		}
	}
	return errors.Join(errs...)
}

// stage runs a collective in pieces, through the staging memory. All ranks cut it alike,
// wherever their buffers are.
func (b *backend) stage(ctx context.Context, c *comm.Call) error {
	parts, length := b.extent(c)
	size := c.DType().Size()
	step := min(length, max(1, b.cfg.Staging/len(b.staging)/(parts*size)))
	room := max(parts*step*size, b.cfg.Staging/len(b.staging)) // all of it at once: to free memory waits for the device
	if err := b.staging.reserve(b.dev, room); err != nil {
		return err
	}
	start := time.Now()
	for i, lo := 0, 0; lo < length; i, lo = i+1, lo+step {
		h := &b.staging[i%len(b.staging)]
		if err := b.collect(ctx, start, h); err != nil {
			return err
		}
		start = time.Now() // a piece is progress
		b.cut(c, &h.piece, h.dev.Addr(), lo, min(lo+step, length))
		if err := b.send(ctx, start, h); err != nil {
			return err
		}
	}
	for i := range b.staging {
		if err := b.collect(ctx, start, &b.staging[i]); err != nil {
			return err
		}
	}
	return nil
}

// extent returns of how many parts the whole tensor consists, and how many elements the
// longest of them has.
func (b *backend) extent(c *comm.Call) (parts, length int) {
	switch c.Kind {
	case comm.KindAllGather:
		return b.meta.Size(), c.Src.Len()
	case comm.KindReduceScatter:
		return b.meta.Size(), c.Dst.Len()
	case comm.KindGather:
		return b.meta.Size(), slices.Max(c.Counts)
	default:
		return 1, c.Dst.Len()
	}
}

// send gives the stream a piece.
func (b *backend) send(ctx context.Context, start time.Time, h *bay) error {
	h.busy = true
	for _, s := range h.in {
		if err := b.put(h, s); err != nil {
			return err
		}
	}
	if err := b.launch(ctx, start, h.ops); err != nil {
		return err
	}
	for _, s := range h.out {
		if err := b.get(h, s); err != nil {
			return err
		}
	}
	return h.reached.Record(b.stream)
}

// put lets a span go into the staging memory of the device.
func (b *backend) put(h *bay, s span) error {
	n, to := s.bytes(), h.dev.Addr()+uintptr(s.at)
	if from, ok := s.buf.Device(); ok {
		return b.stream.CopyDevice(to, from, n)
	}
	copy(h.host.Bytes()[s.at:], s.buf.Bytes())
	return b.stream.CopyToDevice(to, h.host, s.at, n)
}

// get lets a span come out of it. Host memory is filled by collect.
func (b *backend) get(h *bay, s span) error {
	n, from := s.bytes(), h.dev.Addr()+uintptr(s.at)
	if to, ok := s.buf.Device(); ok {
		return b.stream.CopyDevice(to, from, n)
	}
	return b.stream.CopyToHost(h.host, s.at, from, n)
}

func (s span) bytes() int { return s.buf.Len() * s.buf.DType().Size() }

// collect waits for the piece that h holds, if any, and copies what came of it to the
// host's buffers.
func (b *backend) collect(ctx context.Context, start time.Time, h *bay) error {
	if !h.busy {
		return nil
	}
	if err := b.await(ctx, start, h.reached); err != nil {
		return err
	}
	for _, s := range h.out {
		if _, ok := s.buf.Device(); !ok {
			copy(s.buf.Bytes(), h.host.Bytes()[s.at:])
		}
	}
	h.busy = false
	clear(h.in) // the memory is the caller's
	clear(h.out)
	return nil
}

// cut makes the piece of the elements [lo, hi) of every part.
func (b *backend) cut(c *comm.Call, p *piece, base uintptr, lo, hi int) {
	n, rank, ranks := hi-lo, b.meta.Rank(), b.meta.Size()
	part := n * c.DType().Size() // bytes
	op := Op{Type: types[c.DType()], Reduce: operators[c.Op], Peer: c.Root, Count: n, Send: base, Recv: base}
	p.in, p.ops, p.out = p.in[:0], p.ops[:0], p.out[:0]
	switch c.Kind {
	case comm.KindAllGather:
		op.Kind = AllGather
		op.Send += uintptr(rank * part)
		p.in = append(p.in, span{rank * part, c.Src.Slice(lo, hi)})
		for r, at := 0, 0; r < ranks; r, at = r+1, at+c.Src.Len() {
			p.out = append(p.out, span{r * part, c.Dst.Slice(at+lo, at+hi)})
		}
	case comm.KindReduceScatter:
		op.Kind = ReduceScatter
		op.Recv += uintptr(rank * part)
		for r, at := 0, 0; r < ranks; r, at = r+1, at+c.Dst.Len() {
			p.in = append(p.in, span{r * part, c.Src.Slice(at+lo, at+hi)})
		}
		p.out = append(p.out, span{rank * part, c.Dst.Slice(lo, hi)})
	case comm.KindAllReduce:
		op.Kind = AllReduce
		p.in = append(p.in, span{0, c.Src.Slice(lo, hi)})
		p.out = append(p.out, span{0, c.Dst.Slice(lo, hi)})
	case comm.KindBroadcast:
		op.Kind = Broadcast
		if s := (span{0, c.Src.Slice(lo, hi)}); rank == c.Root {
			p.in = append(p.in, s)
		} else {
			p.out = append(p.out, s)
		}
	case comm.KindGather:
		b.cutGather(c, p, op, lo, hi)
		return
	}
	p.ops = append(p.ops, op)
}

// cutGather is cut for a gather, where some parts end before others. That of the root
// goes the same way, but for NCCL.
func (b *backend) cutGather(c *comm.Call, p *piece, op Op, lo, hi int) {
	rank, size, base := b.meta.Rank(), c.DType().Size(), op.Recv
	first := 0 // of the part, in dst
	for r, count := range c.Counts {
		from, to := min(lo, count), min(hi, count)
		op.Count = to - from
		at := r * (hi - lo) * size
		if op.Count > 0 && r == rank {
			p.in = append(p.in, span{at, c.Src.Slice(from, to)})
			if rank != c.Root {
				op.Kind, op.Send = Send, base+uintptr(at)
				p.ops = append(p.ops, op)
			}
		}
		if op.Count > 0 && rank == c.Root {
			p.out = append(p.out, span{at, c.Dst.Slice(first+from, first+to)})
			if r != rank {
				op.Kind, op.Peer, op.Recv = Recv, r, base+uintptr(at)
				p.ops = append(p.ops, op)
			}
		}
		first += count
	}
}
