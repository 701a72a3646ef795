package vec

// NormRow sets y = (x-mean)·rstd·gain + bias. A nil bias is zero. With the mean and
// 1/√(variance+eps) of x it is a row of LayerNorm (https://arxiv.org/abs/1607.06450). With mean 0
// and 1/√(mean of x² + eps) it is a row of RMSNorm (https://arxiv.org/abs/1910.07467).
func NormRow[T Float](y, x, gain, bias []T, mean, rstd T) {
	k := table[T]()
	if bias == nil {
		each3("NormRow", func(y, x, gain []T) { k.normPlain(y, x, gain, mean, rstd) }, y, x, gain)
		return
	}
	same("NormRow", len(y), len(x), len(gain), len(bias))
	for i := 0; i < len(y); i += piece {
		j := min(i+piece, len(y))
		k.norm(y[i:j], x[i:j], gain[i:j], bias[i:j], mean, rstd)
	}
}

// NormGradRow is the backward of a LayerNorm row with the statistics of its forward. With x̂ =
// (x-mean)·rstd and g = gain·dy:
//
//	dgain += dy·x̂    dbias += dy (nil: not computed)    dx = rstd·(g - mean(g) - x̂·mean(g·x̂))
//
// dx may be x or dy, but not dgain or dbias.
func NormGradRow[T Float](dx, dgain, dbias, x, gain, dy []T, mean, rstd T) {
	if dbias != nil {
		Accumulate(dbias, dy)
	}
	s1, s2 := normGradSums("NormGradRow", dgain, x, gain, dy, mean, rstd)
	normGrad(dx, x, gain, dy, mean, rstd, s1, s2)
}

// RMSNormGradRow is the backward of an RMSNorm row. With x̂ = x·rstd and g = gain·dy:
//
//	dgain += dy·x̂    dx = rstd·(g - x̂·mean(g·x̂))
//
// dx may be x or dy, but not dgain.
func RMSNormGradRow[T Float](dx, dgain, x, gain, dy []T, rstd T) {
	_, s2 := normGradSums("RMSNormGradRow", dgain, x, gain, dy, 0, rstd)
	normGrad(dx, x, gain, dy, 0, rstd, 0, s2)
}

// normGradSums adds dy·x̂ to dgain and returns Σg and Σg·x̂, accumulated in float64, with x̂ and g as
// for [NormGradRow].
func normGradSums[T Float](op string, dgain, x, gain, dy []T, mean, rstd T) (s1, s2 float64) {
	same(op, len(x), len(dgain), len(gain), len(dy))
	k := table[T]()
	for i := 0; i < len(x); i += piece {
		j := min(i+piece, len(x))
		a, b := k.normGradSums(dgain[i:j], x[i:j], gain[i:j], dy[i:j], mean, rstd)
		s1, s2 = s1+a, s2+b
	}
	return s1, s2
}

func normGrad[T Float](dx, x, gain, dy []T, mean, rstd T, s1, s2 float64) {
	n, k := float64(len(x)), table[T]()
	same("NormGrad", len(x), len(dx))
	for i := 0; i < len(x); i += piece {
		j := min(i+piece, len(x))
		k.normGrad(dx[i:j], x[i:j], gain[i:j], dy[i:j], mean, rstd, T(s1/n), T(s2/n))
	}
}

// NormPlane sets y = x̂·gain + bias with x̂ = (x-mean)·rstd: a channel of an image.
func NormPlane[T Float](y, x []T, mean, rstd, gain, bias T) {
	k := table[T]().normPlane
	each2("NormPlane", func(y, x []T) { k(y, x, mean, rstd, gain, bias) }, y, x)
}

// NormPlaneSums returns Σdy and Σdy·x̂, accumulated in float64, with x̂ as for [NormPlane].
func NormPlaneSums[T Float](x, dy []T, mean, rstd T) (s1, s2 float64) {
	k := table[T]().normPlaneSums
	each2("NormPlaneSums", func(x, dy []T) {
		a, b := k(x, dy, mean, rstd)
		s1, s2 = s1+a, s2+b
	}, x, dy)
	return s1, s2
}

// NormPlaneGrad sets dx = rstd·(gain·dy - m1 - x̂·m2), with x̂ as for [NormPlane]. dx may be x or dy.
func NormPlaneGrad[T Float](dx, x, dy []T, mean, rstd, gain, m1, m2 T) {
	k := table[T]().normPlaneGrad
	each3("NormPlaneGrad", func(dx, x, dy []T) { k(dx, x, dy, mean, rstd, gain, m1, m2) }, dx, x, dy)
}
