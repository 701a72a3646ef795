//go:build amd64 && !purego

package gemm

import (
	"slices"

	"golang.org/x/sys/cpu"

	"github.com/gofsdp/gofsdp/internal/half"
)

//go:generate go run ./asm

// supported lists the instruction sets of this machine, best first. avx512bf16 and avx512 multiply
// bfloat16 to the same bits. VDPBF16PS does two multiply-adds in place of one in float32. AMD's
// processors run it at the same rate as the float32 instruction. Intel's run it at half the rate
// and one after the other, so widened factors are 1.4 to 1.5× faster there.
func supported() []isa {
	var sets []isa
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW {
		if cpu.X86.HasAVX512BF16 && cpu.X86.HasAMXBF16 && cpu.X86.HasAMXTile && tilesAllowed() == nil {
			sets = append(sets, amx())
		}
		wide := []isa{avx512()}
		if cpu.X86.HasAVX512BF16 {
			wide = []isa{avx512bf16(), avx512()}
			if vendor() == "GenuineIntel" {
				slices.Reverse(wide)
			}
		}
		sets = append(sets, wide...)
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		sets = append(sets, avx2())
	}
	return append(sets, portable())
}

// vendor returns the vendor string of the processor.
func vendor() string {
	var name [12]byte
	cpuidVendor(&name)
	return string(name[:])
}

// cpuidVendor executes CPUID for leaf 0.
func cpuidVendor(name *[12]byte)

// avx512bf16 differs from avx512 in products of bfloat16.
func avx512bf16() isa {
	set := avx512()
	set.name = "avx512bf16"
	set.bf16 = engine[half.BFloat16, float32]{
		mr: 14, nr: 32, kc: 768, nc: 384, lanes: 16, across: 32, quad: 8, pair: 2, steps: 1, inPlace: true,
		mul: mulBF16AVX512BF16, transpose: transposeBF16AVX512BF16, interleave: interleaveBF16AVX512BF16,
		gather: gatherPairs, rounds: true,
	}
	return set
}

// amx differs from avx512bf16 in products of bfloat16.
func amx() isa {
	set := avx512bf16()
	set.name = "amx"
	tiles := tileEngine(mulBF16AMX)
	tiles.quad, tiles.transpose, tiles.interleave = tiles.pair, set.bf16.transpose, set.bf16.interleave
	tiles.uncross = uncrossAVX512
	set.bf16 = tiles
	return set
}

// uncrossAVX512 is [uncross].
func uncrossAVX512(dst, src []float32, width, pairs, rows, ld int) {
	for p := 0; p < pairs; p += tilePairs {
		transposeF32AVX512(dst[p:], src[p*width:], width, tilePairs, (rows+3)&^3, ld)
	}
}

func avx512() isa {
	return isa{
		"avx512",
		engine[float32, float32]{
			mr: 14, nr: 32, kc: 384, nc: 384, lanes: 16, quad: 4, pair: 1, steps: 1, inPlace: true, taps: true,
			mul: mulF32AVX512, transpose: transposeF32AVX512, interleave: interleaveF32AVX512, gather: gather[float32],
		},
		engine[float64, float64]{
			mr: 14, nr: 16, kc: 256, nc: 384, lanes: 8, quad: 2, pair: 1, steps: 1, inPlace: true, taps: true,
			mul: mulF64AVX512, transpose: transposeF64AVX512, interleave: interleaveF64AVX512, gather: gather[float64],
		},
		engine[half.BFloat16, float32]{
			mr: 14, nr: 32, kc: 768, nc: 192, lanes: 16, quad: 8, pair: 2, steps: 2,
			mul: mulBF16AVX512, transpose: transposeBF16AVX512, interleave: interleaveBF16AVX512, gather: gatherWide,
		},
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
		engine[half.BFloat16, float32]{
			mr: 6, nr: 16, kc: 768, nc: 192, lanes: 8, quad: 8, pair: 2, steps: 2,
			mul: mulBF16AVX2, transpose: transposeBF16AVX2, interleave: interleaveBF16, gather: gatherWide,
		},
	}
}

// interleaveBF16 calls interleaveBF16AVX2, which reads 8 elements of every row, for as long as 8
// remain.
func interleaveBF16(dst []float32, src []half.BFloat16, ld, rows, k, width int) {
	whole := k
	if rows < 8 {
		whole = min(k, max(0, len(src)-8+ld)/ld) &^ 1
	}
	if whole > 0 {
		interleaveBF16AVX2(dst, src, ld, rows, whole, width)
	}
	if whole < k {
		gatherWide(dst[whole*width:], src[whole*ld:], 1, ld, rows, k-whole, width)
	}
}

// The routines below are in the generated assembly; engine documents them.

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
func mulBF16AMX(t *tile[float32])
func mulBF16AVX512BF16(t *tile[float32])
func mulBF16AVX512(t *tile[float32])
func mulBF16AVX2(t *tile[float32])
func transposeBF16AVX512BF16(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func transposeBF16AVX512(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func transposeBF16AVX2(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func interleaveBF16AVX512BF16(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func interleaveBF16AVX512(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func interleaveBF16AVX2(dst []float32, src []half.BFloat16, ld, rows, k, width int)
