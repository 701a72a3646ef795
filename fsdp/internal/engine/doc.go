// Package engine runs the passes of a sharded model. An [Engine] compiles a pass for the shapes of
// a batch, runs it through its schedule, and keeps the data that lasts from one pass to the next. A
// [Device] below it hides the difference between a host and an accelerator: it owns the memory, and
// executes the operations that the Engine issues one after the other.
//
//	Compiled   a pass for one set of shapes: plan, programs of the calls, places of operands
//	Pass       a pass under way
//	Device     allocates shards and buffers; opens a Frame for a pass
//	Shards     this rank's part of parameters and gradients, and of an optimizer's state
//	Frame      the buffers of a pass, and one method for each kind of operation
//	Host       the Device that computes with the processor
//
// # Who owns a buffer
//
// Shards belong to the Device from NewShards to Free. No other code touches their memory: others
// see them as [optim.Vec], which lends elements for one call. Buffers of a pass belong to its
// Frame, which allocates and frees them according to the plan. A buffer that a collective reads or
// writes is the group's until the operation that waits for it: Wait, Sync or Drain.
//
// # After a failure
//
// A pass that fails does not free its buffers: collectives may still be in flight and write there,
// on this rank or, in shared memory, on others. The Engine keeps the pass until Close. Close waits
// for all operations in flight, which end since the groups have failed, and only then frees the
// memory.
//
// # Passes without a batch
//
// A rank that has no batch runs the same collectives in the same order, and computes nothing: its
// pass is compiled from the schedule alone, with no call bound to anything. It contributes zeros,
// or the gradients left by passes inside NoSync. The needs of a training pass become known only
// when its calls are compiled for a batch, see [Needs]: a rank that has a batch sends them.
//
// An Engine belongs to one goroutine.
package engine
