package sharedmem

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/comm/transport"
)

// Await returns when collective seq is complete on this rank, or can no longer become so. If ctx
// ends while some rank has not issued seq, the group fails.
func (s *shared) Await(ctx context.Context, seq uint64) error {
	if s.done.Load() >= seq {
		return nil
	}
	if !s.turn.Join() {
		s.queue(ctx, seq)
	}
	defer s.turn.Pass()
	for next := s.done.Load() + 1; next <= seq; next++ {
		if err := s.step(ctx, next); err != nil {
			return err
		}
	}
	return nil
}

// queue waits for the turn. If ctx ends first, this rank gives up seq, unless it is ready. The
// goroutine that has the turn then ends soon.
func (s *shared) queue(ctx context.Context, seq uint64) {
	select {
	case <-s.turn.Handed:
		return
	case <-ctx.Done():
	}
	s.mu.Lock()
	ready, what := s.done.Load() >= seq, ""
	if !ready && !s.detached {
		ready, what = s.ready(seq), s.numbered(seq)
	}
	s.mu.Unlock()
	if !ready {
		s.fail(s.Blame(fmt.Errorf("waiting for its turn in %s: %w", what, context.Cause(ctx))))
	}
	<-s.turn.Handed
}

// numbered names collective seq, which this rank has issued and the board still has if it was
// published. Called with mu held.
func (s *shared) numbered(seq uint64) string {
	if seq > s.published {
		return s.backlog[seq-s.published-1].Numbered(seq)
	}
	own, _ := transport.ParseSignature(s.board.post(seq, s.Rank()).sig[:]) // this rank has put it there
	return own.Numbered(seq)
}

// step completes collective seq, the next one of this rank. Collectives that are published and not
// done are in tasks, for the goroutine that has the turn.
func (s *shared) step(ctx context.Context, seq uint64) error {
	if s.detached {
		return s.Failure()
	}
	if err := s.arrival(ctx, seq); err != nil {
		return err
	}
	raceMeet()
	s.watch.Began(seq)
	t := s.task(seq)
	if s.small(seq) {
		s.compute(seq, &t.call)
	} else if err := s.finish(seq, t); err != nil {
		s.fail(err)
		return s.Failure()
	}
	t.call = transport.Call{} // the buffers are the rank's again
	s.watch.Done(seq)
	s.done.Store(seq)
	s.board.line(s.Rank()).done.Store(seq)
	s.board.ring()
	return nil
}

// arrival returns when all ranks have arrived at collective seq and made the same call.
func (s *shared) arrival(ctx context.Context, seq uint64) error {
	if !s.ready(seq) {
		if err := s.attend(ctx, seq); err != nil {
			return err
		}
	}
	if err := s.compare(seq, s.Size()); err != nil {
		s.fail(err)
		return s.Failure()
	}
	return nil
}

// attend waits until all ranks have arrived at collective seq.
func (s *shared) attend(ctx context.Context, seq uint64) error {
	w := s.waiter()
	defer w.end()
	for !s.ready(seq) {
		// A collective published before a failure is ready when the failure can be seen, or never
		// will be. (If it is small, others may still complete it.)
		if err := s.Failure(); err != nil && !s.ready(seq) {
			return err
		}
		if !w.rest() {
			continue
		}
		if err := s.overdue(ctx, seq, &w); err != nil {
			s.fail(err)
		}
	}
	return nil
}

// posted reports whether this rank has posted its part of collective seq.
func (s *shared) posted(seq uint64) bool { return s.board.arrived(seq, s.Rank()) }

// ready reports whether all ranks have arrived at collective seq.
func (s *shared) ready(seq uint64) bool {
	if !s.posted(seq) {
		return false
	}
	if s.small(seq) {
		return s.board.met(seq)
	}
	return s.board.ready(seq)
}

// overdue does the periodic work while collective seq is not ready, and returns why the group must
// fail, if it must.
func (s *shared) overdue(ctx context.Context, seq uint64, w *waiter) error {
	s.mu.Lock()
	err := s.publish() // the board may have room now
	what := s.numbered(seq)
	s.mu.Unlock()
	if err != nil {
		return s.Blame(err)
	}
	if err := s.compare(seq, 0); err != nil {
		return err
	}
	arrived := uint64(0)
	for r := range s.Size() {
		if s.board.arrived(seq, r) {
			arrived++
		}
	}
	switch {
	case ctx.Err() != nil:
		return s.Blame(fmt.Errorf("waiting for ranks %v in %s: %w", s.missing(seq), what, context.Cause(ctx)))
	case w.late(arrived):
		return s.timedOut(s.missing(seq), seq, what)
	}
	return nil
}

