package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// label identifies a thing in a mailbox: its rank, id and lane.
type label struct {
	rank int
	id   uint64 // channel of a connection, tag of a file
	lane int    // on the channel
}

// errTaken is the error of reserving a place in which a thing is already waiting.
var errTaken = errors.New("an earlier one with the same number has not been used yet")

// errOver is the error for a thing that comes too late.
var errOver = errors.New("it arrived after its use had ended")

// maxWaiting is how many things of one rank may wait in a mailbox.
const maxWaiting = 256

// mailbox keeps things that have arrived until they are taken. The zero value is empty.
type mailbox[T io.Closer] struct {
	mu     sync.Mutex
	things map[label][]T       // in the order of arrival; no entry is empty
	places map[label]struct{}  // reserved for things that are about to arrive
	count  map[int]int         // things and places, by rank
	change *change             // ended by the next put, release or fail; nil while no call waits
	over   map[uint64]struct{} // ids that will not be asked for any more
	closed bool
}

// change makes waiting calls look again. After done is closed, err is why nothing more may come.
type change struct {
	done chan struct{}
	err  error
}

// reserve keeps a place for a thing, which only the caller may then send: put or release must
// follow.
func (b *mailbox[T]) reserve(l label) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, coming := b.places[l]; coming || len(b.things[l]) > 0 {
		return errTaken
	}
	if err := b.room(l); err != nil {
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
	b.announce(nil)
}

// fail ends the calls that wait now, except for things that are about to arrive.
func (b *mailbox[T]) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.announce(err)
}

// announce makes all waiting calls look again, or fails them. Called with mu held.
func (b *mailbox[T]) announce(err error) {
	if b.change != nil {
		b.change.err = err
		close(b.change.done)
		b.change = nil
	}
}

func (b *mailbox[T]) vacate(l label) {
	if _, ok := b.places[l]; ok {
		delete(b.places, l)
		b.count[l.rank]--
	}
}

// room returns an error if another thing with label l may not come in.
func (b *mailbox[T]) room(l label) error {
	_, over := b.over[l.id]
	switch {
	case b.closed:
		return ErrClosed
	case over:
		return errOver
	case b.count[l.rank] >= maxWaiting:
		return fmt.Errorf("%d from rank %d have not been used yet", maxWaiting, l.rank)
	case b.things == nil:
		b.things, b.places, b.count = map[label][]T{}, map[label]struct{}{}, map[int]int{}
	}
	return nil
}

// put adds a thing. If it returns an error, the thing still belongs to the caller.
func (b *mailbox[T]) put(l label, thing T) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.announce(nil)
	b.vacate(l)
	if err := b.room(l); err != nil {
		return err
	}
	b.things[l] = append(b.things[l], thing)
	b.count[l.rank]++
	return nil
}

// take waits for a thing. It returns a thing that has arrived even if ctx has ended. If ctx has
// ended because the rank has left, take also waits for things that are about to arrive: the rank
// may have sent all its data on them.
func (b *mailbox[T]) take(ctx context.Context, l label) (T, error) {
	ended, over := ctx.Done(), false
	for {
		thing, ok, coming, next := b.look(l)
		switch {
		case ok:
			return thing, nil
		case over && !coming:
			return thing, context.Cause(ctx)
		}
		select {
		case <-next.done:
			if next.err != nil && !coming {
				return thing, next.err
			}
		case <-ended:
			ended, over = nil, true
			if !errors.Is(context.Cause(ctx), ErrGone) {
				return thing, context.Cause(ctx)
			}
		}
	}
}

// look removes the first thing with label l, or reports whether there is a place reserved for one,
// and returns the next change.
func (b *mailbox[T]) look(l label) (thing T, ok, coming bool, next *change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if list := b.things[l]; len(list) > 0 {
		b.count[l.rank]--
		if len(list) == 1 {
			delete(b.things, l)
		} else {
			b.things[l] = list[1:]
		}
		return list[0], true, false, nil
	}
	if b.change == nil {
		b.change = &change{done: make(chan struct{})}
	}
	_, coming = b.places[l]
	return thing, false, coming, b.change
}

// forget closes the things that wait with an id, and all later ones.
func (b *mailbox[T]) forget(id uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over == nil {
		b.over = map[uint64]struct{}{}
	}
	b.over[id] = struct{}{}
	for l, list := range b.things {
		if l.id == id {
			for _, thing := range list {
				_ = thing.Close() // it is unused
			}
			b.count[l.rank] -= len(list)
			delete(b.things, l)
		}
	}
}

// close closes the things that were not taken, and all later ones.
func (b *mailbox[T]) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, list := range b.things {
		for _, thing := range list {
			_ = thing.Close() // it is unused
		}
	}
	b.things, b.places = nil, nil
}
