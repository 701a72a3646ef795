package sharedmem

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/gofsdp/gofsdp/comm/internal/ticket"
	"github.com/gofsdp/gofsdp/comm/transport"
)

// Start implements [transport.Issuer].
func (s *shared) Start(c transport.Call) transport.Work {
	k, err := s.issue(&c)
	if err != nil {
		return transport.Refused(err)
	}
	return k
}

// Perform implements [transport.Issuer].
func (s *shared) Perform(ctx context.Context, c transport.Call) (uint64, error) {
	k, err := s.issue(&c)
	if err != nil {
		return 0, err
	}
	return k.Seq(), s.Await(ctx, k.Seq())
}

// issue records this rank's next collective, publishes it if the board has room,
// and returns its ticket.
func (s *shared) issue(c *transport.Call) (*ticket.Ticket, error) {
	trouble := c.Check(s.Rank(), s.Size())
	if trouble != nil && !s.isClosed() {
		err := s.Blame(trouble)
		s.fail(err)
		return nil, err
	}
	s.mu.Lock()
	err := s.Failure()
	if s.closed {
		err = s.Blame(transport.ErrClosed)
	}
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	s.issued++
	call := c.Signature()
	s.rec.Issue(s.issued, &call)
	s.watch.Issued(&s.Base, s.issued, c)
	k := s.tickets.Take(s, s.issued)
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
		s.fail(s.Blame(trouble))
	}
	return k, nil
}

func (s *shared) task(seq uint64) *task { return &s.tasks[seq%boardSlots] }

// reclaim frees the copies that no rank reads any more. Called with mu held.
func (s *shared) reclaim() {
	for settled := min(s.board.completed(), s.done.Load()); s.reclaimed < settled; {
		s.reclaimed++
		s.drop(s.task(s.reclaimed))
	}
}

// drop frees the copies of a task.
func (s *shared) drop(t *task) {
	for _, b := range [][]byte{t.staged, t.moved} {
		if b != nil {
			_ = s.domain.own.Free(b) // fails only if a user has freed memory of others
		}
	}
	t.copied, t.staged, t.moved = false, nil, nil // step has forgotten the call
}

// room reports whether the board has room for one more collective. Called with mu held.
func (s *shared) room() bool {
	if s.published == s.reclaimed+boardSlots {
		s.reclaim()
	}
	return s.published < s.reclaimed+boardSlots // else the other ranks must come so far
}

