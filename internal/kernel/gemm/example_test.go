package gemm_test

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
)

// A linear layer: y [2, 2] = x [2, 3] wᵀ + bias, the weight stored as [out, in].
func ExampleGemmBias() {
	x := []float32{1, 2, 3, 4, 5, 6}
	w := []float32{1, 0, 0, 0, 1, 0}
	bias := []float32{10, 20}
	y := make([]float32, 4)
	var ws gemm.Workspace // one for each rank, kept from call to call
	gemm.GemmBias(&ws, false, true, 2, 2, 3, x, 3, w, 3, bias, y, 2)
	fmt.Println(y)
	// Output: [11 22 14 25]
}
