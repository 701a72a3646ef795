package comm

import (
	"context"
	"errors"
	"unsafe"
)

// face is the part of a [Group] that is the same over every transport: it makes
// the [Call] of each method. Handles embed it.
type face struct {
	transport  transport
	name       string
	rank, size int
}

// transport is the part of a handle that differs: how calls are issued, waited for
// and given up.
type transport interface {
	// start issues c and returns its Work; if it cannot be issued, one that gives
	// the error.
	start(c Call) Work
	// perform issues c, waits for it, and returns its number in the group.
	perform(ctx context.Context, c Call) (seq uint64, err error)
	// form makes the group of the given ranks that the split with number seq has
	// formed under color, of which this rank is one.
	form(ctx context.Context, seq uint64, color int, ranks []int) (Group, error)
	// abort fails the group with err, which blames this rank.
	abort(err error)
}

// Rank implements [Group].
func (f *face) Rank() int { return f.rank }

// Size implements [Group].
func (f *face) Size() int { return f.size }

// AllGather implements [Group].
func (f *face) AllGather(dst, src Buffer) Work {
	return f.transport.start(Call{Kind: KindAllGather, Dst: dst, Src: src})
}

// ReduceScatter implements [Group].
func (f *face) ReduceScatter(dst, src Buffer, op Op) Work {
	return f.transport.start(Call{Kind: KindReduceScatter, Op: op, Dst: dst, Src: src})
}

// AllReduce implements [Group].
func (f *face) AllReduce(buf Buffer, op Op) Work {
	return f.transport.start(Call{Kind: KindAllReduce, Op: op, Dst: buf, Src: buf})
}

// Broadcast implements [Group].
func (f *face) Broadcast(buf Buffer, root int) Work {
	return f.transport.start(Call{Kind: KindBroadcast, Root: root, Dst: buf, Src: buf})
}

// Gather implements [Group].
func (f *face) Gather(dst, src Buffer, counts []int, root int) Work {
	return f.transport.start(gather(dst, src, counts, root, f.rank))
}

// AllToAll implements [Group].
func (f *face) AllToAll(dst, src Buffer) Work {
	return f.transport.start(Call{Kind: KindAllToAll, Dst: dst, Src: src})
}

// Barrier implements [Group].
func (f *face) Barrier(ctx context.Context) error {
	_, err := f.transport.perform(ctx, Call{Kind: KindBarrier})
	return err
}

// Split implements [Group].
func (f *face) Split(ctx context.Context, color, key int) (Group, error) {
	pairs := make([]int64, 2*f.size)
	mine := []int64{int64(color), int64(key)}
	seq, err := f.transport.perform(ctx, Call{Kind: KindSplit, Dst: Of(pairs), Src: Of(mine)})
	if err != nil || color < 0 {
		return nil, err
	}
	return f.transport.form(ctx, seq, color, splitRanks(pairs, color))
}

// Abort implements [Group].
func (f *face) Abort(err error) {
	if err == nil {
		err = errors.New("aborted")
	}
	f.transport.abort(f.blame(err))
}

// blame says that the group failed because of err on this rank.
func (f *face) blame(err error) error { return &RankError{f.name, f.rank, err} }

// errClosed is the failure of a group that this rank has closed.
func (f *face) errClosed() error { return f.blame(ErrClosed) }

// failed is the Work of a call that could not be issued.
type failed struct{ err error }

func (f failed) Wait(context.Context) error { return f.err }

// awaiter is what tickets are for.
type awaiter interface {
	await(ctx context.Context, seq uint64) error
}

// ticket is the Work of a collective. A caller may keep it for ever, so it cannot be used again.
// But it is one byte, beside the tickets before and behind it: operations of 200 ns would leave
// much garbage.
type ticket uint8 // its place in the book

// book is the tickets of collectives that follow each other.
type book struct {
	of      awaiter
	first   uint64 // the collective of the first of them
	tickets [232]ticket
}

// tickets gives a handle the tickets of its collectives. The zero value is ready to use.
type tickets struct{ book *book }

// take returns the ticket of collective seq of a handle. Numbers come in order, without gaps. It is
// not safe for concurrent use.
func (s *tickets) take(of awaiter, seq uint64) *ticket {
	if s.book == nil || seq == s.book.first+uint64(len(s.book.tickets)) {
		s.book = &book{of: of, first: seq}
	}
	i := seq - s.book.first
	t := &s.book.tickets[i]
	*t = ticket(i)
	return t
}

// book returns the book that t is in.
func (t *ticket) book() (b *book) {
	return (*book)(unsafe.Add(unsafe.Pointer(t), -int(*t)-int(unsafe.Offsetof(b.tickets))))
}

// seq returns the collective.
func (t *ticket) seq() uint64 { return t.book().first + uint64(*t) }

// Wait implements [Work].
func (t *ticket) Wait(ctx context.Context) error { return t.book().of.await(ctx, t.seq()) }
