package monitor

import (
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/peak"
)

// MeasurePeak returns how many floating-point operations a second so many cores do at most on products
// of a type, for Config.Peak of a rank that computes on them: the fused multiply-adds of a loop that
// does nothing else. It takes some 20 ms. Where the processor does not multiply bfloat16 it is that of
// float32. It is 0 where this package cannot measure it: for float64, and on other processors than
// x86-64 with AVX2. Measure on all ranks of a host at once, as they train at once.
func MeasurePeak(cores int, compute fsdp.DType) float64 {
	kernels := peak.Kernels()
	kernel, ok := kernels[compute == fsdp.BFloat16]
	if !ok && compute == fsdp.BFloat16 {
		kernel, ok = kernels[false]
	}
	if !ok || compute == fsdp.Float64 || cores < 1 {
		return 0
	}
	return kernel.Rate(cores) * float64(cores)
}
