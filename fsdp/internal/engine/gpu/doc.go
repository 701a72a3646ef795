// Package gpu is the engine.Device that computes on a CUDA device. Shards, buffers and the state of
// optimizers live in the memory of the device, package internal/gpu compiles the programs, and NCCL
// runs the collectives of a pass.
//
//	device.go     Device: streams, counted memory, failure
//	frame.go      frame: a pass under way. Layout.go decides the offsets of its buffers, order.go
//	              decides the waits between streams, and check.go proves the order
//	transfer.go   the kernels and collectives for a group's parameters and gradients
//	tree.go       sums over ranks in place of NCCL's, if there are virtual ranks
//	shards.go     shards: this rank's part, with the memory of optimizers
//	vec.go        vector: memory of shards as optim.Vec. Updates.go merges many updates into one
//	              launch, deferred.go merges changes of gradients into other operations, copies.go
//	              keeps copies of parameters in bfloat16, staging.go reads and writes vectors, norms.go
//	              computes norms, muon.go the update of matrices
//	trace.go      reports of collectives for observers
//	links.go      link: the communicator of a group, and the goroutine that watches all of them
//
// # Streams
//
// Every operation runs in one of three streams, in the order in which it was issued. Calls,
// optimizers and reads of shards run in the stream work. The collectives of a pass run in the
// stream wire, with the rounding before and after them. Wire sums over the ranks of a host. The
// stream replicas then adds these sums over the hosts, so that no gather waits for the network
// between them. Inside a pass, an operation waits only for those operations of other streams that
// touch the same memory. At the beginning of a pass, wire waits for all earlier operations of work.
// At its end, work waits for wire and replicas. Operations outside of passes therefore run in work
// alone, and need no further order.
//
// The host waits only for numbers and for data that the user reads.
package gpu
