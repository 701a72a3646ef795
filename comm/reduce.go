package comm

import "github.com/gofsdp/gofsdp/comm/internal/sums"

// Reduce writes the reduction of srcs to dst, all of one element type and
// length, in the canonical order that the groups of this package use; dst may be
// one of srcs. Avg divides the sum by n, the number of ranks whose contributions
// srcs hold between them. It is for transports outside of this package.
func Reduce(dst Buffer, srcs []Buffer, op Op, n int) error { return sums.Reduce(dst, srcs, op, n) }