// missing returns the ranks that have not arrived at collective seq.
func (s *shared) missing(seq uint64) (ranks []int) {
	for r := range s.Size() {
		if !s.board.arrived(seq, r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// compare compares the calls for collective seq of the ranks that have arrived. The first known
// ranks are known to have arrived.
func (s *shared) compare(seq uint64, known int) error {
	first := -1
	for r := range s.Size() {
		if r >= known && !s.board.arrived(seq, r) {
			continue
		}
		if first < 0 {
			first = r
			continue
		}
		a, b := s.board.post(seq, first), s.board.post(seq, r)
		if !a.alike(b) {
			return &transport.MismatchError{Group: s.Name(), Seq: seq, Ranks: [2]int{first, r}, Calls: [2]string{a.call(), b.call()}}
		}
	}
	return nil
}

// call describes the call of a post.
func (p *post) call() string {
	sig, err := transport.ParseSignature(p.sig[:])
	if err != nil {
		return err.Error()
	}
	return sig.String()
}

// finish executes collective seq, which is ready, until this rank's destination is complete and no
// rank needs its source.
func (s *shared) finish(seq uint64, t *task) error {
	if err := s.read(seq, t); err != nil {
		return err
	}
	defer clear(s.work.Calls)
	s.work.Cut()
	s.rec.Start(seq)
	for i := range s.need {
		s.need[i] = s.work.Parts[i]
		if i != s.Rank() && t.copied && t.call.Kind != transport.KindAllReduce {
			s.need[i] = 0 // this rank does not need it
		}
	}
	line := s.board.line(s.Rank())
	line.busy.Store(seq) // before any claim: a rank that is not busy holds none
	err := s.drain(seq, t)
	line.busy.Store(0)
	if err == nil && t.call.Kind == transport.KindAllReduce && t.staged != nil {
		s.work.Fetch(s.Rank(), t.call.Dst)
	}
	return err
}

// drain executes parts of collective seq until all that this rank needs are
// finished, by itself or by others.
func (s *shared) drain(seq uint64, t *task) error {
	w := s.waiter()
	defer w.end()
	for !s.complete(seq) {
		if s.help(seq) {
			w.Reset()
			continue
		}
		if !w.rest() {
			continue
		}
		s.Move(seq, t)
		if s.complete(seq) {
			return nil
		}
		if err := s.ownerDied(seq); err != nil {
			return err
		}
		finished := uint64(0)
		for i := range s.need {
			finished += uint64(s.board.finished(seq, i))
		}
		if w.late(finished) {
			return s.timedOut(s.busy(seq), seq, t.call.Numbered(seq))
		}
	}
	return nil
}

func (s *shared) complete(seq uint64) bool {
	for i, need := range s.need {
		if need > 0 && s.board.finished(seq, i) < need {
			return false
		}
	}
	return true
}

// help executes one part of collective seq, from this rank's lane if one is left there, and reports
// whether it did.
func (s *shared) help(seq uint64) bool {
	for k := range s.Size() {
		i := (s.Rank() + k) % s.Size()
		if i != s.Rank() && s.exclusive(i) {
			continue
		}
		part, ok := s.board.claim(seq, i, s.work.Parts[i])
		if !ok {
			continue
		}
		if s.exclusive(i) {
			s.reread(seq)
		}
		s.work.Run(i, part, &s.reducer)
		s.board.finish(seq, i, s.work.Parts[i])
		return true
	}
	return false
}

// exclusive reports whether only rank i itself can execute lane i.
func (s *shared) exclusive(i int) bool {
	return s.private[i] && s.work.Calls[i].Kind != transport.KindAllReduce
}

// Move copies the source of this rank to where it can stay, for ranks with a private destination
// that have not read it yet, because they may compute for long. All lanes that this rank can help
// with have been claimed.
func (s *shared) Move(seq uint64, t *task) {
	unread := false
	for i, need := range s.need {
		unread = unread || i != s.Rank() && need > s.board.claimed(seq, i)
	}
	if !unread || t.copied || t.call.Kind == transport.KindAllReduce {
		return
	}
	off, err := s.copySource(&t.moved, t.call.Src)
	if err != nil {
		return // there is no memory for that: wait
	}
	s.board.post(seq, s.Rank()).src.Store(off)
	t.copied = true
	for i := range s.need {
		if i != s.Rank() {
			s.need[i] = s.board.claimed(seq, i) // later claims read the copy
		}
	}
}

// ownerDied returns the failure of the group if a rank has died while it executed parts of
// collective seq, as soon as no other rank uses this rank's buffers. None will later, because all
// parts are claimed. For the same reason this rank is no longer busy when it knows of the death:
// others that also wait for the dead rank's parts need not wait for this rank.
func (s *shared) ownerDied(seq uint64) error {
	died := false
	for r := range s.Size() {
		died = died || s.link.Lost(r)
	}
	if !died || s.complete(seq) {
		return nil
	}
	s.board.line(s.Rank()).busy.Store(0)
	if len(s.busy(seq)) > 0 {
		return nil
	}
	return s.Failure()
}

// busy returns the other living ranks that may be executing parts of collective seq.
func (s *shared) busy(seq uint64) (ranks []int) {
	for r := range s.Size() {
		if r != s.Rank() && !s.link.Lost(r) && s.board.line(r).busy.Load() == seq {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
