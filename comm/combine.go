package comm

import (
	"fmt"
	"sync"
)

// Reduce writes the reduction of srcs to dst, all of one element type and
// length, in the canonical order that the groups of this package use; dst may be
// one of srcs. Avg divides the sum by n, the number of ranks whose contributions
// srcs hold between them. It is for engines outside of this package.
func Reduce(dst Buffer, srcs []Buffer, op Op, n int) error {
	for i, s := range srcs {
		if s.dtype != dst.dtype || s.len != dst.len {
			return fmt.Errorf("%w: reducing %v with source %d, %v", ErrInvalid, dst, i, s)
		}
	}
	if !dst.dtype.valid() || len(srcs) == 0 || op > Min || n < 1 || op == Avg && !dst.dtype.float() {
		return fmt.Errorf("%w: %v of %d sources of %d ranks to %v", ErrInvalid, op, len(srcs), n, dst)
	}
	r := reducers.Get().(*reducer)
	defer reducers.Put(r)
	r.srcs = append(r.srcs[:0], srcs...)
	r.reduceScaled(dst, op, n)
	clear(r.srcs)
	return nil
}

var reducers = sync.Pool{New: func() any { return new(reducer) }}
