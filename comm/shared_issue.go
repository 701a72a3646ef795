package comm

import (
	"context"
	"fmt"
	"slices"
	"unsafe"
)

// start implements transport.
func (s *shared) start(c Call) Work {
	k, err := s.issue(&c)
	if err != nil {
		return failed{err}
	}
	return k
}

// perform implements transport.
func (s *shared) perform(ctx context.Context, c Call) (uint64, error) {
	k, err := s.issue(&c)
	if err != nil {
		return 0, err
	}
	return k.seq(), s.await(ctx, k.seq())
}

// issue records this rank's next collective, publishes it if the board has room,
// and returns its ticket.
func (s *shared) issue(c *Call) (*ticket, error) {
	trouble := c.check(s.rank, s.size)
	if trouble != nil && !s.isClosed() {
		err := s.blame(trouble)
		s.fail(err)
		return nil, err
	}
	s.mu.Lock()
	err := s.failure()
	if s.closed {
		err = s.errClosed()
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.issued++
	call := c.Signature()
	s.rec.issue(s.issued, &call)
	s.watch.issued(&s.face, s.issued, c)
	k := s.tickets.take(s, s.issued)
	if len(s.backlog) == 0 && s.room() {
		trouble = s.post(c, &call)
	}
	if s.published < s.issued {
		s.backlog = append(s.backlog, *c)
	}
	if trouble == nil {
		trouble = s.publish()
	}
	s.mu.Unlock()
	if trouble != nil {
		s.fail(s.blame(trouble))
	}
	return k, nil
}

func (s *shared) task(seq uint64) *task { return &s.tasks[seq%boardSlots] }

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
	t.copied, t.staged, t.moved = false, nil, nil // step has forgotten the call
}

// room reports whether the board has room for one more collective. Called with mu held.
func (s *shared) room() bool {
	if s.published == s.reclaimed+boardSlots {
		s.reclaim()
	}
	return s.published < s.reclaimed+boardSlots // or the other ranks have to come so far
}

// publish posts what has been issued, as far as the board has room. An error is one that this rank
// has to fail with. Called with mu held.
func (s *shared) publish() (err error) {
	posted := 0
	for err == nil && posted < len(s.backlog) && s.failure() == nil && s.room() {
		c := &s.backlog[posted]
		call := c.Signature()
		if err = s.post(c, &call); err == nil {
			posted++
		}
	}
	if posted > 0 {
		s.backlog = slices.Delete(s.backlog, 0, posted)
	}
	return err
}

// post writes this rank's part of its next collective on the board and arrives there. Called with
// mu held.
func (s *shared) post(c *Call, call *Signature) error {
	seq := s.published + 1
	t := s.task(seq)
	t.call = *c
	if small(c) {
		s.postSmall(seq, c, call)
	} else if err := s.offer(seq, t, call); err != nil {
		*t = task{}
		return fmt.Errorf("%s: %w", call.numbered(seq), err)
	} else {
		raceArrive()
		s.board.post(seq, s.rank).seq.Store(seq)
		s.board.arrive(seq)
	}
	s.published = seq
	return nil
}

// offer writes this rank's part of collective seq, which is not small, on the board, but for its
// number.
func (s *shared) offer(seq uint64, t *task, call *Signature) error {
	c, p := &t.call, s.board.post(seq, s.rank)
	if err := s.postSource(p, t); err != nil {
		return err
	}
	p.dst = 0
	flags := uint64(0)
	switch off, ok := s.locate(c.Dst); {
	case c.Kind == KindAllReduce && t.staged != nil:
		p.dst = p.src.Load()
		flags = postCopy
	case ok:
		p.dst = uint64(off)
	case c.Dst.len > 0:
		flags = postPrivate
	}
	lane := s.board.lane(seq, s.rank)
	lane.claimed.Store(seq << tagShift)
	lane.finished.Store(seq << tagShift)
	p.meta = s.sign(p, call) | flags
	return nil
}

// sign writes the signature of a call in a post, and returns the first of its meta. Most calls are
// the same as the latest of their kind, so that one is kept. Called with mu held.
func (s *shared) sign(p *post, call *Signature) (meta uint64) {
	d := &s.signed[call.Kind]
	if d.call != *call {
		d.set(call)
	}
	p.sig = d.sig
	return d.meta
}

// postSource says where the others find the source, and copies it if that has to
// be elsewhere.
func (s *shared) postSource(p *post, t *task) (err error) {
	c, off := &t.call, uint64(0)
	at, ok := s.locate(c.Src)
	switch {
	case s.size == 1 || c.Src.len == 0 || s.keepsSource(c):
		t.copied = true
	case ok:
		off = uint64(at)
	default:
		s.reclaim() // so that the memory of a copy serves the next one, if all ranks are so far
		off, err = s.copySource(&t.staged, c.Src)
		t.copied = true
	}
	p.src.Store(off)
	return err
}

// keepsSource reports whether no other rank reads the source of c: of a broadcast
// that is not the root, and of a gather the root if nobody else can write there.
func (s *shared) keepsSource(c *Call) bool {
	switch c.Kind {
	case KindBroadcast:
		return c.Root != s.rank
	case KindGather:
		_, ok := s.locate(c.Dst)
		return c.Root == s.rank && !ok
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

// read makes work the division of collective seq, of which t is this rank's
// part, from the posts of all ranks. An offset that no rank of this version can
// have posted is an error.
func (s *shared) read(seq uint64, t *task) error {
	own := &t.call
	for r := range s.size {
		c, p := &s.work.calls[r], s.board.post(seq, r)
		*c = own.of(r, s.rank)
		s.work.copies[r], s.private[r] = p.meta&postCopy != 0, p.meta&postPrivate != 0
		if r == s.rank {
			if own.Kind == KindAllReduce && t.staged != nil {
				c.Dst.ptr = unsafe.Pointer(unsafe.SliceData(t.staged))
				c.Src.ptr = c.Dst.ptr
			}
			continue
		}
		peer := s.domain.segments[s.link.ranks[r]]
		c.Dst.ptr, c.Src.ptr = nil, nil
		src, ok := peer.Bytes(int(p.src.Load()), c.Src.len*c.Src.dtype.Size())
		if !ok {
			return s.badOffset(r, own, seq)
		}
		c.Src.ptr = unsafe.Pointer(unsafe.SliceData(src))
		if s.private[r] {
			continue
		}
		dst, ok := peer.Bytes(int(p.dst), c.Dst.len*c.Dst.dtype.Size())
		if !ok {
			return s.badOffset(r, own, seq)
		}
		c.Dst.ptr = unsafe.Pointer(unsafe.SliceData(dst))
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
		if r == s.rank {
			continue
		}
		if b, ok := s.domain.segments[s.link.ranks[r]].Bytes(int(p.src.Load()), c.Src.len*c.Src.dtype.Size()); ok {
			c.Src.ptr = unsafe.Pointer(unsafe.SliceData(b))
		}
	}
}
