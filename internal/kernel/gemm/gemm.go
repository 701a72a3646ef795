// Package gemm multiplies dense row-major matrices on one CPU core, or by [Split] on several.
//
// It computes
//
//	C = alpha * op(A) * op(B) + beta * C        op(X) = X or Xᵀ
//
// for float32, float64 and bfloat16, with A m×k, B k×n and C m×n after op. Products of bfloat16 are
// summed in float32, and C is float32, or bfloat16 rounded once. No goroutine is started: a product
// uses the core of its caller and nothing else.
//
// # How it works
//
// The layout is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (ACM TOMS 34(3), 2008, https://doi.org/10.1145/1356052.1356053), with the roles of A and B
// exchanged, because here A (activations) is tall and B (weights) is small:
//
//	            nc ≤ L2               B block [kc, nc], in panels of nr columns, stays in L2
//	          ┌──┬──┬──┬──┐
//	       kc │  │  │  │  │
//	          └──┴──┴──┴──┘
//	    kc      nr
//	   ┌────┐ ┌──┬──┬──┬──┐
//	mr │ A  │ │▓▓│  │  │  │          one tile [mr, nr] of C lives in registers while k runs over kc;
//	   ├────┤ ├──┼──┼──┼──┤          the strip of A [mr, kc] stays in L1 for the whole row of tiles
//	   │    │ │  │  │  │  │
//	   └────┘ └──┴──┴──┴──┘
//
// The register tile is written in assembly (see the asm directory, which generates it): 14×32
// float32 or 14×16 float64 with AVX-512, 6×16 or 6×8 with AVX2 and FMA, and with NEON, 4×4 in Go
// elsewhere. The assembly tile takes both strides of A, so it reads A, transposed or not, in place;
// A is packed only where its stride would defeat the caches. The same holds for an untransposed B
// that too few rows would use for packing to pay.
//
// On arm64 nothing has been timed, only run under emulation. For an element of k the NEON tile takes
// 36 instructions for 24 multiply-adds of a vector; of the others 8 are loads and 4 the loop. With
// BFMMLA an 8×8 tile takes, for four elements of k, 24 instructions, 16 of them BFMMLA.
//
// AMX multiplies bfloat16 in tiles, see tiles.go: a register tile is 32×32, two by two tiles of C that
// stay in tile registers. A is read in place, rows along k, and transposed only where it has columns
// along k. A block of B has more ranges of k and fewer columns, so that sums stay in L2. AVX-512 rounds
// and stores the sums of a tile while AMX computes the next tile.
//
// With AVX512_BF16 a register tile of bfloat16 is one of float32 whose factors are pairs that follow
// each other along k, which one instruction multiplies and adds at twice the rate. Where pairs lie
// together in memory A is read in place too. Elsewhere packing widens, and a product takes as long
// as one of float32, in Go twice as long.
//
// # Order of summation
//
// Every element is computed by the same rule, wherever it lies in C and whatever m and n are:
//
//	k is cut into q = ⌈k/kc⌉ ranges of equal size, the first k mod q of them one longer
//	(kc: 384 float32, 256 float64, 768 bfloat16, and 512 with AMX)
//	s_i = sum over range i, from the left, one rounding per term (fused multiply-add)
//	c   = beta*c + alpha*s_0, then c = c + alpha*s_1, …
//	      (alpha*s_i rounded first, then one fused multiply-add)
//
// So row i of a product does not depend on how many other rows there are: computing a matrix whole
// or in pieces gives the same bits. AVX2, AVX-512 and NEON follow this rule exactly and therefore
// agree bit for bit with each other; the Go tile follows the same order but rounds as the Go
// compiler does on that machine (without fusing on amd64).
//
// For bfloat16 the rule is that of VDPBF16PS, the instruction of AVX512_BF16, and every instruction
// set gives the same bits, Go included, with three exceptions below. Ranges are cut in pairs, and the
// last pair is filled up with zeros. Of a pair the second term is added before the first. Subnormal
// numbers count as zeros of their sign wherever they occur: in A, B, C and bias, in between, and as
// results. (The order and the flushing are those of Intel's manual, volume 2; Zen 4 was compared with
// them.) One is a result below the smallest normal number, 2^-126, by no more than 2^-151:
// rounded it is normal, and NEON, which decides before rounding, makes it zero.
//
// The second exception is AMX, which follows the rule of TDPBF16PS. Ranges are cut in groups of 32 and
// filled up with zeros. A group has 16 pairs. Their first elements are summed from the left, starting
// at zero, and so are their second elements. The two sums are added, and the result is added to s_i. Each of these steps
// is rounded once, and subnormal numbers count as zeros. (Intel's manual describes it; a processor
// was compared with it bit for bit.) So ranks on processors with and without
// AMX compute other bits.
//
// The third exception is processors of arm64 with FEAT_BF16, on Linux, which tells of it. The rule there is
// that of BFMMLA: ranges are cut in fours, filled up with zeros; two products of neighbours are added,
// then their sum to s_i, first the lower two of a four. Each of these roundings is to odd: to the
// neighbour whose last digit is 1, from 2^128 on to infinity, and subnormal numbers are zeros. So a
// sum is within one unit in the last place, not half a unit. Emulation was compared with this rule
// bit for bit; FPCR.EBF, which would change it, is off unless a program sets it.
//
// # Special values
//
// Nothing is skipped: a zero times NaN or infinity is NaN, also when alpha is zero. Only beta == 0
// is special: C is then written without being read, so what it held does not matter. Which bits a
// NaN has is left open.
package gemm

