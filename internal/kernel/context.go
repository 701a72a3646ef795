package kernel

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
)

// Float is the element type of every kernel.
type Float interface{ float32 | float64 }

// Element is the element type of linear layers, attention and embeddings.
type Element interface{ Float | half.BFloat16 }

// Context is one rank's workspace: the packing buffers of the matrix products. The zero value is
// ready; the buffers grow to a fixed maximum on first use. A Context is not safe for concurrent
// use.
type Context struct{ gemm gemm.Workspace }

// Bytes returns the memory the workspace holds now.
func (c *Context) Bytes() int { return c.gemm.Bytes() }

// MostBytes returns what a Context comes to hold at most for one element type.
func MostBytes[T Element]() int { return gemm.MostBytes[T]() }

// check panics unless a slice has the length its shape demands.
func check(kernel, name string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("kernel: %s: len(%s) is %d, want %d", kernel, name, got, want))
	}
}
