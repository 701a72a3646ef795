package transport

import (
	"context"
	"errors"
)

// Base is the part of a [Group] that is the same over every transport: it makes
// the [Call] of each method. Handles embed it and add Close.
type Base struct {
	issuer     Issuer
	name       string
	rank, size int
}

// NewBase returns the Base of rank rank of size in the group of the given name.
func NewBase(i Issuer, name string, rank, size int) Base { return Base{i, name, rank, size} }

// Issuer is the part of a handle that differs between transports: how it issues calls, waits for
// them and gives them up. Base calls it from any goroutine and does not validate calls: Start and
// Perform do, with [Call.Check] for example.
type Issuer interface {
	// Start issues c without blocking and returns its Work, or [Refused] if c cannot be issued.
	Start(c Call) Work
	// Perform issues c, waits for it, and returns its number in the group.
	Perform(ctx context.Context, c Call) (seq uint64, err error)
	// Form makes the group of the given ranks, this one among them, that split seq has
	// formed under color.
	Form(ctx context.Context, seq uint64, color int, ranks []int) (Group, error)
	// AbortWith fails the group with err, which blames this rank.
	AbortWith(err error)
}

// Name returns the name of the group.
func (f *Base) Name() string { return f.name }

// Rank implements [Group].
func (f *Base) Rank() int { return f.rank }

// Size implements [Group].
func (f *Base) Size() int { return f.size }

// AllGather implements [Group].
func (f *Base) AllGather(dst, src Buffer) Work {
	return f.issuer.Start(Call{Kind: KindAllGather, Dst: dst, Src: src})
}

// ReduceScatter implements [Group].
func (f *Base) ReduceScatter(dst, src Buffer, op Op) Work {
	return f.issuer.Start(Call{Kind: KindReduceScatter, Op: op, Dst: dst, Src: src})
}

// AllReduce implements [Group].
func (f *Base) AllReduce(buf Buffer, op Op) Work {
	return f.issuer.Start(Call{Kind: KindAllReduce, Op: op, Dst: buf, Src: buf})
}

// Broadcast implements [Group].
func (f *Base) Broadcast(buf Buffer, root int) Work {
	return f.issuer.Start(Call{Kind: KindBroadcast, Root: root, Dst: buf, Src: buf})
}

// Gather implements [Group].
func (f *Base) Gather(dst, src Buffer, counts []int, root int) Work {
	return f.issuer.Start(gather(dst, src, counts, root, f.rank))
}

// AllToAll implements [Group].
func (f *Base) AllToAll(dst, src Buffer) Work {
	return f.issuer.Start(Call{Kind: KindAllToAll, Dst: dst, Src: src})
}

// Barrier implements [Group].
func (f *Base) Barrier(ctx context.Context) error {
	_, err := f.issuer.Perform(ctx, Call{Kind: KindBarrier})
	return err
}

// Split implements [Group].
func (f *Base) Split(ctx context.Context, color, key int) (Group, error) {
	pairs := make([]int64, 2*f.size)
	mine := []int64{int64(color), int64(key)}
	seq, err := f.issuer.Perform(ctx, Call{Kind: KindSplit, Dst: Of(pairs), Src: Of(mine)})
	if err != nil || color < 0 {
		return nil, err
	}
	return f.issuer.Form(ctx, seq, color, splitRanks(pairs, color))
}

// Abort implements [Group].
func (f *Base) Abort(err error) {
	if err == nil {
		err = errors.New("aborted")
	}
	f.issuer.AbortWith(f.Blame(err))
}

// Blame returns the *RankError of this group that names this rank and wraps err.
func (f *Base) Blame(err error) error { return &RankError{f.name, f.rank, err} }

// errClosed is the failure of a group that this rank has closed.
func (f *Base) errClosed() error { return f.Blame(ErrClosed) }

// Refused returns the Work of a call that could not be issued because of err.
func Refused(err error) Work { return failed{err} }

// failed is the Work of a call that could not be issued.
type failed struct{ err error }

func (f failed) Wait(context.Context) error { return f.err }
