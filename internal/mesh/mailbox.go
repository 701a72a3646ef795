package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// label says what a thing in a mailbox is: the how-manieth of which rank.
type label struct {
	rank int
	id   uint64 // channel of a connection, tag of a file
}

// errTaken is the error of reserving a place where something waits already.
var errTaken = errors.New("the one before has not been asked for yet")

// maxWaiting is how many things of one rank may wait in a mailbox.
const maxWaiting = 256

// mailbox keeps what has arrived until somebody asks for it. The zero value is empty.
type mailbox[T io.Closer] struct {
	mu      sync.Mutex
	things  map[label][]T      // in the order of arrival; no entry is empty
	places  map[label]struct{} // reserved for things that are about to arrive
	count   map[int]int        // things and places, by rank
	changed chan struct{}      // closed at the next arrival; nil while nobody waits
	closed  bool
}

// reserve keeps a place for a thing that nobody else may then send: put or release must follow.
func (b *mailbox[T]) reserve(l label) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, coming := b.places[l]; coming || len(b.things[l]) > 0 {
		return errTaken
	}
	if err := b.room(l.rank); err != nil {
		return err
	}
	b.places[l] = struct{}{}
	b.count[l.rank]++
	return nil
}

// release gives a reserved place back.
func (b *mailbox[T]) release(l label) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.vacate(l)
}

func (b *mailbox[T]) vacate(l label) {
	if _, ok := b.places[l]; ok {
		delete(b.places, l)
		b.count[l.rank]--
	}
}

// room tells whether another thing of rank may come in.
func (b *mailbox[T]) room(rank int) error {
	switch {
	case b.closed:
		return ErrClosed
	case b.count[rank] >= maxWaiting:
		return fmt.Errorf("%d from rank %d have not been asked for yet", maxWaiting, rank)
	case b.things == nil:
		b.things, b.places, b.count = map[label][]T{}, map[label]struct{}{}, map[int]int{}
	}
	return nil
}

// put adds a thing. With an error it is still the caller's.
func (b *mailbox[T]) put(l label, thing T) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.vacate(l)
	if err := b.room(l.rank); err != nil {
		return err
	}
	b.things[l] = append(b.things[l], thing)
	b.count[l.rank]++
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	return nil
}

// take waits for a thing. What has arrived is returned even if ctx has ended.
func (b *mailbox[T]) take(ctx context.Context, l label) (T, error) {
	for {
		thing, ok, changed := b.look(l)
		if ok {
			return thing, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			var none T
			return none, context.Cause(ctx)
		}
	}
}

// look removes the first thing with label l, or returns a channel that is closed at the next
// arrival.
func (b *mailbox[T]) look(l label) (thing T, ok bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if list := b.things[l]; len(list) > 0 {
		b.count[l.rank]--
		if len(list) == 1 {
			delete(b.things, l)
		} else {
			b.things[l] = list[1:]
		}
		return list[0], true, nil
	}
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return thing, false, b.changed
}

// close closes what nobody has asked for, and all that would come.
func (b *mailbox[T]) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, list := range b.things {
		for _, thing := range list {
			_ = thing.Close() // nobody has used it
		}
	}
	b.things, b.places = nil, nil
}
