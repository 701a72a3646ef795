package mesh

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// label says what a thing in a mailbox is: the how-manieth of which rank.
type label struct {
	rank int
	id   uint64 // channel of a connection, tag of a file
}

// maxWaiting is how many things of one rank may wait in a mailbox.
const maxWaiting = 256

// mailbox keeps what has arrived until somebody asks for it. The zero value is empty.
type mailbox[T io.Closer] struct {
	mu      sync.Mutex
	things  map[label][]T // in the order of arrival; no entry is empty
	count   map[int]int   // by rank
	changed chan struct{} // closed at the next arrival; nil while nobody waits
	closed  bool
}

// room tells whether rank may send another thing, and whether one with this label waits already.
func (b *mailbox[T]) room(l label) (free, taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count[l.rank] < maxWaiting && !b.closed, len(b.things[l]) > 0
}

// put adds a thing. With an error it is still the caller's.
func (b *mailbox[T]) put(l label, thing T) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return ErrClosed
	case b.count[l.rank] >= maxWaiting:
		return fmt.Errorf("more than %d from rank %d that nobody has asked for", maxWaiting, l.rank)
	case b.things == nil:
		b.things, b.count = map[label][]T{}, map[int]int{}
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

// look removes the first thing with label l, or returns a channel that is closed at the next arrival.
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
	b.things, b.count = nil, nil
}
