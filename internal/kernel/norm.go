package kernel

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// LayerNorm normalises each row of x [n, d] to y = (x - mean)·rstd·gain + bias, rstd =
// 1/sqrt(variance + eps), with the biased variance (Ba et al. 2016,
// https://arxiv.org/abs/1607.06450). It saves mean and rstd of row i in stats[2i] and stats[2i+1]
// for [LayerNormGrad]. gain is [d]; bias is [d] or nil. y may be x.
func LayerNorm[T Float](y, stats, x, gain, bias []T, n, d int, eps float64) {
	check("LayerNorm", "stats", len(stats), 2*n)
	checkNorm("LayerNorm", len(y), len(x), len(gain), n, d)
	if bias != nil {
		check("LayerNorm", "bias", len(bias), d)
	}
	for i := range n {
		row := x[i*d : (i+1)*d]
		mean, variance := vec.MeanVar(row)
		stats[2*i], stats[2*i+1] = T(mean), T(1/math.Sqrt(float64(variance)+eps))
		vec.NormRow(y[i*d:(i+1)*d], row, gain, bias, stats[2*i], stats[2*i+1])
	}
}

// LayerNormGrad is the gradient of [LayerNorm]: it writes dx [n, d], dgain [d] and dbias [d].
// LayerNorm has saved stats. dx may be dy.
func LayerNormGrad[T Float](dx, dgain, dbias, x, gain, stats, dy []T, n, d int) {
	check("LayerNormGrad", "stats", len(stats), 2*n)
	check("LayerNormGrad", "dgain", len(dgain), d)
	check("LayerNormGrad", "dbias", len(dbias), d)
	check("LayerNormGrad", "dx", len(dx), n*d)
	checkNorm("LayerNormGrad", len(dy), len(x), len(gain), n, d)
	clear(dgain)
	clear(dbias)
	for i := range n {
		lo, hi := i*d, (i+1)*d
		vec.NormGradRow(dx[lo:hi], dgain, dbias, x[lo:hi], gain, dy[lo:hi], stats[2*i], stats[2*i+1])
	}
}

// RMSNorm scales each row of x [n, d] to y = x·rstd·gain, rstd = 1/sqrt(mean(x²) + eps) (Zhang and
// Sennrich 2019, https://arxiv.org/abs/1910.07467; the norm of T5 and Llama). It saves rstd [n] for
// [RMSNormGrad]. y may be x.
func RMSNorm[T Float](y, rstd, x, gain []T, n, d int, eps float64) {
	check("RMSNorm", "rstd", len(rstd), n)
	checkNorm("RMSNorm", len(y), len(x), len(gain), n, d)
	for i := range n {
		row := x[i*d : (i+1)*d]
		rstd[i] = T(1 / math.Sqrt(vec.SumSquares(row)/float64(d)+eps))
		vec.NormRow(y[i*d:(i+1)*d], row, gain, nil, 0, rstd[i])
	}
}

// RMSNormGrad is the gradient of [RMSNorm]: it writes dx [n, d] and dgain [d]. RMSNorm has saved
// rstd. dx may be dy.
func RMSNormGrad[T Float](dx, dgain, x, gain, rstd, dy []T, n, d int) {
	check("RMSNormGrad", "rstd", len(rstd), n)
	check("RMSNormGrad", "dgain", len(dgain), d)
	check("RMSNormGrad", "dx", len(dx), n*d)
	checkNorm("RMSNormGrad", len(dy), len(x), len(gain), n, d)
	clear(dgain)
	for i := range n {
		lo, hi := i*d, (i+1)*d
		vec.RMSNormGradRow(dx[lo:hi], dgain, x[lo:hi], gain, dy[lo:hi], rstd[i])
	}
}

func checkNorm(kernel string, y, x, gain, n, d int) {
	check(kernel, "gain", gain, d)
	check(kernel, "x", x, n*d)
	check(kernel, "y", y, n*d)
}
