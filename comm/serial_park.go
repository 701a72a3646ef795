package comm

import (
	"context"
	"slices"
)

// parked is a waiter: it is woken when collective seq is complete or the group
// fails, or somebody has to run it.
type parked struct {
	seq uint64
	ch  chan struct{}
}

// park waits until collective seq is complete, the group fails or somebody has to
// drive; it may return early. It returns false if ctx ended. Called with mu held,
// which it gives up meanwhile.
func (s *Serial) park(ctx context.Context, seq uint64) bool {
	ch := s.channel()
	s.parked = append(s.parked, parked{seq, ch})
	s.mu.Unlock()
	ended := false
	select {
	case <-ch:
		s.mu.Lock()
	case <-ctx.Done():
		ended = true
		s.mu.Lock()
		if i := slices.IndexFunc(s.parked, func(p parked) bool { return p.ch == ch }); i >= 0 {
			s.parked = slices.Delete(s.parked, i, i+1)
		} else {
			<-ch // woken as well
		}
	}
	s.chans = append(s.chans, ch)
	return !ended
}

// channel takes an empty channel to park on. Called with mu held.
func (s *Serial) channel() chan struct{} {
	if k := len(s.chans); k > 0 {
		ch := s.chans[k-1]
		s.chans = s.chans[:k-1]
		return ch
	}
	return make(chan struct{}, 1)
}

// wakeAll wakes every waiter, wakeDone those whose collective is complete. Both
// are called with mu held.
func (s *Serial) wakeAll() {
	for _, p := range s.parked {
		p.ch <- struct{}{} // has room: a channel is parked once and drained before reuse
	}
	clear(s.parked)
	s.parked = s.parked[:0]
}

func (s *Serial) wakeDone() {
	kept := s.parked[:0]
	for _, p := range s.parked {
		if p.seq <= s.done {
			p.ch <- struct{}{}
		} else {
			kept = append(kept, p)
		}
	}
	clear(s.parked[len(kept):])
	s.parked = kept
}
