package comm

import (
	"context"
	"fmt"
	"unsafe"
)

// start implements transport.
func (s *shared) start(c Call) Work {
	seq, err := s.issue(c)
	if err != nil {
		return failed{err}
	}
	return s.tickets.ticket(s, seq)
}

// perform implements transport.
func (s *shared) perform(ctx context.Context, c Call) (uint64, error) {
	seq, err := s.issue(c)
	if err == nil {
		err = s.await(ctx, seq)
	}
	return seq, err
}

// issue records this rank's next collective, publishes it if the board has room,
// and returns its number.
func (s *shared) issue(c Call) (uint64, error) {
	trouble := c.check(s.rank, s.size)
	if trouble != nil && !s.isClosed() {
		err := s.blame(trouble)
		s.fail(err)
		return 0, err
	}
	s.mu.Lock()
	seq, err := s.enqueue(&c)
	if err == nil {
		trouble = s.publish()
	}
	s.mu.Unlock()
	if trouble != nil && err == nil {
		s.fail(s.blame(trouble))
	}
	return seq, err
}

// enqueue makes c the next task. Called with mu held.
func (s *shared) enqueue(c *Call) (uint64, error) {
	if s.closed {
		return 0, s.errClosed()
	}
	if err := s.failure(); err != nil {
		return 0, err
	}
	s.issued++
	if s.issued-s.reclaimed > uint64(len(s.tasks)) {
		s.makeRoom()
	}
	*s.task(s.issued) = task{call: *c, small: small(c)}
	s.rec.issue(s.issued, c)
	s.watch.issued(&s.face, s.issued, c)
	return s.issued, nil
}

func (s *shared) task(seq uint64) *task { return &s.tasks[seq%uint64(len(s.tasks))] }

// makeRoom makes room for one more task. Called with mu held.
func (s *shared) makeRoom() {
	if s.reclaim(); s.issued-s.reclaimed <= uint64(len(s.tasks)) {
		return
	}
	tasks := make([]task, 2*len(s.tasks))
	for q := s.reclaimed + 1; q < s.issued; q++ {
		tasks[q%uint64(len(tasks))] = *s.task(q)
	}
	s.tasks = tasks
}

// reclaim frees the copies that no rank reads any more. Called with mu held.
func (s *shared) reclaim() {
	for settled := min(s.board.settled(), s.done.Load()); s.reclaimed < settled; {
		s.reclaimed++
		s.drop(s.task(s.reclaimed))
	}
}

// drop frees the copies of a task.
func (s *shared) drop(t *task) {
	for _, b := range [][]byte{t.staged, t.moved} {
		if b != nil {
			_ = s.domain.own.Free(b) // fails only if a user has freed what is not his
		}
	}
	*t = task{}
}

// publish posts what has been issued, as far as the board has room, and arrives
// there. An error is one that this rank has to fail with. Called with mu held.
func (s *shared) publish() error {
	for s.published < s.issued && s.failure() == nil && !s.detached {
		next := s.published + 1
		if next > s.reclaimed+boardSlots {
			if s.reclaim(); next > s.reclaimed+boardSlots {
				return nil // for now: the other ranks have to come so far
			}
		}
		if err := s.post(next, s.task(next)); err != nil {
			return fmt.Errorf("%s: %w", s.task(next).call.numbered(next), err)
		}
		raceArrive()
		s.board.post(next, s.rank).seq.Store(next)
		if s.task(next).small {
			s.board.ring()
		} else {
			s.board.arrive(next)
		}
		s.published = next
	}
	return nil
}

// post writes this rank's part of collective seq on the board.
func (s *shared) post(seq uint64, t *task) error {
	c, p := &t.call, s.board.post(seq, s.rank)
	flags, err := s.postSource(seq, p, t)
	if err != nil {
		return err
	}
	p.dst = 0
	if !t.small {
		switch off, ok := s.locate(c.Dst); {
		case c.Kind == KindAllReduce && t.staged != nil:
			p.dst = p.src.Load()
			flags |= postCopy
		case ok:
			p.dst = uint64(off)
		case c.Dst.len > 0:
			flags |= postPrivate
		}
		lane := s.board.lane(seq, s.rank)
		lane.claimed.Store(seq << tagShift)
		lane.finished.Store(seq << tagShift)
	}
	p.sign(c.Signature(), flags)
	return nil
}

