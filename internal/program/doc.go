// Package program is the step as data: it lists what a rank gathers, computes, frees and reduces,
// in order, before anything runs.
//
// A Model is the structure of a traced model: calls, the values between them, and the flat groups
// of their parameters. Compile converts it to a Program, a straight line of operations that is the
// same on every rank; ranks compare its Hash before the first collective. NewPlan adds the buffers:
// when each is allocated and freed, for the batch shapes of one rank.
//
//	Model ──Compile──▶ Program ──NewPlan──▶ Plan ──▶ run by package fsdp
//	                      │                  │
//	                   Verify, Hash       Peak, Traffic
//
// With one group per call and a prefetch depth of 1 the middle of a program reads
//
//	free h.0 · gather h.2 · wait h.1 · forward h.1 ·
//	free h.1 · gather h.3 · wait h.2 · forward h.2 · …
//	free h.2 · drain h.3 · reduce h.2 · gather h.0 · wait h.1 · backward h.1 ·
//	free h.1 · drain h.2 · reduce h.1 · …
//
// and if the shards have replicas, the sum over the replicas comes one computation after the sum
// over the shards:
//
//	free h.1 · drain h.3 · sync h.2 · reduce h.1 · wait h.0 · backward h.0 ·
//	free h.0 · drain h.2 · sync h.1 · …
//
// # Properties of the list
//
// Every property of sharded training is a property of this list:
//
//	overlap                     the distance from gather to wait, and from reduce to drain
//	Options.Prefetch            gathers come earlier
//	Options.InFlight            gathers come later: collectives under way stay below a number of bytes
//	Options.Eval                the forward half
//	Options.NoSync              no reductions: gradients accumulate in full
//	Hold Keep (ZeRO-2, roots)   no frees between forward and backward
//	Hold Always (DDP)           no gathers; the reduction is one all-reduce
//	Replicas (hybrid sharding)  a sync between reduce and drain
//	Frozen                      no reduction; no backward before the first trained parameter
//	Options.Reads               no gather for a backward that does not read the parameters
//
// None of them changes the order of computations and reductions, so no sum is computed in another
// order. A stage is a run of computations that read the same units. The window of a computation is
// the groups read by its own stage and by the next Prefetch stages. Groups in the window are
// gathered, and groups that have left it are freed before others are gathered. So at most
// Prefetch+1 stages are resident, plus the groups that are kept.
//
// # Communication
//
// The table counts the collectives of a pass over a chain of n units, each one call, between the
// first and the last call of a root unit that is kept, with prefetch depth p. At the turn from
// forward to backward the last units are still in the window and need not be gathered again: always
// the last unit, and one more for every second stage of prefetch.
//
//	                            all-gathers                     reduce-scatters  all-reduces
//	ZeRO-3                      1 + n + max(0, n-1-⌈p/2⌉)       n + 1            0
//	ZeRO-2                      1 + n                           n + 1            0
//	DDP                         0                               0                n + 1
//	hybrid sharding             as ZeRO-3 or ZeRO-2             n + 1            n + 1, of the pieces
//	k of the units frozen       as before                       n + 1 - k        as many, if hybrid
//	root and first k frozen     1 + n + max(0, n-k-1-⌈p/2⌉)     n - k            as many, if hybrid
//	evaluation                  1 + n                           0                0
//	NoSync                      as before                       0                0
//
// For a group of B bytes on the wire, over S shards and R replicas, a rank sends B·(S-1)/S in an
// all-gather and the same in a reduce-scatter. It sends 2·B·(R-1)/R in an all-reduce of the whole
// group and 2·(B/S)·(R-1)/R in an all-reduce of its piece (Chan et al., Collective communication:
// theory, practice, and experience, 2007). So ZeRO-2 sends as much as DDP, and ZeRO-3 at most 1.5×
// as much (Rajbhandari et al., ZeRO, 2020).
//
// The package is pure arithmetic: no clocks, no goroutines, no buffers, no Gorgonia.
package program
