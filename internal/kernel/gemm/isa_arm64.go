//go:build arm64 && !purego

package gemm

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
)

// supported lists the instruction sets of this machine, best first.
func supported() []isa {
	if hasBF16() {
		return []isa{neonbf16(), neon(), portable()}
	}
	return []isa{neon(), portable()}
}

// neonbf16 differs from neon in products of bfloat16.
func neonbf16() isa {
	set := neon()
	set.name = "neonbf16"
	set.bf16 = engine[half.BFloat16, float32]{
		mr: 8, nr: 8, kc: 768, nc: 192, lanes: 8, quad: 8, pair: 4, steps: 2,
		mul: mulBF16NEONBF16, transpose: transposeBF16NEONBF16, interleave: interleaveFours, gather: gatherFours,
	}
	return set
}

// interleaveFours calls interleaveBF16NEONBF16, which reads 8 elements of every row.
func interleaveFours(dst []float32, src []half.BFloat16, ld, rows, k, width int) {
	if rows == 8 {
		interleaveBF16NEONBF16(dst, src, ld, rows, k, width)
	} else {
		gatherFours(dst, src, 1, ld, rows, k, width)
	}
}

// gatherFours packs elements in fours: dst[(p/4)*2*width+2*r] and the next one belong to row r.
func gatherFours(dst []float32, src []half.BFloat16, line, step, rows, k, width int) {
	for p := 0; p < (k+3)&^3; p += 2 {
		for r := range rows {
			var pair uint32
			if p < k {
				pair = uint32(src[r*line+p*step])
			}
			if p+1 < k {
				pair |= uint32(src[r*line+(p+1)*step]) << 16
			}
			dst[p/4*2*width+2*r+p/2%2] = math.Float32frombits(pair)
		}
	}
}

func neon() isa {
	return isa{
		"neon",
		engine[float32, float32]{
			mr: 6, nr: 16, kc: 384, nc: 384, lanes: 4, quad: 4, pair: 1, steps: 1, inPlace: true,
			mul: mulF32NEON, transpose: transposeF32NEON, interleave: interleaveF32NEON, gather: gather[float32],
		},
		engine[float64, float64]{
			mr: 6, nr: 8, kc: 256, nc: 384, lanes: 2, quad: 2, pair: 1, steps: 1, inPlace: true,
			mul: mulF64NEON, transpose: transposeF64NEON, interleave: interleaveF64NEON, gather: gather[float64],
		},
		engine[half.BFloat16, float32]{
			mr: 6, nr: 16, kc: 768, nc: 192, lanes: 4, quad: 8, pair: 2, steps: 2,
			mul: mulBF16NEON, transpose: transposeBF16NEON, interleave: interleaveBF16NEON, gather: gatherWide,
		},
	}
}

// The routines below are in the generated assembly; engine documents them.

func mulF32NEON(t *tile[float32])
func mulF64NEON(t *tile[float64])
func mulBF16NEON(t *tile[float32])
func transposeF32NEON(dst, src []float32, ld, rows, k, width int)
func transposeF64NEON(dst, src []float64, ld, rows, k, width int)
func transposeBF16NEON(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func interleaveF32NEON(dst, src []float32, ld, rows, k, width int)
func interleaveF64NEON(dst, src []float64, ld, rows, k, width int)
func interleaveBF16NEON(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func mulBF16NEONBF16(t *tile[float32])
func transposeBF16NEONBF16(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func interleaveBF16NEONBF16(dst []float32, src []half.BFloat16, ld, rows, k, width int)
