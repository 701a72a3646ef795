//go:build arm64 && !purego

package gemm

import "github.com/gofsdp/gofsdp/internal/half"

// supported lists the instruction sets this machine has, best first.
func supported() []isa { return []isa{neon(), portable()} }

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

// The routines below are in the generated assembly; engine says what they do.

func mulF32NEON(t *tile[float32])
func mulF64NEON(t *tile[float64])
func mulBF16NEON(t *tile[float32])
func transposeF32NEON(dst, src []float32, ld, rows, k, width int)
func transposeF64NEON(dst, src []float64, ld, rows, k, width int)
func transposeBF16NEON(dst []float32, src []half.BFloat16, ld, rows, k, width int)
func interleaveF32NEON(dst, src []float32, ld, rows, k, width int)
func interleaveF64NEON(dst, src []float64, ld, rows, k, width int)
func interleaveBF16NEON(dst []float32, src []half.BFloat16, ld, rows, k, width int)
