package sharedmem

import (
	"unsafe"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// Small collectives
//
// In a small collective every rank copies its source onto the board and computes its own result
// from there: a rank arrives once, and no rank waits twice. The others wait for the line that its
// number is in, and read it all the time. So the line is written at once, when all its contents are
// known: between two writes it would have to come back from the core of a reader.

// smallTensor is the size in bytes up to which a collective is small.
const smallTensor = 4 << 10

func small(c *transport.Call) bool { return c.Bytes() <= smallTensor }

// small reports whether collective seq, whose part this rank has posted, is small.
func (s *shared) small(seq uint64) bool { return s.board.post(seq, s.Rank()).meta&postSmall != 0 }

// postSmall writes this rank's part of collective seq on the board. Called with mu held.
func (s *shared) postSmall(seq uint64, c *transport.Call, call *transport.Signature) {
	p := s.board.post(seq, s.Rank())
	meta := s.sign(p, call) | postSmall
	src := c.Src.Bytes()
	if s.sends(c) {
		to := unsafe.Slice((*byte)(s.board.inline(seq, s.Rank(), len(src))), len(src))
		lo, hi := 0, 0
		if c.Kind == transport.KindReduceScatter { // no other rank reads this rank's part
			n := len(c.Dst.Bytes())
			lo, hi = s.Rank()*n, (s.Rank()+1)*n
		}
		copy(to[:lo], src)
		copy(to[hi:], src[hi:])
	}
	p.meta = meta
	raceArrive()
	p.seq.Store(seq)
	s.board.ring()
}

// sends reports whether other ranks read this rank's source of c.
func (s *shared) sends(c *transport.Call) bool {
	switch c.Kind {
	case transport.KindBarrier:
		return false
	case transport.KindBroadcast:
		return c.Root == s.Rank()
	case transport.KindGather:
		return c.Root != s.Rank()
	}
	return true
}

// compute computes this rank's result of collective seq, which is small and at which all ranks have
// arrived.
func (s *shared) compute(seq uint64, c *transport.Call) {
	if s.Size() == 1 && c.Dst.Pointer() == c.Src.Pointer() {
		return
	}
	switch c.Kind {
	case transport.KindAllGather, transport.KindSplit:
		for r := range s.Size() {
			transport.Move(transport.Share(c.Dst, r, c.Src.Len()), s.source(seq, r, c, c.Src.Len()))
		}
	case transport.KindAllToAll:
		n := c.Dst.Len() / s.Size()
		for r := range s.Size() {
			transport.Move(transport.Share(c.Dst, r, n), transport.Share(s.source(seq, r, c, c.Src.Len()), s.Rank(), n))
		}
	case transport.KindBroadcast:
		transport.Move(c.Dst, s.source(seq, c.Root, c, c.Dst.Len()))
	case transport.KindGather:
		if s.Rank() == c.Root {
			lo := 0
			for r, n := range c.Counts {
				transport.Move(c.Dst.Part(lo, lo+n), s.source(seq, r, c, n))
				lo += n
			}
		}
	case transport.KindReduceScatter, transport.KindAllReduce:
		s.reducer.Sources = s.reducer.Sources[:0]
		for r := range s.Size() {
			src := s.source(seq, r, c, c.Src.Len())
			if c.Kind == transport.KindReduceScatter {
				src = transport.Share(src, s.Rank(), c.Dst.Len())
			}
			s.reducer.Sources = append(s.reducer.Sources, src)
		}
		s.reducer.Reduce(c.Dst, c.Op)
		clear(s.reducer.Sources)
	}
}

// source returns the source of a rank, of n elements, in collective seq.
func (s *shared) source(seq uint64, rank int, c *transport.Call, n int) transport.Buffer {
	if rank == s.Rank() {
		return c.Src
	}
	return transport.HostMemory(s.board.inline(seq, rank, n*c.Src.DType().Size()), n, c.Src.DType())
}
