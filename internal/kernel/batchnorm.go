package kernel

import "math"

// columns is the number of columns that are worked on at once: their sums fit the stack, and a row
// of them fills whole cache lines.
const columns = 32

// BatchStats writes the mean and the biased variance of each column of x [n, d] to mean [d] and
// variance [d]. It sums in float64, in two passes, so that a column far from zero keeps its
// variance. n must be at least 1.
func BatchStats[T Float](mean, variance, x []T, n, d int) {
	check("BatchStats", "mean", len(mean), d)
	check("BatchStats", "variance", len(variance), d)
	check("BatchStats", "x", len(x), n*d)
	for lo := 0; lo < d; lo += columns {
		var sum, squares [columns]float64
		width := min(columns, d-lo)
		for i := range n {
			for j, v := range x[i*d+lo:][:width] {
				sum[j] += float64(v)
			}
		}
		for j := range width {
			sum[j] /= float64(n)
			mean[lo+j] = T(sum[j])
		}
		for i := range n {
			for j, v := range x[i*d+lo:][:width] {
				c := float64(v) - sum[j]
				squares[j] += c * c
			}
		}
		for j := range width {
			variance[lo+j] = T(squares[j] / float64(n))
		}
	}
}

// BatchNorm normalises the columns of x [n, d] to y = (x - mean)·rstd·gain + bias, with rstd =
// 1/sqrt(variance + eps) (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167). mean,
// variance, gain and bias are [d]. y may be x.
func BatchNorm[T Float](y, x, gain, bias, mean, variance []T, n, d int, eps float64) {
	checkBatchNorm("BatchNorm", len(y), len(x), len(gain), len(mean), len(variance), n, d)
	check("BatchNorm", "bias", len(bias), d)
	for lo := 0; lo < d; lo += columns {
		var scale, shift [columns]float64
		width := min(columns, d-lo)
		for j := range width {
			c := lo + j
			scale[j] = float64(gain[c]) / math.Sqrt(float64(variance[c])+eps)
			shift[j] = float64(bias[c])
		}
		for i := range n {
			out := y[i*d+lo:][:width]
			for j, v := range x[i*d+lo:][:width] {
				out[j] = T((float64(v)-float64(mean[lo+j]))*scale[j] + shift[j])
			}
		}
	}
}

// BatchNormGrad is the gradient of [BatchNorm] of statistics that are those of x: it writes dx [n,
// d], dgain [d] and dbias [d]. With x̂ = (x - mean)·rstd,
//
//	dbias = Σ dy    dgain = Σ dy·x̂    dx = gain·rstd·(dy - dbias/n - x̂·dgain/n)
//
// dx may be dy.
func BatchNormGrad[T Float](dx, dgain, dbias, x, gain, mean, variance, dy []T, n, d int, eps float64) {
	checkBatchNorm("BatchNormGrad", len(dy), len(x), len(gain), len(mean), len(variance), n, d)
	check("BatchNormGrad", "dx", len(dx), n*d)
	check("BatchNormGrad", "dgain", len(dgain), d)
	check("BatchNormGrad", "dbias", len(dbias), d)
	for lo := 0; lo < d; lo += columns {
		var rstd, sum, dot [columns]float64
		width := min(columns, d-lo)
		for j := range width {
			rstd[j] = 1 / math.Sqrt(float64(variance[lo+j])+eps)
		}
		for i := range n {
			at := i*d + lo
			for j, g := range dy[at:][:width] {
				sum[j] += float64(g)
				dot[j] += float64(g) * (float64(x[at+j]) - float64(mean[lo+j])) * rstd[j]
			}
		}
		for i := range n {
			at := i*d + lo
			out := dx[at:][:width]
			for j, g := range dy[at:][:width] {
				normal := (float64(x[at+j]) - float64(mean[lo+j])) * rstd[j]
				out[j] = T(float64(gain[lo+j]) * rstd[j] * (float64(g) - (sum[j]+normal*dot[j])/float64(n)))
			}
		}
		for j := range width {
			dbias[lo+j], dgain[lo+j] = T(sum[j]), T(dot[j])
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
