// Package ticket makes the Work of collectives without an allocation for each.
package ticket

import (
	"context"
	"unsafe"
)

// Awaiter waits for the collectives of tickets.
type Awaiter interface {
	Await(ctx context.Context, seq uint64) error
}

// Ticket is the Work of a collective. A caller may keep it for ever, so it cannot be used again.
// But it is one byte, next to the tickets before and after it: operations of 200 ns would leave
// much garbage.
type Ticket uint8 // its place in the book

// Book is the tickets of collectives that follow each other.
type Book struct {
	Of      Awaiter
	first   uint64 // the collective of the first of them
	tickets [232]Ticket
}

// Roll gives a handle the tickets of its collectives. The zero value is ready to use.
type Roll struct{ book *Book }

// Take returns the ticket of collective seq of a handle. Numbers come in order, without gaps. It is
// not safe for concurrent use.
func (s *Roll) Take(of Awaiter, seq uint64) *Ticket {
	if s.book == nil || seq == s.book.first+uint64(len(s.book.tickets)) {
		s.book = &Book{Of: of, first: seq}
	}
	i := seq - s.book.first
	t := &s.book.tickets[i]
	*t = Ticket(i)
	return t
}

// Book returns the book that t is in.
func (t *Ticket) Book() (b *Book) {
	return (*Book)(unsafe.Add(unsafe.Pointer(t), -int(*t)-int(unsafe.Offsetof(b.tickets))))
}

// Seq returns the collective.
func (t *Ticket) Seq() uint64 { return t.Book().first + uint64(*t) }

// Wait implements [Work].
func (t *Ticket) Wait(ctx context.Context) error { return t.Book().Of.Await(ctx, t.Seq()) }
