package nccl

import (
	"context"
	"errors"
	"sync"
)

// progress is how far the collectives of a group are, for streams that wait for one of them.
//
// Only one collective is in progress at a time, so one event is enough: it marks the end of the
// collective launched last, and all earlier ones are complete.
type progress struct {
	halt <-chan struct{} // the group's: nothing more is launched

	mu       sync.Mutex
	reached  *Event        // set before the first collective, recorded with mu held
	launched uint64        // every collective up to this one is complete, or reached marks its end
	done     uint64        // every collective up to this one is complete; at most launched
	changed  chan struct{} // closed when launched grows; nil if no goroutine waits for it
}

// launch marks the end of collective seq, all of which is in the stream.
func (p *progress) launch(seq uint64, s *Stream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.reached.Record(s); err != nil {
		return err
	}
	p.advance(seq)
	return nil
}

// complete records that collective seq is complete.
func (p *progress) complete(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = seq
	p.advance(seq)
}

// advance wakes goroutines that wait for a collective. Called with mu held.
func (p *progress) advance(seq uint64) {
	p.launched = seq
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// order makes s wait for collective seq once that is launched. ready is false if it never will be.
func (p *progress) order(ctx context.Context, seq uint64, s *Stream) (ready bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.launched < seq {
		if p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-p.halt:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		p.mu.Lock()
		if err != nil || p.launched < seq && closed(p.halt) {
			return false, err
		}
	}
	if p.done >= seq {
		return true, nil
	}
	return true, s.Wait(p.reached)
}

// closed reports whether ch is closed.
func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// fence makes the collectives wait for other streams.
type fence struct {
	mu    sync.Mutex // held while event is in use
	event *Event     // set before the first use
}

// wait makes later work of s wait for the work that the others have so far.
func (f *fence) wait(s *Stream, others []*Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range others {
		if other == nil {
			return errors.New("the stream is nil")
		}
		if err := f.event.Record(other); err != nil {
			return err
		}
		if err := s.Wait(f.event); err != nil {
			return err
		}
	}
	return nil
}
