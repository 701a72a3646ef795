package gemm

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/half"
)

// isa is an instruction set: its name, and an engine for each element type.
type isa struct {
	name string
	f32  engine[float32, float32]
	f64  engine[float64, float64]
	bf16 engine[half.BFloat16, float32]
}

// active is the instruction set of products: the best that this machine has. Only tests change it.
var active = supported()[0]

// InstructionSet returns the name of the instruction set of products: amx, avx512bf16, avx512, avx2, neonbf16, neon or go.
func InstructionSet() string { return active.name }

// NativeBFloat16 reports whether the processor multiplies bfloat16. Other processors widen it to
// float32.
func NativeBFloat16() bool { return active.bf16.steps < active.bf16.pair }

// engineOf returns the active engine for elements of type T, whose sums are of type P.
func engineOf[T Element, P Float]() *engine[T, P] {
	if e, ok := any(&active.f32).(*engine[T, P]); ok {
		return e
	}
	if e, ok := any(&active.f64).(*engine[T, P]); ok {
		return e
	}
	if e, ok := any(&active.bf16).(*engine[T, P]); ok {
		return e
	}
	panic(fmt.Sprintf("gemm: products of %T are not summed in %T", *new(T), *new(P)))
}

// sizesOf returns the register tile for elements of type T, and the number of columns of a block.
func sizesOf[T Element]() (mr, nr, nc int) {
	switch any(*new(T)).(type) {
	case float32:
		return active.f32.mr, active.f32.nr, active.f32.nc
	case float64:
		return active.f64.mr, active.f64.nr, active.f64.nc
	default:
		return active.bf16.mr, active.bf16.nr, active.bf16.nc
	}
}