// postSource says where the others find the source, and copies it if that has to
// be elsewhere.
func (s *shared) postSource(seq uint64, p *post, t *task) (flags uint64, err error) {
	c := &t.call
	if s.size == 1 || c.Src.len == 0 || s.keepsSource(t) {
		p.src.Store(0)
		t.copied = true
		return 0, nil
	}
	if t.small {
		t.copied = true
		src := c.Src.Bytes()
		copy(unsafe.Slice((*byte)(s.board.inline(seq, s.rank, len(src))), len(src)), src)
		return postInline, nil
	}
	if off, ok := s.locate(c.Src); ok {
		p.src.Store(uint64(off))
		return 0, nil
	}
	s.reclaim() // so that the memory of a copy serves the next one, if all ranks are so far
	off, err := s.copySource(&t.staged, c.Src)
	t.copied = true
	p.src.Store(off)
	return 0, err
}

// keepsSource reports whether no other rank reads the source of c: of a broadcast
// that is not the root, and of a gather the root if nobody else can write there.
func (s *shared) keepsSource(t *task) bool {
	switch c := &t.call; c.Kind {
	case KindBroadcast:
		return c.Root != s.rank
	case KindGather:
		_, ok := s.locate(c.Dst)
		return c.Root == s.rank && (t.small || !ok)
	}
	return false
}

// copySource copies src into new memory of this rank's segment.
func (s *shared) copySource(to *[]byte, src Buffer) (off uint64, err error) {
	from := src.Bytes()
	b, err := s.domain.own.AllocDirty(len(from))
	if err != nil {
		return 0, fmt.Errorf("copying %v to where the other ranks reach it: %w", src, err)
	}
	copy(b, from)
	*to = b
	at, _ := s.domain.own.Offset(b)
	return uint64(at), nil
}

// locate returns where b is in this rank's segment, if it is there.
func (s *shared) locate(b Buffer) (off int, ok bool) {
	return s.domain.own.Locate(b.ptr, b.len*b.dtype.Size())
}

// small reports whether every rank computes the result of c by itself.
func small(c *Call) bool {
	return c.Bytes() <= smallTensor
}

// read makes work the division of collective seq, of which t is this rank's
// part, from the posts of all ranks. An offset that no rank of this version can
// have posted is an error.
func (s *shared) read(seq uint64, t *task) error {
	own := &t.call
	for r := range s.size {
		c := &s.work.calls[r]
		*c = own.of(r, s.rank)
		s.work.copies[r] = s.board.post(seq, r).meta&postCopy != 0
		if r == s.rank {
			if own.Kind == KindAllReduce && t.staged != nil && !t.small {
				c.Dst.ptr = unsafe.Pointer(unsafe.SliceData(t.staged))
				c.Src.ptr = c.Dst.ptr
			}
			s.private[r] = s.board.post(seq, r).meta&postPrivate != 0
			continue
		}
		p, peer := s.board.post(seq, r), s.domain.segments[s.link.ranks[r]]
		s.private[r] = p.meta&postPrivate != 0
		c.Dst.ptr, c.Src.ptr = nil, nil
		if p.meta&postInline != 0 {
			n := c.Src.len * c.Src.dtype.Size()
			if n > pageBytes {
				return &RankError{s.name, r, fmt.Errorf("posted %d bytes of source inline", n)}
			}
			c.Src.ptr = s.board.inline(seq, r, n)
		} else if b, ok := peer.Bytes(int(p.src.Load()), c.Src.len*c.Src.dtype.Size()); ok {
			c.Src.ptr = unsafe.Pointer(unsafe.SliceData(b))
		} else {
			return s.badOffset(r, own, seq)
		}
		if !s.private[r] && !t.small {
			b, ok := peer.Bytes(int(p.dst), c.Dst.len*c.Dst.dtype.Size())
			if !ok {
				return s.badOffset(r, own, seq)
			}
			c.Dst.ptr = unsafe.Pointer(unsafe.SliceData(b))
		}
	}
	return nil
}

func (s *shared) badOffset(rank int, c *Call, seq uint64) error {
	return &RankError{s.name, rank, fmt.Errorf("posted a buffer outside of its memory for %s", c.numbered(seq))}
}

// reread follows sources that have been moved since read.
func (s *shared) reread(seq uint64) {
	for r := range s.size {
		p, c := s.board.post(seq, r), &s.work.calls[r]
		if r == s.rank || p.meta&postInline != 0 {
			continue
		}
		if b, ok := s.domain.segments[s.link.ranks[r]].Bytes(int(p.src.Load()), c.Src.len*c.Src.dtype.Size()); ok {
			c.Src.ptr = unsafe.Pointer(unsafe.SliceData(b))
		}
	}
}
