package nccl

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// staging runs collectives that have host buffers, through its own memory: two bays, so that the
// host fills and empties one while the stream works on the other.
//
//	host    fill 0 │ fill 1 │ empty 0, fill 0 │ …
//	stream         │ in, NCCL, out of 0       │ in, NCCL, out of 1 …
type staging struct {
	launcher    *launcher
	dev         *Device
	rank, ranks int
	bytes       int // of both bays together; the same on every rank, as all cut a collective alike
	bays        [2]bay
}

// bay holds one piece of a collective.
type bay struct {
	host    *HostMemory
	dev     *Memory
	reached *Event // the end of the piece
	busy    bool   // the stream was given a piece
	piece
}

// piece is the work on some elements of every part of a tensor.
type piece struct {
	in  []span // is copied to the staging memory
	ops []Op   // works there
	out []span // is copied from there
}

// span is a buffer of the caller and its place in the staging memory, in bytes.
type span struct {
	at  int
	buf comm.Buffer
}

// reserve gives both bays n bytes at least.
func (s *staging) reserve(n int) error {
	for i := range s.bays {
		h := &s.bays[i]
		if h.reached == nil {
			e, err := s.dev.NewEvent()
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
		if h.dev, err = s.dev.Alloc(n); err != nil {
			return err
		}
		if h.host, err = s.dev.AllocHost(n); err != nil {
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
	for i := range s.bays {
		errs = append(errs, s.bays[i].shrink())
		if e := s.bays[i].reached; e != nil {
			errs = append(errs, e.Close())
		}
	}
	return errors.Join(errs...)
}

// run runs a collective in pieces. All ranks cut it alike, wherever their buffers are.
func (s *staging) run(ctx context.Context, c *transport.Call) error {
	parts, length := s.extent(c)
	size, half := c.DType().Size(), s.bytes/len(s.bays)
	step := min(length, max(1, half/(parts*size)))
	// At least half, which is enough for all but the widest pieces. Growing frees the memory of a
	// bay first, which waits for the device.
	if err := s.reserve(max(parts*step*size, half)); err != nil {
		return err
	}
	start := time.Now()
	for i, lo := 0, 0; lo < length; i, lo = i+1, lo+step {
		h := &s.bays[i%len(s.bays)]
		if err := s.collect(ctx, start, h); err != nil {
			return err
		}
		start = time.Now() // a piece is progress
		s.cut(c, &h.piece, h.dev.Addr(), lo, min(lo+step, length))
		if err := s.send(ctx, start, h); err != nil {
			return err
		}
	}
	for i := range s.bays {
		if err := s.collect(ctx, start, &s.bays[i]); err != nil {
			return err
		}
	}
	return nil
}

// extent returns the number of parts of the whole tensor, and the number of elements of the
// longest.
func (s *staging) extent(c *transport.Call) (parts, length int) {
	switch c.Kind {
	case transport.KindAllGather:
		return s.ranks, c.Src.Len()
	case transport.KindReduceScatter:
		return s.ranks, c.Dst.Len()
	case transport.KindGather:
		return s.ranks, slices.Max(c.Counts)
	case transport.KindAllToAll: // parts to send, and parts to receive
		return 2 * s.ranks, c.Dst.Len() / s.ranks
	default:
		return 1, c.Dst.Len()
	}
}

// send gives the stream a piece.
func (s *staging) send(ctx context.Context, start time.Time, h *bay) error {
	h.busy = true
	for _, x := range h.in {
		if err := s.put(h, x); err != nil {
			return err
		}
	}
	if err := s.launcher.launch(ctx, start, h.ops); err != nil {
		return err
	}
	for _, x := range h.out {
		if err := s.get(h, x); err != nil {
			return err
		}
	}
	return h.reached.Record(s.launcher.stream)
}

// put copies a span into the staging memory of the device.
func (s *staging) put(h *bay, x span) error {
	n, to := x.bytes(), h.dev.Addr()+uintptr(x.at)
	if from, ok := x.buf.Device(); ok {
		return s.launcher.stream.CopyDevice(to, from, n)
	}
	copy(h.host.Bytes()[x.at:], x.buf.Bytes())
	return s.launcher.stream.CopyToDevice(to, h.host, x.at, n)
}

// get copies a span out of it. Host memory is filled by collect.
func (s *staging) get(h *bay, x span) error {
	n, from := x.bytes(), h.dev.Addr()+uintptr(x.at)
	if to, ok := x.buf.Device(); ok {
		return s.launcher.stream.CopyDevice(to, from, n)
	}
	return s.launcher.stream.CopyToHost(h.host, x.at, from, n)
}

func (x span) bytes() int { return x.buf.Len() * x.buf.DType().Size() }

// collect waits for the piece that h holds, if any, and copies its results to the host's buffers.
func (s *staging) collect(ctx context.Context, start time.Time, h *bay) error {
	if !h.busy {
		return nil
	}
	if err := s.launcher.await(ctx, start, h.reached); err != nil {
		return err
	}
	for _, x := range h.out {
		if _, ok := x.buf.Device(); !ok {
			copy(x.buf.Bytes(), h.host.Bytes()[x.at:])
		}
	}
	h.busy = false
	clear(h.in) // the memory is the caller's
	clear(h.out)
	return nil
}

// cut makes the piece of the elements [lo, hi) of every part.
func (s *staging) cut(c *transport.Call, p *piece, base uintptr, lo, hi int) {
	n, rank := hi-lo, s.rank
	part := n * c.DType().Size() // bytes
	op := opOf(c)
	op.Count, op.Send, op.Recv = n, base, base
	p.in, p.ops, p.out = p.in[:0], p.ops[:0], p.out[:0]
	switch c.Kind {
	case transport.KindAllGather:
		op.Send += uintptr(rank * part)
		p.in = append(p.in, span{rank * part, c.Src.Slice(lo, hi)})
		for r, at := 0, 0; r < s.ranks; r, at = r+1, at+c.Src.Len() {
			p.out = append(p.out, span{r * part, c.Dst.Slice(at+lo, at+hi)})
		}
	case transport.KindReduceScatter:
		op.Recv += uintptr(rank * part)
		for r, at := 0, 0; r < s.ranks; r, at = r+1, at+c.Dst.Len() {
			p.in = append(p.in, span{r * part, c.Src.Slice(at+lo, at+hi)})
		}
		p.out = append(p.out, span{rank * part, c.Dst.Slice(lo, hi)})
	case transport.KindAllReduce:
		p.in = append(p.in, span{0, c.Src.Slice(lo, hi)})
		p.out = append(p.out, span{0, c.Dst.Slice(lo, hi)})
	case transport.KindBroadcast:
		if x := (span{0, c.Src.Slice(lo, hi)}); rank == c.Root {
			p.in = append(p.in, x)
		} else {
			p.out = append(p.out, x)
		}
	case transport.KindGather:
		s.cutGather(c, p, op, lo, hi)
		return
	case transport.KindAllToAll:
		share := c.Dst.Len() / s.ranks
		for r := range s.ranks {
			at := (s.ranks + r) * part // its own comes back from where it was put
			if r == rank {
				at = r * part
			}
			p.in = append(p.in, span{r * part, c.Src.Slice(r*share+lo, r*share+hi)})
			p.out = append(p.out, span{at, c.Dst.Slice(r*share+lo, r*share+hi)})
		}
		op.Recv += uintptr(s.ranks * part)
		p.ops = exchanges(p.ops, op, rank, s.ranks, n)
		return
	}
	p.ops = append(p.ops, op)
}

// cutGather is cut for a gather, where some parts end before others. The root's own part takes the
// same way, without NCCL.
func (s *staging) cutGather(c *transport.Call, p *piece, op Op, lo, hi int) {
	rank, size, base := s.rank, c.DType().Size(), op.Recv
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
