// Package vec holds the row and element-wise primitives of training: sums, activations, softmax,
// norms, optimizer steps, dropout. Go's compiler does not vectorise loops, so each float32
// primitive runs as AVX-512 or AVX2 assembly on amd64 and NEON on arm64. The float64 primitives do
// so where plain arithmetic is enough, and call package math otherwise. NEON has run only under
// emulation: its results are right there, and it has not been timed.
//
// # Shape of the package
//
// An exported function checks its arguments, cuts long slices into pieces and calls a kernel
// through the table of the active instruction set:
//
//	Add ──► kernels[float32].add ──┬─► addF32AVX512   avx512_amd64.s ┐
//	                               ├─► addF32AVX2     avx2_amd64.s   ├ written by go generate
//	                               ├─► addF32NEON     neon_arm64.s   ┘ by the program in asm/
//	                               └─► addGo          portable*.go
//
// The portable kernels are one plain loop each. They define every primitive: the assembly is tested
// against them, and they run where there is no assembly (other architectures, old processors, the
// build tag purego).
//
// # Rules
//
//   - All slices of a call have the same length unless a comment says otherwise. Any other use
//     panics, since it can only be a mistake inside this module. Length 0 is legal. No alignment is
//     needed; 64 bytes is fastest.
//   - A destination may be one of the sources of the same call unless a comment says otherwise.
//     Slices that overlap in another way give undefined values.
//   - The same input and the same instruction set give the same bits. Two instruction sets differ by
//     rounding, except in [Squares]. An element-wise result depends only on its own inputs, never on
//     its position, so a vector may be cut anywhere. The order of a reduction depends only on the
//     length; the result of [Squares] does not depend on any order.
//   - NaN and Inf propagate: a NaN in an input is a NaN in every result that depends on it, unless
//     a comment says otherwise.
//   - Calls allocate nothing (but see [TreeSum]), start no goroutines, and are safe to use
//     concurrently on disjoint memory.
package vec

// Float is an element type.
type Float interface{ float32 | float64 }