// publish posts issued collectives, as far as the board has room. This rank must fail with the
// error, if any. Called with mu held.
func (s *shared) publish() (err error) {
	posted := 0
	for err == nil && posted < len(s.backlog) && s.Failure() == nil && s.room() {
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
func (s *shared) post(c *transport.Call, call *transport.Signature) error {
	seq := s.published + 1
	t := s.task(seq)
	t.call = *c
	if small(c) {
		s.postSmall(seq, c, call)
	} else if err := s.offer(seq, t, call); err != nil {
		*t = task{}
		return fmt.Errorf("%s: %w", call.Numbered(seq), err)
	} else {
		raceArrive()
		s.board.post(seq, s.Rank()).seq.Store(seq)
		s.board.arrive(seq)
	}
	s.published = seq
	return nil
}

// offer writes this rank's part of collective seq, which is not small, on the board, except for its
// number.
func (s *shared) offer(seq uint64, t *task, call *transport.Signature) error {
	c, p := &t.call, s.board.post(seq, s.Rank())
	if err := s.postSource(p, t); err != nil {
		return err
	}
	p.dst = 0
	flags := uint64(0)
	switch off, ok := s.locate(c.Dst); {
	case c.Kind == transport.KindAllReduce && t.staged != nil:
		p.dst = p.src.Load()
		flags = postCopy
	case ok:
		p.dst = uint64(off)
	case c.Dst.Len() > 0:
		flags = postPrivate
	}
	lane := s.board.lane(seq, s.Rank())
	lane.claimed.Store(seq << transport.TagShift)
	lane.finished.Store(seq << transport.TagShift)
	p.meta = s.sign(p, call) | flags
	return nil
}

// sign writes the signature of a call in a post, and returns the first of its meta. Most calls are
// the same as the latest of their kind, so that one is kept. Called with mu held.
func (s *shared) sign(p *post, call *transport.Signature) (meta uint64) {
	d := &s.signed[call.Kind]
	if d.call != *call {
		d.set(call)
	}
	p.sig = d.sig
	return d.meta
}

// postSource sets where the others find the source, and copies it if it must be elsewhere.
func (s *shared) postSource(p *post, t *task) (err error) {
	c, off := &t.call, uint64(0)
	at, ok := s.locate(c.Src)
	switch {
	case s.Size() == 1 || c.Src.Len() == 0 || s.keepsSource(c):
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

// keepsSource reports whether no other rank reads the source of c: on ranks of a broadcast other
// than the root, and on the root of a gather if only the root can write to
// its destination.
func (s *shared) keepsSource(c *transport.Call) bool {
	switch c.Kind {
	case transport.KindBroadcast:
		return c.Root != s.Rank()
	case transport.KindGather:
		_, ok := s.locate(c.Dst)
		return c.Root == s.Rank() && !ok
	}
	return false
}

// copySource copies src into new memory of this rank's segment.
func (s *shared) copySource(to *[]byte, src transport.Buffer) (off uint64, err error) {
	from := src.Bytes()
	b, err := s.domain.own.AllocDirty(len(from))
	if err != nil {
		return 0, fmt.Errorf("copying %v to shared memory: %w", src, err)
	}
	copy(b, from)
	*to = b
	at, _ := s.domain.own.Offset(b)
	return uint64(at), nil
}

// locate returns where b is in this rank's segment, if it is there.
func (s *shared) locate(b transport.Buffer) (off int, ok bool) {
	return s.domain.own.Locate(b.Pointer(), b.Len()*b.DType().Size())
}

// read makes work the division of collective seq, of which t is this rank's part, from the posts of
// all ranks. It returns an error for an offset that no rank of this version can have posted.
func (s *shared) read(seq uint64, t *task) error {
	own := &t.call
	for r := range s.Size() {
		c, p := &s.work.Calls[r], s.board.post(seq, r)
		*c = own.ForRank(r, s.Rank())
		s.work.Copies[r], s.private[r] = p.meta&postCopy != 0, p.meta&postPrivate != 0
		if r == s.Rank() {
			if own.Kind == transport.KindAllReduce && t.staged != nil {
				at := unsafe.Pointer(unsafe.SliceData(t.staged))
				c.Dst, c.Src = c.Dst.At(at), c.Src.At(at)
			}
			continue
		}
		peer := s.domain.segments[s.link.Ranks[r]]
		c.Dst, c.Src = c.Dst.At(nil), c.Src.At(nil)
		src, ok := peer.Bytes(int(p.src.Load()), c.Src.Len()*c.Src.DType().Size())
		if !ok {
			return s.badOffset(r, own, seq)
		}
		c.Src = c.Src.At(unsafe.Pointer(unsafe.SliceData(src)))
		if s.private[r] {
			continue
		}
		dst, ok := peer.Bytes(int(p.dst), c.Dst.Len()*c.Dst.DType().Size())
		if !ok {
			return s.badOffset(r, own, seq)
		}
		c.Dst = c.Dst.At(unsafe.Pointer(unsafe.SliceData(dst)))
	}
	return nil
}

func (s *shared) badOffset(rank int, c *transport.Call, seq uint64) error {
	return &transport.RankError{Group: s.Name(), Rank: rank, Err: fmt.Errorf("posted a buffer outside of its memory for %s", c.Numbered(seq))}
}

// reread follows sources that have been moved since read.
func (s *shared) reread(seq uint64) {
	for r := range s.Size() {
		p, c := s.board.post(seq, r), &s.work.Calls[r]
		if r == s.Rank() {
			continue
		}
		if b, ok := s.domain.segments[s.link.Ranks[r]].Bytes(int(p.src.Load()), c.Src.Len()*c.Src.DType().Size()); ok {
			c.Src = c.Src.At(unsafe.Pointer(unsafe.SliceData(b)))
		}
	}
}
