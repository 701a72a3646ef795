package transport

import (
	"math/bits"
	"slices"

	"github.com/gofsdp/gofsdp/comm/internal/tree"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// even reports whether the tree over spans has the shape of the tree over as many ranks.
func even(spans []tree.Span) bool {
	n, last := spans[0].Ranks(), len(spans)-1
	for i, s := range spans {
		if s.Ranks() > n || s.Ranks() < n && i < last {
			return false
		}
	}
	return last == 0 || bits.OnesCount(uint(n)) == 1
}

const (
	// Elements that are widened, or summed along an uneven tree, at a time. Eight
	// sources and their sum are 18 KiB of float32, which the innermost cache holds.
	wideBlock = 512
	// Sources that are widened at a time: as many as TreeSum adds in one pass.
	wideSources = 8
)

// scratch is lists and blocks of memory that sums reuse.
type scratch[T float32 | float64] struct {
	list   [][]T
	blocks [][]T
}

// block returns the first n elements of block i.
func (s *scratch[T]) block(i, n int) []T {
	for len(s.blocks) <= i {
		s.blocks = append(s.blocks, make([]T, wideBlock))
	}
	return s.blocks[i][:n]
}

// sum sets acc to the canonical sum of srcs, which are sums of spans. It uses the blocks from
// number free on. load returns the elements of a source for acc, converted in the block of the
// given number if necessary.
func (s *scratch[T]) sum(acc []T, srcs []Buffer, spans []tree.Span, free int, load func(src Buffer, block int) []T) {
	if len(srcs) <= wideSources && even(spans) {
		s.list = s.list[:0]
		for i, src := range srcs {
			s.list = append(s.list, load(src, free+i))
		}
		vec.TreeSum(acc, s.list, 1)
		clear(s.list) // the memory is the caller's, do not keep it alive
		return
	}
	mid := tree.Span{Lo: spans[0].Lo, Hi: spans[len(spans)-1].Hi}.Middle()
	cut := slices.IndexFunc(spans, func(s tree.Span) bool { return s.Lo == mid })
	s.sum(acc, srcs[:cut], spans[:cut], free, load)
	right := s.block(free, len(acc))
	s.sum(right, srcs[cut:], spans[cut:], free+1, load)
	vec.Accumulate(acc, right)
}

// sumUneven writes the sum of srcs along an uneven tree, times scale, to dst. A block of every
// source is read before the block of dst is written, so dst may be any source.
func sumUneven[T float32 | float64](s *scratch[T], dst []T, srcs []Buffer, spans []tree.Span, scale T) {
	for lo := 0; lo < len(dst); lo += wideBlock {
		hi := min(lo+wideBlock, len(dst))
		acc := s.block(0, hi-lo)
		s.sum(acc, srcs, spans, 1, func(src Buffer, _ int) []T { return View[T](src)[lo:hi] })
		vec.ScaleTo(dst[lo:hi], scale, acc)
	}
}
