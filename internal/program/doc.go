// Package program is the step as data: what a rank gathers, computes, frees and reduces, in which
// order, decided before anything runs.
//
// A Model is the structure of a traced model: calls, the values between them, and the flat groups
// that their parameters belong to. Compile turns it into a Program, a straight line of operations
// that is the same on every rank; ranks compare its Hash before the first collective. Plan adds the
// buffers: when each is needed first and last, for the batch shapes of one rank.
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
// and if the shards have replicas, the sum over them follows one computation after that over the
// shards:
//
//	free h.1 · drain h.3 · sync h.2 · reduce h.1 · wait h.0 · backward h.0 ·
//	free h.0 · drain h.2 · sync h.1 · …
//
// # What the list says
//
// Every property of sharded training is a property of this list:
//
//	overlap                     the distance from gather to wait, and from reduce to drain
//	Options.Prefetch            gathers stand earlier
//	Options.InFlight            gathers stand later: collectives under way keep to a number of bytes
//	Options.Eval                the forward half
//	Options.NoSync              reductions are left out: gradients accumulate in full
//	Hold Keep (ZeRO-2, roots)   frees between forward and backward are left out
//	Hold Always (DDP)           gathers are left out; the reduction is one all-reduce
//	Replicas (hybrid sharding)  a sync stands between reduce and drain
//	Frozen                      no reduction; no backward before the first trained parameter
//	Options.Reads               no gather for a backward that does not read the parameters
//
// None of them changes the order of computations and reductions, so no sum is taken in another
// order. The window of a computation is what the stages up to Prefetch after its own read, a stage
// being a run of computations that read the same units. What is in the window is gathered and what
// has left it is freed before anything else is gathered: never more than Prefetch+1 stages are
// resident, besides groups that are kept.
//
// # How much it communicates
//
// The collectives of a pass over a chain of n units, each one call, between the first and the last
// call of a root unit that is kept, with prefetch depth p. At the turn from forward to backward the
// last units are still in the window and need not be gathered again: the last one always, and one
// more for every second stage of prefetch.
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
// Of a group of B bytes that travel, over S shards and R replicas, a rank sends B·(S-1)/S in an
// all-gather and as much in a reduce-scatter, 2·B·(R-1)/R in an all-reduce of the whole and
// 2·(B/S)·(R-1)/R in one of the piece (Chan et al., Collective communication: theory, practice, and
// experience, 2007). So ZeRO-2 sends what DDP does, and ZeRO-3 at most half as much again
// (Rajbhandari et al., ZeRO, 2020).
//
// It is pure arithmetic: no clocks, no goroutines, no buffers, no Gorgonia.
package program
