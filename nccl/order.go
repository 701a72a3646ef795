package nccl

import (
	"context"
	"errors"
	"sync"
)

// progress is how far the collectives of a group are, for streams that are to wait for one of them.
//
// Only one collective is under way at a time, so one event is enough: it marks the end of the
// collective launched last, and all before that are complete.
type progress struct {
	halt <-chan struct{} // the group's: nothing more is launched

	mu       sync.Mutex
	reached  *Event        // set before the first collective, recorded with mu held
	launched uint64        // every collective up to this one is complete, or reached marks its end
	done     uint64        // every collective up to this one is complete; at most launched
	changed  chan struct{} // closed when launched grows; nil if nobody waits for that
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

// complete says that collective seq is complete.
func (p *progress) complete(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = seq
	p.advance(seq)
}

// advance wakes who waits for a collective. Called with mu held.
func (p *progress) advance(seq uint64) {
	p.launched = seq
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// order lets s wait for collective seq once that is launched. ready is false if it never will be.
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

// fence lets the collectives wait for other streams.
type fence struct {
	mu    sync.Mutex // held while event is in use
	event *Event     // set before the first use
}

// wait lets what s is given from now on wait for what the others have been given so far.
func (f *fence) wait(s *Stream, others []*Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, other := range others {
		if other == nil {
			return errors.New("no stream")
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
