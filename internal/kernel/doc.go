// Package kernel holds the fused host kernels of transformer training: linear layers, norms,
// activations, attention, embedding, cross-entropy, each with its gradient.
//
// A kernel is a pure function over slices the caller owns, generic over float32 and float64. It
// allocates nothing, starts no goroutine, keeps no reference, and writes every element of its
// results, so results may start out as garbage. Linear layers, attention and embeddings take bfloat16
// too, see [Element]; the others have a counterpart in package bf16.
//
// A kernel runs on the core of its caller. A rank that has several calls it on each of them, by a
// [Team]: those that take a [Context] compute their share then, and the others are called for ranges
// of elements or rows.
//
// # Conventions
//
// Matrices are dense and row-major, and a slice is exactly as long as its shape says; [Attention],
// which reads packed projections in place, is the one with strides. Shapes are written [rows,
// columns]; n is the number of rows, that is of tokens. Gradients of a value v are called dv. The
// gradients of a linear layer's and an embedding's parameters take acc: true adds to what the
// buffer holds (gradient accumulation, tied weights), false overwrites it.
//
// Results may not overlap inputs, except where a comment allows it.
//
// # What is saved for backward
//
// Kernels save row statistics, never matrices: the mean and reciprocal deviation of a norm, the
// log-sum-exp of a softmax. Backward recomputes the rest from the inputs. Attention in particular
// keeps one block of queries by all keys, per call and not per head:
//
//	          keys ──►                     forward, for each block of queries
//	        ┌───────────────┐                S = scale·Q·Kᵀ + bias      gemm
//	queries │▓▓▓▒           │                P = softmax(S), save lse   one pass over S
//	   │    │▓▓▓▓▓▓▒        │                O = P·V                    gemm
//	   ▼    │▓▓▓▓▓▓▓▓▓▒     │
//	        │▓▓▓▓▓▓▓▓▓▓▓▓▒  │              ▓ multiplied  ▒ multiplied, then set to zero
//	        └───────────────┘              blank: skipped (causal)
//
// This is the memory scheme of FlashAttention (Dao et al. 2022, https://arxiv.org/abs/2205.14135)
// without its inner tiling over keys: on a CPU a block of whole rows fits the level-two cache.
//
// # Determinism and errors
//
// The same inputs on the same instruction set give the same bits, for any number of threads. NaN and infinity propagate. Bad
// data (an index or target out of range) is an error that names position and value (the caller adds
// the operation), and then nothing was written. Bad shapes are mistakes of the calling package and
// panic.
package kernel
