// Package gpu is the engine.Device that computes on a CUDA device. Shards, buffers and the state of
// optimizers live in its memory; programs run there as package internal/gpu compiles them; NCCL
// carries the collectives of a pass.
//
//	device.go     Device: streams, memory that is counted, failure
//	frame.go      frame: a pass under way. Layout.go decides where its buffers lie, order.go which
//	              operation waits for which of the other stream, and check.go proves that again
//	transfer.go   what an operation on a group's parameters or gradients gives to the wire
//	shards.go     shards: this rank's part, with the memory of optimizers
//	vec.go        vector: memory of shards as optim.Vec. Updates.go makes one launch of many updates,
//	              staging.go reads and writes, norms.go measures
//	trace.go      what those who trace are told of collectives
//	links.go      link: the communicator of a group of ranks, and the watch over all of them
//
// # Streams
//
// Everything runs in one of two streams, in the order in which it was given. Calls run in work, and
// so does what an optimizer or a reader of shards asks for. Collectives of a pass, with the rounding
// before and after them, run in wire. Inside of a pass an operation waits for those of the other
// stream that touch the same memory, and for nothing else. Where a pass begins, wire waits for
// all that work was given before; where it ends, work waits for wire. So what is not part of a pass runs
// in work alone and needs no further order.
//
// The host waits for numbers and for what the user reads, and for nothing else.
package gpu
