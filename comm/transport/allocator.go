package transport

// Allocator is implemented by groups whose ranks can reach each other's memory if
// it comes from here. The group then moves every byte once, straight from the
// source on one rank to the destination on another, on whichever of them has
// time. Other memory works as well; it is copied once more.
//
//	if a, ok := g.(comm.Allocator); ok {
//		shard, err = a.Alloc(4 * n)
//	}
//
// Groups that were split from each other share one memory: all may use, and any
// may free, memory that one has allocated.
type Allocator interface {
	// Alloc returns n bytes, zeroed and aligned to 64 bytes at least.
	Alloc(n int) ([]byte, error)
	// Free releases memory from Alloc; freeing it twice is an error. No operation
	// may be using it. Memory stays valid when groups are closed, until it is
	// freed. Afterwards it may be gone, and access may end the process.
	Free(b []byte) error
}

// Stager is implemented by groups whose sums need memory of the group.
type Stager interface {
	// Staging returns the bytes that the group keeps on this rank after
	// ReduceScatters that leave n elements of type d on each rank, or AllReduces
	// of Size*n elements. It communicates nothing.
	Staging(d DType, n int) int
}
