package shard

import "fmt"

// Scatter fills the shard of one rank from whole parameters: full returns the elements of a parameter, row-major, and is
// called for those that the rank owns a piece of. Padding is set to the zero value of T. It returns an error, before
// anything is written, if the shard or a parameter has the wrong length.
func Scatter[T any](l *Layout, rank int, shard []T, full func(name string) []T) error {
	pieces, err := match("scatter", l, rank, shard, full)
	if err != nil {
		return err
	}
	clear(shard)
	for i, s := range l.Segments(rank) {
		copy(shard[s.At:], pieces[i])
	}
	return nil
}

// Gather is the reverse of [Scatter]: it copies what one rank owns into whole parameters and touches nothing else of
// them. After Gather of every rank the parameters are complete.
func Gather[T any](l *Layout, rank int, shard []T, full func(name string) []T) error {
	pieces, err := match("gather", l, rank, shard, full)
	if err != nil {
		return err
	}
	for i, s := range l.Segments(rank) {
		copy(pieces[i], shard[s.At:])
	}
	return nil
}

// match returns, for every segment of the rank, the piece of the whole parameter that it corresponds to.
func match[T any](verb string, l *Layout, rank int, shard []T, full func(name string) []T) ([][]T, error) {
	if rank < 0 || rank >= l.world {
		return nil, fmt.Errorf("shard: %s: rank %d of a layout over %d ranks", verb, rank, l.world)
	}
	if len(shard) != l.shardLen {
		return nil, fmt.Errorf("shard: %s: rank %d: shard has %d elements, layout says %d", verb, rank, len(shard), l.shardLen)
	}
	segs := l.Segments(rank)
	pieces := make([][]T, len(segs))
	for i, s := range segs {
		p, whole := l.params[s.Param], full(s.Name)
		if len(whole) != p.Len() {
			return nil, fmt.Errorf("shard: %s: rank %d: parameter %q has %d elements, shape %v says %d",
				verb, rank, s.Name, len(whole), p.Shape, p.Len())
		}
		pieces[i] = whole[s.Offset : s.Offset+s.Len]
	}
	return pieces, nil
}

// Copy carries out moves inside one process: from and to return the shard of a rank in an old and in a new layout. Old
// and new shards must not overlap; padding of the new ones is left as it is. It returns an error if a move does not fit
// its shards, which may then be partly written.
func Copy[T any](moves []Move, from, to func(layout, rank int) []T) error {
	for _, m := range moves {
		src, dst := from(m.From.Layout, m.From.Rank), to(m.To.Layout, m.To.Rank)
		if !within(m.From.At, m.Len, len(src)) || !within(m.To.At, m.Len, len(dst)) {
			return fmt.Errorf("shard: copy %v from rank %d to rank %d: not inside shards of %d and %d elements",
				m.Interval, m.From.Rank, m.To.Rank, len(src), len(dst))
		}
		copy(dst[m.To.At:m.To.At+m.Len], src[m.From.At:])
	}
	return nil
}

// within reports whether n elements from at on lie inside a shard of the given length.
func within(at, n, length int) bool {
	return at >= 0 && n >= 0 && at <= length-n
}
