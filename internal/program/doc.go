// Package program is the step as data: what a rank gathers, computes, frees and reduces, in which order, decided before
// anything runs.
//
// A Model is the structure of a traced model: calls, the values between them, and the flat groups that their parameters
// belong to. Compile turns it into a Program, a straight line of operations that is the same on every rank; ranks compare
// its Hash before the first collective. Plan adds the buffers: when each is needed first and last, for the batch shapes
// of one rank.
//
//	Model ──Compile──▶ Program ──NewPlan──▶ Plan ──▶ run by package fsdp
//	                      │                  │
//	                   Verify, Hash       Peak, Traffic
//
// With one group per call and a prefetch depth of 1 the middle of a program reads
//
//	free h.0 · gather h.2 · wait h.1 · forward h.1 · free h.1 · gather h.3 · wait h.2 · forward h.2 · …
//	… · free h.2 · drain h.3 · reduce h.2 · gather h.0 · wait h.1 · backward h.1 · free h.1 · drain h.2 · reduce h.1 · …
//
// Every property of fully sharded training is a property of this list: prefetch is a gather that stands earlier,
// evaluation is the forward half, overlap is the distance between gather and wait and between reduce and drain. It is
// pure arithmetic: no clocks, no goroutines, no buffers, no Gorgonia.
package program
