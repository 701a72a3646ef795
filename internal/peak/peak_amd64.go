//go:build !purego

package peak

import (
	"golang.org/x/sys/cpu"

	"github.com/gofsdp/gofsdp/internal/kernel/gemm"
)

//go:generate go run ../kernel/gemm/asm -peak

// Kernels returns the fastest kernels of this machine: under true for bfloat16, under false for
// float32.
func Kernels() map[bool]Kernel {
	list := make(map[bool]Kernel)
	switch x := cpu.X86; {
	case x.HasAVX512F:
		list[false] = Kernel{"float32 FMA of AVX-512", 28 * 16 * 2, peakF32AVX512}
	case x.HasAVX2 && x.HasFMA:
		list[false] = Kernel{"float32 FMA of AVX2", 12 * 8 * 2, peakF32AVX2}
	}
	switch {
	case gemm.Tiles():
		list[true] = Kernel{"bfloat16 TDPBF16PS of AMX", 4 * 16 * 16 * 32 * 2, peakBF16AMX}
	case cpu.X86.HasAVX512BF16:
		list[true] = Kernel{"bfloat16 VDPBF16PS", 28 * 16 * 4, peakBF16AVX512BF16}
	}
	return list
}

func peakBF16AMX(n int, x float32)
func peakF32AVX512(n int, x float32)
func peakF32AVX2(n int, x float32)
func peakBF16AVX512BF16(n int, x float32)
