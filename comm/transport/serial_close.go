package transport

import (
	"context"
	"errors"
	"time"
)

// Close implements [Group]. Collectives that every rank has issued complete if that takes no longer
// than a second or so.
func (s *Serial) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if !again {
		s.ended = s.end()
		close(s.over)
	}
	<-s.over
	return s.ended
}

// end ends the handle, which is closed to operations.
func (s *Serial) end() error {
	s.mu.Lock()
	s.drain()
	differs := s.unsaid()
	s.fail(failure{err: s.errClosed()}, false) // Leave reports it to the others
	close(s.quit)
	for s.running || s.busy > 0 {
		s.park(context.Background(), 0)
	}
	if s.owing != nil {
		s.owing.Stop()
	}
	last := s.done
	clear(s.tasks)
	s.mu.Unlock()
	s.background.Wait()
	return errors.Join(differs, s.backend.Leave(last))
}

// drain waits until the collectives that every rank has issued are complete and confirmed. Only
// time distinguishes them from collectives that some rank has not issued, so that closing takes no
// agreement. Called with mu held; gives mu up.
func (s *Serial) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), Grace)
	defer cancel()
	s.call() // for collectives that were only begun
	for (s.done < s.issued || s.running) && s.fault(s.done+1) == nil && s.park(ctx, s.issued) {
	}
	b, ok := s.backend.(Confirmer)
	if !ok || s.done < s.issued || s.running || len(s.faults) > 0 {
		return
	}
	var err error
	s.running = true
	s.unlocked(func() { err = b.Confirm(ctx) })
	s.running = false
	switch {
	case err == nil:
	case errors.Is(err, ErrEnded):
		_ = s.hear(ctx, s.done+1, Grace) // unsaid looks at it
	case len(s.faults) == 0:
		s.fail(failure{err: err}, true)
	}
}

// unsaid returns a mismatch of calls in this group that no operation has returned.
func (s *Serial) unsaid() error {
	var differs *MismatchError
	if !s.said && errors.As(s.fault(s.done+1), &differs) && differs.Group == s.name {
		return differs
	}
	return nil
}

// owingFor is how long other ranks wait for this rank's pending messages if it issues nothing more,
// and for collectives that it has begun and not waited for.
const owingFor = 10 * time.Millisecond

// owe makes the goroutine of the group send the backend's pending messages. Called with mu held,
// when no goroutine drives.
func (s *Serial) owe() {
	if b, ok := s.backend.(Confirmer); ok && len(s.faults) == 0 && b.Owes() {
		s.later()
	}
}

// later calls the goroutine of the group in a while. Called with mu held.
func (s *Serial) later() {
	switch {
	case s.owed:
		return
	case s.owing == nil:
		s.owing = time.AfterFunc(owingFor, s.call)
	default:
		s.owing.Reset(owingFor)
	}
	s.owed = true
}
