package kernel

import (
	"math"

	"github.com/gofsdp/gofsdp/internal/kernel/vec"
)

// chunk is the largest number of elements of a plane or a row that are processed at once.
const chunk = 512

// ChannelScratch returns the number of scratch elements for the batch norm kernels. Only rows (area
// 1) need scratch; planes need none.
func ChannelScratch(channels, area int) int {
	if area == 1 {
		return 4 * min(chunk, channels)
	}
	return 0
}

// ChannelStats writes the mean and the biased variance of each channel of x [n, channels, area],
// which has at least one element per channel. With an area of 1 it is [BatchStats].
func ChannelStats[T Float](mean, variance, x, scratch []T, n, channels, area int) {
	if area == 1 {
		BatchStats(mean, variance, x, scratch, n, channels)
		return
	}
	check("ChannelStats", "x", len(x), n*channels*area)
	for c := range channels {
		m, sum := 0.0, 0.0 // the variances of planes are combined as in Chan, Golub and LeVeque (1979)
		for i := range n {
			mi, vi := vec.MeanVar(x[(i*channels+c)*area:][:area])
			delta := mi - m
			m += delta / float64(i+1)
			sum += vi + delta*delta*float64(i)/float64(i+1)
		}
		mean[c], variance[c] = T(m), T(sum/float64(n))
	}
}

// ChannelNorm is [BatchNorm] of x [n, channels, area]. y may be x.
func ChannelNorm[T Float](y, x, gain, bias, mean, variance, scratch []T, n, channels, area int, eps float64) {
	if area == 1 {
		BatchNorm(y, x, gain, bias, mean, variance, scratch, n, channels, eps)
		return
	}
	check("ChannelNorm", "y", len(y), n*channels*area)
	checkBatchNorm("ChannelNorm", n*channels, len(x)/area, len(gain), len(mean), len(variance), n, channels)
	for c := range channels {
		rstd := T(1 / math.Sqrt(float64(variance[c])+eps))
		for i := range n {
			at := (i*channels + c) * area
			vec.NormPlane(y[at:at+area], x[at:at+area], mean[c], rstd, gain[c], bias[c])
		}
	}
}

// ChannelNormGrad is [BatchNormGrad] of x [n, channels, area]. dx may be dy.
func ChannelNormGrad[T Float](dx, dgain, dbias, x, gain, mean, variance, dy, scratch []T, n, channels, area int, eps float64) {
	if area == 1 {
		BatchNormGrad(dx, dgain, dbias, x, gain, mean, variance, dy, scratch, n, channels, eps)
		return
	}
	check("ChannelNormGrad", "dx", len(dx), n*channels*area)
	check("ChannelNormGrad", "dy", len(dy), n*channels*area)
	checkBatchNorm("ChannelNormGrad", n*channels, len(x)/area, len(gain), len(mean), len(variance), n, channels)
	for c := range channels {
		rstd := T(1 / math.Sqrt(float64(variance[c])+eps))
		s1, s2 := 0.0, 0.0
		for i := range n {
			at := (i*channels + c) * area
			a, b := planeSums(x[at:at+area], dy[at:at+area], mean[c], rstd)
			s1, s2 = s1+a, s2+b
		}
		dbias[c], dgain[c] = T(s1), T(s2)
		share := float64(gain[c]) / float64(n*area)
		for i := range n {
			at := (i*channels + c) * area
			vec.NormPlaneGrad(dx[at:at+area], x[at:at+area], dy[at:at+area], mean[c], rstd, gain[c], T(s1*share), T(s2*share))
		}
	}
}

// planeSums returns Σdy and Σdy·x̂ of a plane.
func planeSums[T Float](x, dy []T, mean, rstd T) (s1, s2 float64) {
	for lo := 0; lo < len(x); lo += chunk {
		hi := min(len(x), lo+chunk)
		a, b := vec.NormPlaneSums(x[lo:hi], dy[lo:hi], mean, rstd)
		s1, s2 = s1+a, s2+b
	}
	return s1, s2
}

// GroupNorm normalises each group of channels in each of the n tensors x [channels, area] (Wu and
// He 2018, https://arxiv.org/abs/1803.08494): y = (x - mean)·rstd·gain + bias, with rstd =
// 1/sqrt(biased variance + eps) and gain and bias [channels]. It saves mean and rstd in stats [n,
// groups, 2] for [GroupNormGrad]. y may be x.
func GroupNorm[T Float](c *Context, y, stats, x, gain, bias []T, n, channels, area, groups int, eps float64) {
	check("GroupNorm", "stats", len(stats), 2*n*groups)
	check("GroupNorm", "x", len(x), n*channels*area)
	check("GroupNorm", "y", len(y), n*channels*area)
	check("GroupNorm", "gain", len(gain), channels)
	check("GroupNorm", "bias", len(bias), channels)
	width := channels / groups
	lo, hi := c.Share(n*groups, 1)
	for r := lo; r < hi; r++ {
		at, first := r*width*area, r%groups*width
		m, v := vec.MeanVar(x[at : at+width*area])
		mean, rstd := T(m), T(1/math.Sqrt(v+eps))
		stats[2*r], stats[2*r+1] = mean, rstd
		if area == 1 {
			vec.NormRow(y[at:at+width], x[at:at+width], gain[first:first+width], bias[first:first+width], mean, rstd)
			continue
		}
		for j := range width {
			vec.NormPlane(y[at+j*area:][:area], x[at+j*area:][:area], mean, rstd, gain[first+j], bias[first+j])
		}
	}
}

// GroupNormGrad is the gradient of [GroupNorm]: it writes dx, dgain and dbias. GroupNorm has saved
// stats. dx may be dy.
func GroupNormGrad[T Float](dx, dgain, dbias, x, gain, stats, dy []T, n, channels, area, groups int) {
	check("GroupNormGrad", "stats", len(stats), 2*n*groups)
	check("GroupNormGrad", "dx", len(dx), n*channels*area)
	check("GroupNormGrad", "x", len(x), n*channels*area)
	check("GroupNormGrad", "dy", len(dy), n*channels*area)
	check("GroupNormGrad", "gain", len(gain), channels)
	clear(dgain)
	clear(dbias)
	width := channels / groups
	for r := range n * groups {
		at, first, mean, rstd := r*width*area, r%groups*width, stats[2*r], stats[2*r+1]
		if area == 1 {
			vec.NormGradRow(dx[at:at+width], dgain[first:first+width], dbias[first:first+width], x[at:at+width],
				gain[first:first+width], dy[at:at+width], mean, rstd)
			continue
		}
		s1, s2 := 0.0, 0.0
		for j := range width {
			a, b := planeSums(x[at+j*area:][:area], dy[at+j*area:][:area], mean, rstd)
			dbias[first+j] += T(a)
			dgain[first+j] += T(b)
			s1, s2 = s1+float64(gain[first+j])*a, s2+float64(gain[first+j])*b
		}
		m1, m2 := T(s1/float64(width*area)), T(s2/float64(width*area))
		for j := range width {
			vec.NormPlaneGrad(dx[at+j*area:][:area], x[at+j*area:][:area], dy[at+j*area:][:area], mean, rstd, gain[first+j], m1, m2)
		}
	}
}
