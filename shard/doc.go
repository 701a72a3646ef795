// Package shard is the arithmetic of fully sharded parameters: where every element of every named
// parameter is when a group of parameters is cut over the ranks of a process group. It does no I/O,
// starts no goroutine and does not depend on models.
//
// # Layout
//
// A [Layout] puts the parameters of one group end to end in a flat buffer. Each starts at a
// multiple of Align elements, and the buffer is padded at the end until it cuts into World equal
// shards whose length is a multiple of Align too. Equal shards are what all-gather and
// reduce-scatter want; the alignment is explained at [DefaultAlign]. Two parameters, w of shape [3,
// 3] and b of shape [2], over two ranks with Align 4 (dots are padding):
//
//	        0               4               8               12              16
//	flat    | w0  w1  w2  w3  w4  w5  w6  w7| w8  .   .   .   b0  b1  .   . |
//	        |------------ rank 0 -----------|------------ rank 1 -----------|
//	at      0               4               0               4
//
// Rank 0 owns [Segment] w[0:8] at 0. Rank 1 owns w[8:9] at 0 and b[0:2] at 4. A cut may fall inside
// a parameter, a parameter may span many ranks, and a rank may own nothing but padding.
//
// A [Cut] keeps parameters whole, cuts them at multiples of rows or blocks, or gives each rank a
// part by its weight. Shards still have equal lengths, so a cut at stated places adds padding
// between parameters. With [Whole], w of the figure cannot be in two shards, so shards grow to 12
// elements: rank 0 owns w, rank 1 owns b.
//
// # Names, not flat indices
//
// Flat positions depend on the world size, the alignment and the grouping of parameters, so they
// have no meaning elsewhere. All code outside the communication path uses the [Interval]: elements
// [Offset, Offset+Len) of a named parameter in row-major order. Checkpoints, optimizers and error
// messages use it too, so state can move between world sizes and groupings.
//
// # What always holds
//
//   - Every element of every parameter is owned by exactly one rank, at exactly one place.
//   - World × ShardLen = Len, and ShardLen and every parameter offset are multiples of Align.
//   - Padding is in no Segment: its contents never reach a parameter.
//   - With one parameter and Align 1 the equal cut is PyTorch's: rank r holds [r·s, min(n, (r+1)·s)) with
//     s = ⌈n/World⌉.
//   - The same arguments give the same layout on every rank, so ranks need not exchange it.
//
// Layouts are immutable and safe for concurrent use.
package shard
