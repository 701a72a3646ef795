//go:build amd64 && !purego

package gemm

import "golang.org/x/sys/cpu"

//go:generate go run ./asm

// supported lists the instruction sets this machine has, best first.
func supported() []isa {
	var sets []isa
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW {
		sets = append(sets, avx512())
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		sets = append(sets, avx2())
	}
	return append(sets, portable())
}

func avx512() isa {
	return isa{
		"avx512",
		engine[float32, float32]{
			mr: 14, nr: 32, kc: 384, nc: 384, lanes: 16, quad: 4, pair: 1, steps: 1, inPlace: true,
			mul: mulF32AVX512, transpose: transposeF32AVX512, interleave: interleaveF32AVX512, gather: gather[float32],
		},
		engine[float64, float64]{
			mr: 14, nr: 16, kc: 256, nc: 384, lanes: 8, quad: 2, pair: 1, steps: 1, inPlace: true,
			mul: mulF64AVX512, transpose: transposeF64AVX512, interleave: interleaveF64AVX512, gather: gather[float64],
		},
		portable().bf16,
	}
}

func avx2() isa {
	return isa{
		"avx2",
		engine[float32, float32]{
			mr: 6, nr: 16, kc: 384, nc: 384, lanes: 8, quad: 4, pair: 1, steps: 1, inPlace: true,
			mul: mulF32AVX2, transpose: transposeF32AVX2, interleave: interleaveF32AVX2, gather: gather[float32],
		},
		engine[float64, float64]{
			mr: 6, nr: 8, kc: 256, nc: 384, lanes: 4, quad: 2, pair: 1, steps: 1, inPlace: true,
			mul: mulF64AVX2, transpose: transposeF64AVX2, interleave: interleaveF64AVX2, gather: gather[float64],
		},
		portable().bf16,
	}
}

// The routines below are in the generated assembly; engine says what they do.

func mulF32AVX512(t *tile[float32])
func mulF64AVX512(t *tile[float64])
func mulF32AVX2(t *tile[float32])
func mulF64AVX2(t *tile[float64])
func transposeF32AVX512(dst, src []float32, ld, rows, k, width int)
func transposeF64AVX512(dst, src []float64, ld, rows, k, width int)
func transposeF32AVX2(dst, src []float32, ld, rows, k, width int)
func transposeF64AVX2(dst, src []float64, ld, rows, k, width int)
func interleaveF32AVX512(dst, src []float32, ld, rows, k, width int)
func interleaveF64AVX512(dst, src []float64, ld, rows, k, width int)
func interleaveF32AVX2(dst, src []float32, ld, rows, k, width int)
func interleaveF64AVX2(dst, src []float64, ld, rows, k, width int)
