package kernel

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// rowsTogether is the number of rows that are summed in the element type before the sums are added
// in float64.
const rowsTogether = 32

// columnSums writes to sums the sum over n rows of the values that term writes to its first
// argument. part and to are scratch of the length of sums, which is at most chunk.
func columnSums[T Float](sums, part, to []T, n int, term func(to []T, row int)) {
	var total [chunk]float64
	clear(part)
	for i := range n {
		term(to, i)
		vec.Accumulate(part, to)
		if i%rowsTogether == rowsTogether-1 || i == n-1 {
			for j, v := range part {
				total[j] += float64(v)
			}
			clear(part)
		}
	}
	for j := range sums {
		sums[j] = T(total[j])
	}
}

// BatchStats writes the mean and the biased variance of each column of x [n, d] to mean [d] and
// variance [d]. It makes two passes and subtracts the first row, so that a column far from zero
// keeps its variance. n must be at least 1. scratch holds [ChannelScratch] elements.
func BatchStats[T Float](mean, variance, x, scratch []T, n, d int) {
	check("BatchStats", "mean", len(mean), d)
	check("BatchStats", "variance", len(variance), d)
	check("BatchStats", "x", len(x), n*d)
	for lo := 0; lo < d; lo += chunk {
		w := min(chunk, d-lo)
		part, to, m, v, first := scratch[:w], scratch[w:2*w], mean[lo:][:w], variance[lo:][:w], x[lo:][:w]
		columnSums(m, part, to, n, func(to []T, i int) { vec.Sub(to, x[i*d+lo:][:w], first) })
		vec.Scale(m, 1/T(n))
		vec.Accumulate(m, first)
		columnSums(v, part, to, n, func(to []T, i int) {
			vec.Sub(to, x[i*d+lo:][:w], m)
			vec.Square(to, to)
		})
		vec.Scale(v, 1/T(n))
	}
}

// BatchNorm normalises the columns of x [n, d] to y = (x - mean)·rstd·gain + bias, with rstd =
// 1/sqrt(variance + eps) (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167). mean,
// variance, gain and bias are [d]. y may be x. scratch holds [ChannelScratch] elements.
func BatchNorm[T Float](y, x, gain, bias, mean, variance, scratch []T, n, d int, eps float64) {
	checkBatchNorm("BatchNorm", len(y), len(x), len(gain), len(mean), len(variance), n, d)
	check("BatchNorm", "bias", len(bias), d)
	for lo := 0; lo < d; lo += chunk {
		w := min(chunk, d-lo)
		scale := scratch[:w]
		for j := range scale {
			scale[j] = T(float64(gain[lo+j]) / math.Sqrt(float64(variance[lo+j])+eps))
		}
		for i := range n {
			out := y[i*d+lo:][:w]
			vec.Sub(out, x[i*d+lo:][:w], mean[lo:][:w])
			vec.Mul(out, out, scale)
			vec.Accumulate(out, bias[lo:][:w])
		}
	}
}

// BatchNormGrad is the gradient of [BatchNorm] if mean and variance are the statistics of x. It
// writes dx [n, d], dgain [d] and dbias [d]. With x̂ = (x - mean)·rstd,
//
//	dbias = Σ dy    dgain = Σ dy·x̂    dx = gain·rstd·(dy - dbias/n - x̂·dgain/n)
//
// dx may be dy. scratch holds [ChannelScratch] elements.
func BatchNormGrad[T Float](dx, dgain, dbias, x, gain, mean, variance, dy, scratch []T, n, d int, eps float64) {
	checkBatchNorm("BatchNormGrad", len(dy), len(x), len(gain), len(mean), len(variance), n, d)
	check("BatchNormGrad", "dx", len(dx), n*d)
	check("BatchNormGrad", "dgain", len(dgain), d)
	check("BatchNormGrad", "dbias", len(dbias), d)
	for lo := 0; lo < d; lo += chunk {
		w := min(chunk, d-lo)
		to, shift, slope, scale := scratch[:w], scratch[w:2*w], scratch[2*w:3*w], scratch[3*w:4*w]
		m, sum, dot := mean[lo:][:w], dbias[lo:][:w], dgain[lo:][:w]
		columnSums(sum, shift, to, n, func(to []T, i int) { copy(to, dy[i*d+lo:]) })
		columnSums(dot, shift, to, n, func(to []T, i int) {
			vec.Sub(to, x[i*d+lo:][:w], m)
			vec.Mul(to, to, dy[i*d+lo:][:w])
		})
		for j := range w {
			rstd := 1 / math.Sqrt(float64(variance[lo+j])+eps)
			scale[j], shift[j] = T(float64(gain[lo+j])*rstd), T(float64(sum[j])/float64(n))
			slope[j] = T(float64(dot[j]) * rstd * rstd / float64(n))
			dot[j] = T(float64(dot[j]) * rstd)
		}
		for i := range n {
			out := dx[i*d+lo:][:w]
			vec.Sub(to, x[i*d+lo:][:w], m)
			vec.Mul(to, to, slope)
			vec.Accumulate(to, shift)
			vec.Sub(out, dy[i*d+lo:][:w], to)
			vec.Mul(out, out, scale)
		}
	}
}

func checkBatchNorm(kernel string, y, x, gain, mean, variance, n, d int) {
	check(kernel, "y", y, n*d)
	check(kernel, "x", x, n*d)
	check(kernel, "gain", gain, d)
	check(kernel, "mean", mean, d)
	check(kernel, "variance", variance, d)
}
