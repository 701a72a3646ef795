// Package plan predicts the time and the memory of a training step before anything runs, without
// the machines that will run it.
//
// The schedule of a step is data. Package fsdp compiles it, and fsdp.Planner returns it in Plan.Pass as
// a [Pass]: the schedule with the cost of each operation. [Pass.Time] plays it on a [Cluster], on
// two streams as a GPU does:
//
//	compute         gather waits │ forward blocks.0 │ forward blocks.1 │ …
//	communication   gather blocks.1 │ gather blocks.2 │ …
//
// A matrix product takes as long as its tiles take on the multiprocessors. Attention and other
// operations have their own rates. Operations that move bytes are bound by the memory. A collective
// takes a latency for each rank of its ring, and the time of its bytes on the slowest link. The
// time that the computation waits for communication is the union of those intervals, not their sum.
//
// The memory in use is known for each operation, by class ([Op].Live) and by group and call
// ([Pass.Holders]), and in the course of a step ([Pass.Samples]). [Pass.Fits] compares it with a
// limit. Fits of fsdp.Planner also says how much each change would save.
//
// Ranks of a host without GPUs share its cores, which also move the bytes of collectives. A Cluster
// of such hosts has a [Rate] for each operation; "fsdpplan -calibrate" measures them. A Cluster of
// GPUs may have some too; "make gpu-check" measures them, see internal/workshop/gpucheck.
//
// The package is pure: it reads and writes no files, has no clock and starts nothing. It does not
// need package fsdp.
//
// # Limits
//
// The constants of a Cluster were measured, with the software that ran on it. Its comments name the
// sources. The model leaves out allocators that run out of memory, stragglers, late data and other
// jobs on the network. Above 85 % of a GPU's memory, the speed of a run cannot be predicted. "go
// test ./fsdp/plan -run Published -v" prints predictions next to published runs.
package plan
