// Package bf16 holds the kernels of package kernel for bfloat16 operands and results, except linear
// layers, attention and embeddings, which are generic there.
//
// All arithmetic is in float32: operands are widened to scratch, one block or row at a time so that
// it stays in the level-one cache, and results are rounded once. So a result has the bits of the
// rounded result of the float32 kernel, on every instruction set. Parameters and statistics of
// norms, log-sum-exps and gradients of parameters are float32:
//
//	x, y, dx, dy     gain, bias, dgain, dbias     stats, rstd, lse, scratch
//	bfloat16         float32                      float32
//
// The conventions of package kernel apply. For each kernel, a function returns the length of its
// scratch.
package bf16

import (
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// wideBlock is the number of elements that are widened at once.
const wideBlock = 1024

// ElementScratch is the scratch of [Unary], [Binary] and [Dropout].
const ElementScratch = 2 * wideBlock

// Unary computes y = f(x) element by element. y may be x. If low is not nil, it is f for bfloat16,
// and returns false if it has not computed anything: see package vec.
func Unary(low func(y, x []half.BFloat16) bool, f func(y, x []float32), y, x []half.BFloat16, scratch []float32) {
	check("Unary", "y", len(y), len(x))
	check("Unary", "scratch", len(scratch), ElementScratch)
	if low != nil && low(y, x) {
		return
	}
	for lo := 0; lo < len(x); lo += wideBlock {
		hi := min(lo+wideBlock, len(x))
		wide := scratch[:hi-lo]
		half.Widen(wide, x[lo:hi])
		f(wide, wide)
		half.Narrow(y[lo:hi], wide)
	}
}

// Binary computes z = f(x, y) element by element: an activation's gradient dx from x and dy, or a
// sum. z may be x or y. low is as in [Unary].
func Binary(low func(z, x, y []half.BFloat16) bool, f func(z, x, y []float32), z, x, y []half.BFloat16, scratch []float32) {
	check("Binary", "y", len(y), len(x))
	check("Binary", "z", len(z), len(x))
	check("Binary", "scratch", len(scratch), ElementScratch)
	if low != nil && low(z, x, y) {
		return
	}
	for lo := 0; lo < len(x); lo += wideBlock {
		hi := min(lo+wideBlock, len(x))
		a, b := scratch[:hi-lo], scratch[wideBlock:][:hi-lo]
		half.Widen(a, x[lo:hi])
		half.Widen(b, y[lo:hi])
		f(a, a, b)
		half.Narrow(z[lo:hi], a)
	}
}

// Add computes z = x + y. z may be x or y.
func Add(z, x, y []half.BFloat16, scratch []float32) {
	Binary(vec.AddBFloat16, vec.Add[float32], z, x, y, scratch)
}

// GLU is [vec.GLU]. y may be x or up.
func GLU(gate vec.Gate, y, x, up []half.BFloat16, scratch []float32) {
	if vec.GLUBFloat16(gate, y, x, up) {
		return
	}
	Binary(nil, func(y, x, up []float32) { vec.GLU(gate, y, x, up) }, y, x, up, scratch)
}

// GLUGradScratch is the scratch of [GLUGrad].
const GLUGradScratch = 3 * wideBlock

// GLUGrad is [vec.GLUGrad]. dx may be x or dy, and dup may be up.
func GLUGrad(gate vec.Gate, dx, dup, x, up, dy []half.BFloat16, scratch []float32) {
	check("GLUGrad", "dx", len(dx), len(x))
	check("GLUGrad", "dup", len(dup), len(x))
	check("GLUGrad", "up", len(up), len(x))
	check("GLUGrad", "dy", len(dy), len(x))
	check("GLUGrad", "scratch", len(scratch), GLUGradScratch)
	if vec.GLUGradBFloat16(gate, dx, dup, x, up, dy) {
		return
	}
	for lo := 0; lo < len(x); lo += wideBlock {
		hi := min(lo+wideBlock, len(x))
		a, b, d := scratch[:hi-lo], scratch[wideBlock:][:hi-lo], scratch[2*wideBlock:][:hi-lo]
		half.Widen(a, x[lo:hi])
		half.Widen(b, up[lo:hi])
		half.Widen(d, dy[lo:hi])
		vec.GLUGrad(gate, a, b, a, b, d)
		half.Narrow(dx[lo:hi], a)
		half.Narrow(dup[lo:hi], b)
	}
}

// RopeScratch is the scratch of [Rope] for rows of d columns.
func RopeScratch(d int) int { return d }

// Rope is [kernel.Rope]. y may be x.
func Rope(y, x []half.BFloat16, table []float32, positions []int, n, d, first, t int, r kernel.Rotary, inverse bool, scratch []float32) {
	check("Rope", "x", len(x), n*d)
	check("Rope", "y", len(y), n*d)
	check("Rope", "scratch", len(scratch), RopeScratch(d))
	width := r.Heads * r.HeadDim
	row := scratch[:width]
	for i := range n {
		half.Widen(row, x[i*d:])
		at, one := first+i, positions
		if positions != nil {
			one = positions[i : i+1]
		}
		kernel.Rope(row, row, table, one, 1, width, at, t, r, inverse)
		half.Narrow(y[i*d:][:width], row)
		copy(y[i*d+width:(i+1)*d], x[i*d+width:])
	}
}

// Dropout is [kernel.Dropout], and drops the same elements.
func Dropout(y, x []half.BFloat16, seed, base uint64, rate float64, scratch []float32) {
	check("Dropout", "y", len(y), len(x))
	check("Dropout", "scratch", len(scratch), ElementScratch)
	for lo := 0; lo < len(x); lo += wideBlock {
		hi := min(lo+wideBlock, len(x))
		wide := scratch[:hi-lo]
		half.Widen(wide, x[lo:hi])
		vec.Dropout(wide, wide, seed, base+uint64(lo), rate)
		half.Narrow(y[lo:hi], wide)
	}
}

// NormScratch is the scratch of norms over d columns, and of their gradients.
func NormScratch(d int) int { return 2 * d }

// LayerNorm is [kernel.LayerNorm]. y may be x.
func LayerNorm(y []half.BFloat16, stats []float32, x []half.BFloat16, gain, bias []float32, n, d int, eps float64,
	scratch []float32) {
	check("LayerNorm", "stats", len(stats), 2*n)
	checkNorm("LayerNorm", len(y), len(x), len(gain), n, d, len(scratch))
	row := scratch[:d]
	for i := range n {
		from, to, stats := x[i*d:(i+1)*d], y[i*d:(i+1)*d], stats[2*i:2*i+2]
		if mean, variance, ok := vec.MeanVarBFloat16(from); ok {
			stats[0], stats[1] = float32(mean), float32(1/math.Sqrt(variance+eps))
			vec.NormRowBFloat16(to, from, gain, bias, stats[0], stats[1])
			continue
		}
		half.Widen(row, from)
		kernel.LayerNorm(row, stats, row, gain, bias, 1, d, eps)
		half.Narrow(to, row)
	}
}

// LayerNormGrad is [kernel.LayerNormGrad]. dx may be dy.
func LayerNormGrad(dx []half.BFloat16, dgain, dbias []float32, x []half.BFloat16, gain, stats []float32, dy []half.BFloat16,
	n, d int, scratch []float32) {
	check("LayerNormGrad", "stats", len(stats), 2*n)
	check("LayerNormGrad", "dbias", len(dbias), d)
	checkNormGrad("LayerNormGrad", len(dx), len(dgain), len(x), len(gain), len(dy), n, d, len(scratch))
	clear(dgain)
	clear(dbias)
	for i := range n {
		lo, hi, mean, rstd := i*d, (i+1)*d, stats[2*i], stats[2*i+1]
		if !vec.NormGradRowBFloat16(dx[lo:hi], dgain, dbias, x[lo:hi], gain, dy[lo:hi], mean, rstd) {
			row, drow := widened(x[lo:hi], dy[lo:hi], scratch)
			vec.NormGradRow(drow, dgain, dbias, row, gain, drow, mean, rstd)
			half.Narrow(dx[lo:hi], drow)
		}
	}
}

// RMSNorm is [kernel.RMSNorm]. y may be x.
func RMSNorm(y []half.BFloat16, rstd []float32, x []half.BFloat16, gain []float32, n, d int, eps float64, scratch []float32) {
	check("RMSNorm", "rstd", len(rstd), n)
	checkNorm("RMSNorm", len(y), len(x), len(gain), n, d, len(scratch))
	row := scratch[:d]
	for i := range n {
		from, to := x[i*d:(i+1)*d], y[i*d:(i+1)*d]
		if sum, ok := vec.SumSquaresBFloat16(from); ok {
			rstd[i] = float32(1 / math.Sqrt(sum/float64(d)+eps))
			vec.NormRowBFloat16(to, from, gain, nil, 0, rstd[i])
			continue
		}
		half.Widen(row, from)
		kernel.RMSNorm(row, rstd[i:i+1], row, gain, 1, d, eps)
		half.Narrow(to, row)
	}
}

// RMSNormGrad is [kernel.RMSNormGrad]. dx may be dy.
func RMSNormGrad(dx []half.BFloat16, dgain []float32, x []half.BFloat16, gain, rstd []float32, dy []half.BFloat16,
	n, d int, scratch []float32) {
	check("RMSNormGrad", "rstd", len(rstd), n)
	checkNormGrad("RMSNormGrad", len(dx), len(dgain), len(x), len(gain), len(dy), n, d, len(scratch))
	clear(dgain)
	for i := range n {
		lo, hi := i*d, (i+1)*d
		if !vec.RMSNormGradRowBFloat16(dx[lo:hi], dgain, x[lo:hi], gain, dy[lo:hi], rstd[i]) {
			row, drow := widened(x[lo:hi], dy[lo:hi], scratch)
			vec.RMSNormGradRow(drow, dgain, row, gain, drow, rstd[i])
			half.Narrow(dx[lo:hi], drow)
		}
	}
}

// widened returns the elements of a and b, which have one length, in two parts of scratch.
func widened(a, b []half.BFloat16, scratch []float32) (x, y []float32) {
	x, y = scratch[:len(a)], scratch[len(a):]
	half.Widen(x, a)
	half.Widen(y, b)
	return x, y
}

// ColumnScratch is the scratch of [LinearGradB].
func ColumnScratch(out int) int { return 8 * out }

// LinearGradB is [kernel.LinearGradB], the column sums [out] of dy [n, out].
func LinearGradB(db []float32, dy []half.BFloat16, n, out int, acc bool, scratch []float32) {
	check("LinearGradB", "db", len(db), out)
	check("LinearGradB", "dy", len(dy), n*out)
	check("LinearGradB", "scratch", len(scratch), ColumnScratch(out))
	if !acc {
		clear(db)
	}
	if vec.ColSumBFloat16(db, dy, n, out, scratch) {
		return
	}
	for i := 0; i < n; i += 8 { // the number of rows that ColSum adds at once
		rows := min(8, n-i)
		half.Widen(scratch, dy[i*out:(i+rows)*out])
		vec.ColSum(db, scratch[:rows*out], rows, out)
	}
}

// EmbeddingGrad is [kernel.EmbeddingGrad]. scratch holds d elements.
func EmbeddingGrad(dtable []float32, dy []half.BFloat16, idx []int, rows, d int, acc bool, scratch []float32) {
	check("EmbeddingGrad", "dy", len(dy), len(idx)*d)
	check("EmbeddingGrad", "dtable", len(dtable), rows*d)
	check("EmbeddingGrad", "scratch", len(scratch), d)
	if !acc {
		clear(dtable)
	}
	for i, r := range idx {
		half.Widen(scratch, dy[i*d:(i+1)*d])
		vec.Accumulate(dtable[r*d:(r+1)*d], scratch)
	}
}

// CrossEntropyScratch is the scratch of [CrossEntropy] and its gradient: a row of
// logits and a block.
func CrossEntropyScratch(classes int) int { return classes + kernel.CrossEntropyScratch(classes) }

// CrossEntropy is [kernel.CrossEntropy].
func CrossEntropy(lse []float32, logits []half.BFloat16, targets []int, n, classes, ignore int,
	scratch []float32) (loss float64, counted int, err error) {
	check("CrossEntropy", "lse", len(lse), n)
	check("CrossEntropy", "targets", len(targets), n)
	check("CrossEntropy", "logits", len(logits), n*classes)
	check("CrossEntropy", "scratch", len(scratch), CrossEntropyScratch(classes))
	if err := kernel.CheckTargets(targets, classes, ignore); err != nil {
		return 0, 0, err
	}
	row, block := scratch[:classes], scratch[classes:]
	for i := range targets {
		half.Widen(row, logits[i*classes:])
		rowLoss, one, err := kernel.CrossEntropy(lse[i:i+1], row, targets[i:i+1], 1, classes, ignore, block)
		if err != nil {
			return 0, 0, err
		}
		loss += rowLoss
		counted += one
	}
	if counted > 0 {
		loss /= float64(counted)
	}
	return loss, counted, nil
}

// CrossEntropyGrad is [kernel.CrossEntropyGrad]. dlogits may be logits.
func CrossEntropyGrad(dlogits, logits []half.BFloat16, lse []float32, targets []int, n, classes, ignore, counted int,
	dloss float32, scratch []float32) {
	check("CrossEntropyGrad", "lse", len(lse), n)
	check("CrossEntropyGrad", "targets", len(targets), n)
	check("CrossEntropyGrad", "logits", len(logits), n*classes)
	check("CrossEntropyGrad", "dlogits", len(dlogits), n*classes)
	check("CrossEntropyGrad", "scratch", len(scratch), CrossEntropyScratch(classes))
	row := scratch[:classes]
	for i := range targets {
		half.Widen(row, logits[i*classes:])
		kernel.CrossEntropyGrad(row, row, lse[i:i+1], targets[i:i+1], 1, classes, ignore, counted, dloss)
		half.Narrow(dlogits[i*classes:(i+1)*classes], row)
	}
}

// check panics unless a slice has the length of its shape.
func check(name, slice string, got, want int) {
	if got != want {
		panic(fmt.Sprintf("bf16: %s: len(%s) is %d, want %d", name, slice, got, want))
	}
}

func checkNorm(name string, y, x, gain, n, d, scratch int) {
	check(name, "gain", gain, d)
	check(name, "x", x, n*d)
	check(name, "y", y, n*d)
	check(name, "scratch", scratch, NormScratch(d))
}

func checkNormGrad(name string, dx, dgain, x, gain, dy, n, d, scratch int) {
	check(name, "dgain", dgain, d)
	check(name, "dx", dx, n*d)
	checkNorm(name, dy, x, gain, n, d, scratch)
}
