package kernel

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// Float is the element type of every kernel.
type Float interface{ float32 | float64 }

// Element is the element type of linear layers, attention and embeddings.
type Element interface{ Float | half.BFloat16 }

// Context is one thread's workspace: the packing buffers of the matrix products. The buffers grow to
// a fixed maximum on first use. A Context is not safe for concurrent use.
//
// It also says which part of a kernel the thread computes. Kernels that take one can be split: called
// once for every part, with equal arguments and at the same time, they compute the whole, and every
// element as if they were not. With the zero value, a kernel computes all.
type Context struct {
	gemm        gemm.Workspace
	part, parts int // parts 0 means 1
}

// Part returns which part of a kernel the thread computes, counted from 0.
func (c *Context) Part() int { return c.part }

// Share returns the part that the thread computes of n rows or other things: the half-open range
// begins at a multiple of unit, and the parts differ by one unit at most.
func (c *Context) Share(n, unit int) (lo, hi int) {
	units, parts := (n+unit-1)/unit, max(1, c.parts)
	return min(n, units*c.part/parts*unit), min(n, units*(c.part+1)/parts*unit)
}

// Bytes returns the memory the workspace holds now.
func (c *Context) Bytes() int { return c.gemm.Bytes() }

// MostBytes returns what a Context comes to hold at most for one element type.
func MostBytes[T Element]() int { return gemm.MostBytes[T]() }

// NativeBFloat16 tells whether the processor multiplies bfloat16. Products on others widen it to
// float32, and take a little longer than those of float32.
func NativeBFloat16() bool { return gemm.NativeBFloat16() }

// InstructionSets names the sets of instructions that kernels may run on. Two of them give different bits.
// The last stands for those that have no name.
var InstructionSets = []string{
	"AVX-512", "AVX-512 with AMX", "AVX2", "NEON", "NEON with BFMMLA", "plain Go on amd64", "plain Go on arm64", "plain Go",
}

// InstructionSet returns the index in [InstructionSets] of the set that kernels use on this machine. bfloat16
// includes the products of bfloat16, which may use another one: see package gemm.
func InstructionSet(bfloat16 bool) int {
	name := vec.InstructionSet()
	if products := gemm.InstructionSet(); bfloat16 && (products == "amx" || products == "neonbf16") {
		name = products
	}
	name = map[string]string{
		"avx512": "AVX-512", "amx": "AVX-512 with AMX", "avx2": "AVX2", "neon": "NEON", "neonbf16": "NEON with BFMMLA",
		"portable": "plain Go on " + runtime.GOARCH,
	}[name]
	if i := slices.Index(InstructionSets, name); i >= 0 {
		return i
	}
	return len(InstructionSets) - 1
}

// check panics unless a slice has the length its shape demands.
func check(kernel, name string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("kernel: %s: len(%s) is %d, want %d", kernel, name, got, want))
	}
}
