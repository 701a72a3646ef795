package comm

import "unsafe"

// Small collectives
//
// Of a small collective every rank copies its source onto the board and computes its own result
// from there: it arrives once, and nobody waits twice. What the others wait for is the line that
// its number is in. Each of them looks there all the time, so the line is written at once, when all
// that goes there is known: between two writes it would have to come back from the core of who
// looks.

// smallTensor is the size in bytes up to which a collective is small.
const smallTensor = 4 << 10

func small(c *Call) bool { return c.Bytes() <= smallTensor }

// small reports whether collective seq, whose part this rank has posted, is small.
func (s *shared) small(seq uint64) bool { return s.board.post(seq, s.rank).meta&postSmall != 0 }

// postSmall writes this rank's part of collective seq on the board. Called with mu held.
func (s *shared) postSmall(seq uint64, c *Call, call *Signature) {
	p := s.board.post(seq, s.rank)
	meta := s.sign(p, call) | postSmall
	if src := c.Src.Bytes(); s.sends(c) {
		to := unsafe.Slice((*byte)(s.board.inline(seq, s.rank, len(src))), len(src))
		lo, hi := 0, 0
		if c.Kind == KindReduceScatter { // nobody else reads this rank's part
			n := len(c.Dst.Bytes())
			lo, hi = s.rank*n, (s.rank+1)*n
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
func (s *shared) sends(c *Call) bool {
	switch c.Kind {
	case KindBarrier:
		return false
	case KindBroadcast:
		return c.Root == s.rank
	case KindGather:
		return c.Root != s.rank
	}
	return true
}

// compute computes this rank's result of collective seq, which is small and at which all ranks have
// arrived.
func (s *shared) compute(seq uint64, c *Call) {
	if s.size == 1 && c.Dst.ptr == c.Src.ptr {
		return
	}
	switch c.Kind {
	case KindAllGather, KindSplit:
		for r := range s.size {
			move(part(c.Dst, r, c.Src.len), s.source(seq, r, c, c.Src.len))
		}
	case KindAllToAll:
		n := c.Dst.len / s.size
		for r := range s.size {
			move(part(c.Dst, r, n), part(s.source(seq, r, c, c.Src.len), s.rank, n))
		}
	case KindBroadcast:
		move(c.Dst, s.source(seq, c.Root, c, c.Dst.len))
	case KindGather:
		if s.rank == c.Root {
			lo := 0
			for r, n := range c.Counts {
				move(c.Dst.slice(lo, lo+n), s.source(seq, r, c, n))
				lo += n
			}
		}
	case KindReduceScatter, KindAllReduce:
		s.reducer.srcs = s.reducer.srcs[:0]
		for r := range s.size {
			src := s.source(seq, r, c, c.Src.len)
			if c.Kind == KindReduceScatter {
				src = part(src, s.rank, c.Dst.len)
			}
			s.reducer.srcs = append(s.reducer.srcs, src)
		}
		s.reducer.reduce(c.Dst, c.Op)
		clear(s.reducer.srcs)
	}
}

// source returns the source of a rank, of n elements, in collective seq.
func (s *shared) source(seq uint64, rank int, c *Call, n int) Buffer {
	if rank == s.rank {
		return c.Src
	}
	return Buffer{ptr: s.board.inline(seq, rank, n*c.Src.dtype.Size()), len: n, dtype: c.Src.dtype}
}
