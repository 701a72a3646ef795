// Package plan says how long a training step takes, and what is in memory meanwhile, before
// anything runs and without the machines that it is for.
//
// The schedule of a step is data: package fsdp compiles it, and [Pass] is that schedule with what
// each operation costs, as fsdp.Dry returns it in Plan.Pass. [Pass.Time] plays it on a [Cluster],
// on two streams as a GPU does:
//
//	compute         gather waits │ forward blocks.0 │ forward blocks.1 │ …
//	communication   gather blocks.1 │ gather blocks.2 │ …
//
// A matrix product takes as long as its tiles do on the multiprocessors, attention and other
// operations have rates of their own, whatever moves bytes is bound by the memory, and a collective
// takes a latency for each rank of its ring and its bytes over the slowest link. What the
// computation waits for communication is the union of those intervals, not a sum.
//
// What is held in memory is known for each operation, by class ([Op].Live) and by group and call
// ([Pass.Holders]), and in the course of a step ([Pass.Samples]). [Pass.Fits] compares it with what
// there is; fsdp.Fits also says how much which change would save.
//
// Ranks of a host without GPUs share its cores, which also move the bytes of collectives. A Cluster
// of such hosts has a [Rate] for each operation; "fsdpplan -calibrate" measures them. A Cluster of
// GPUs may have some too; "make gpu-check" measures them, see internal/workshop/gpucheck.
//
// The package is pure: it reads and writes no file, has no clock and starts nothing. It does not
// need package fsdp.
//
// # What it knows, and what not
//
// The constants of a Cluster are measured ones, of the software that ran on it: its comments say by
// whom and where. Allocators that run out of memory, stragglers, data that comes late and other
// jobs on the network are not modelled: above 85 % of a GPU's memory the speed of a run cannot be
// told. "go test ./fsdp/plan -run Published -v" prints predictions beside published runs.
package plan
