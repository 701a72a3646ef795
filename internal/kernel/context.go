package kernel

import (
	"cmp"
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

// Context is one thread's workspace: the packing buffers of the matrix products. The buffers grow
// to a fixed maximum on first use. A Context is not safe for concurrent use.
//
// It also holds the part of a kernel that the thread computes. A kernel that takes a Context can be
// split: called at the same time for every part with equal arguments, it computes the whole result,
// and every element has the same bits as without splitting. With the zero value, a kernel computes
// everything.
type Context struct {
	gemm        gemm.Workspace
	part, parts int // parts 0 means 1
}

// Part returns the number of the part that the thread computes, counted from 0.
func (c *Context) Part() int { return c.part }

// Share returns the thread's part of n rows or other items. The half-open range begins at a
// multiple of unit, and the parts differ by at most one unit.
func (c *Context) Share(n, unit int) (lo, hi int) {
	units, parts := (n+unit-1)/unit, max(1, c.parts)
	return min(n, units*c.part/parts*unit), min(n, units*(c.part+1)/parts*unit)
}

// Bytes returns the memory the workspace holds now.
func (c *Context) Bytes() int { return c.gemm.Bytes() }

// MostBytes returns the largest memory of a Context for elements of type T and products of type Y.
func MostBytes[T, Y Element]() int { return gemm.MostBytes[T, Y]() }

// Products names the instructions that multiply float32, or bfloat16, on this machine.
func Products(bfloat16 bool) string {
	set := vec.InstructionSet()
	if bfloat16 {
		set = gemm.InstructionSet()
	}
	names := map[string]string{
		"avx512": "AVX-512", "avx512bf16": "AVX512_BF16", "amx": "AMX", "avx2": "AVX2", "neon": "NEON", "neonbf16": "BFMMLA",
	}
	return cmp.Or(names[set], "plain Go")
}

// NativeBFloat16 reports whether the processor multiplies bfloat16. On other processors products
// widen bfloat16 to float32, and take a little longer than float32 products.
func NativeBFloat16() bool { return gemm.NativeBFloat16() }

// InstructionSets names the instruction sets of the kernels. Results of two sets have different
// bits. The last entry stands for all sets without a name.
var InstructionSets = []string{
	"AVX-512", "AVX-512 with AMX", "AVX2", "NEON", "NEON with BFMMLA", "plain Go on amd64", "plain Go on arm64", "plain Go",
}

// InstructionSet returns the index in [InstructionSets] of the set that kernels use on this
// machine. With bfloat16 true, the index includes the set for bfloat16 products, which may differ:
// see package gemm.
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

// check panics unless a slice has the length of its shape.
func check(kernel, name string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("kernel: %s: len(%s) is %d, want %d", kernel, name, got, want))
	}
}
