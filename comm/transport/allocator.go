package transport

// Allocator is implemented by groups whose ranks can reach each other's memory
// if it comes from here: the group then moves every byte once, straight from the
// source on one rank to the destination on another, whichever of them has time.
// Other memory works as well; it is copied once more.
//
//	if a, ok := g.(comm.Allocator); ok {
//		shard, err = a.Alloc(4 * n)
//	}
//
// Groups that were split from each other share one memory: what one has
// allocated all may use, and any may free.
type Allocator interface {
	// Alloc returns n bytes, zeroed and aligned to 64 bytes at least.
	Alloc(n int) ([]byte, error)
	// Free gives back what Alloc returned; to do so twice is an error. No
	// operation may be using it. Memory stays valid when groups are closed, until
	// it is freed; afterwards it may be gone, and touching it end the process.
	Free(b []byte) error
}

// Stager is implemented by groups whose sums need memory of the group's own.
type Stager interface {
	// Staging returns the bytes that the group keeps on this rank once it has summed
	// buffers by ReduceScatter that leave n elements of type d on each rank, or by
	// AllReduce Size*n elements. It communicates nothing.
	Staging(d DType, n int) int
}
