// Package kernel holds the fused host kernels of transformer training: linear layers, norms,
// activations, attention, embedding, cross-entropy, each with its gradient.
//
// A kernel is a pure function over slices that the caller owns, generic over float32 and float64.
// It allocates nothing, starts no goroutine, keeps no reference, and writes every element of its
// results, so the results may be uninitialised. Linear layers, attention and embeddings also take
// bfloat16, see [Element]; the others have a counterpart in package bf16.
//
// A kernel runs on the thread of its caller. A rank with several threads calls it on each of them
// through a [Team]. A kernel that takes a [Context] then computes its share; the others are called
// for ranges of elements or rows.
//
// # Conventions
//
// Matrices are dense and row-major, and a slice is exactly as long as its shape; only [Attention],
// which reads packed projections in place, has strides. Shapes are written [rows, columns]; n is
// the number of rows, which are tokens. The gradient of a value v is called dv. The gradients of
// the parameters of linear layers and embeddings take acc: true adds to the present contents
// (gradient accumulation, tied weights), false overwrites them.
//
// Results may not overlap inputs, unless a comment allows it.
//
// # Saved values
//
// Kernels save row statistics, never matrices: the mean and reciprocal deviation of a norm, the
// log-sum-exp of a softmax. Backward recomputes the rest from the inputs. Attention stores the
// scores of one block of queries and all keys, per call and not per head:
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
// The same inputs on the same instruction set give the same bits, for any number of threads. NaN
// and infinity propagate. Bad data (an index or target out of range) is an error that names
// position and value; the caller adds the operation. No result is written in that case. Bad shapes
// are bugs of the calling package and panic.
package kernel