import (
	"fmt"

	"github.com/gofsdp/gofsdp/internal/half"
)

// Float is the set of types in which products are summed: float32 and float64.
type Float interface{ float32 | float64 }

// Element is the set of element types.
type Element interface{ Float | half.BFloat16 }

// Gemm computes C = alpha*op(A)*op(B) + beta*C. Elements of C are of the type of those of A and B,
// or float32 if those are bfloat16; any other type panics. alpha and beta are converted to the type
// of the sums.
//
// op(A) is m×k and op(B) k×n. Without transA, A is stored as m rows of k elements with lda elements
// from row to row; with transA it is stored as k rows of m. The same holds for B: k rows of n, or
// with transB n rows of k, as a linear layer's weight [out, in] is. C is m rows of n. Only the
// named elements are touched: gaps between rows (ld larger than the row) and whatever follows are
// neither read nor written.
//
// With beta == 0, C is never read. With k == 0 the product is the zero matrix.
//
// C must not overlap A or B. w belongs to this call until it returns. Negative sizes, a leading
// dimension shorter than its row, and slices too short for their matrix panic before anything is
// written.
func Gemm[T, C Element](w *Workspace, transA, transB bool, m, n, k int, alpha float64, a []T, lda int, b []T, ldb int, beta float64, c []C, ldc int) {
	check(transA, transB, m, n, k, len(a), lda, len(b), ldb, len(c), ldc)
	va, vb := operand(transA, a, lda), operand(!transB, b, ldb)
	switch c := any(c).(type) {
	case []float32:
		x := newProduct(w, m, n, k, float32(alpha), va, vb)
		x.c, x.ldc, x.add = c, ldc, addend[float32]{c, ldc, float32(beta)}
		x.run()
	case []float64:
		x := newProduct(w, m, n, k, alpha, va, vb)
		x.c, x.ldc, x.add = c, ldc, addend[float64]{c, ldc, beta}
		x.run()
	case []half.BFloat16:
		runRounded(newProduct(w, m, n, k, float32(alpha), va, vb), float32(beta), nil, c, ldc)
	}
}

// GemmBias computes C = op(A)*op(B) + bias, the row bias [n] being added to each of the m rows: a
// linear layer in one pass over C. Operands are as for [Gemm]; what C held does not matter. bias
// must not overlap C.
func GemmBias[T Element](w *Workspace, transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int, bias []T, c []T, ldc int) {
	check(transA, transB, m, n, k, len(a), lda, len(b), ldb, len(c), ldc)
	if len(bias) != n {
		panic(fmt.Sprintf("gemm: bias has %d elements for %d columns", len(bias), n))
	}
	va, vb := operand(transA, a, lda), operand(!transB, b, ldb)
	switch c := any(c).(type) {
	case []float32:
		x := newProduct(w, m, n, k, float32(1), va, vb)
		x.c, x.ldc, x.add = c, ldc, addend[float32]{any(bias).([]float32), 0, 1}
		x.run()
	case []float64:
		x := newProduct(w, m, n, k, float64(1), va, vb)
		x.c, x.ldc, x.add = c, ldc, addend[float64]{any(bias).([]float64), 0, 1}
		x.run()
	case []half.BFloat16:
		runRounded(newProduct(w, m, n, k, float32(1), va, vb), 0, any(bias).([]half.BFloat16), c, ldc)
	}
}

// check panics unless the sizes are sane and every matrix lies inside its slice. All that follows,
// assembly included, relies on it for memory safety.
func check(transA, transB bool, m, n, k, a, lda, b, ldb, c, ldc int) {
	if m < 0 || n < 0 || k < 0 {
		panic(fmt.Sprintf("gemm: negative size m=%d n=%d k=%d", m, n, k))
	}
	checkMatrix("A", transA, m, k, a, lda)
	checkMatrix("B", transB, k, n, b, ldb)
	checkMatrix("C", false, m, n, c, ldc)
}

// checkMatrix panics unless a matrix that is rows×cols after op fits a slice of length elements.
func checkMatrix(name string, trans bool, rows, cols, length, ld int) {
	if trans {
		rows, cols = cols, rows
	}
	if rows == 0 || cols == 0 {
		return // no element is ever touched
	}
	// Division, not multiplication: (rows-1)*ld could overflow.
	if ld < cols || length < cols || rows-1 > (length-cols)/ld {
		panic(fmt.Sprintf("gemm: %s, stored as [%d, %d] with leading dimension %d, does not fit %d elements", name, rows, cols, ld, length))
	}
}
