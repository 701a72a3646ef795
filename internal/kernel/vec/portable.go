package vec

import "math"

// The portable kernels define the result of every primitive. They compute in float64 and round once
// at the end where that costs nothing. So the float32 kernels are a reference for the assembly.

func portable() isa {
	return isa{"portable", portableKernels[float32](), portableKernels[float64](), lowKernels{}}
}

func portableKernels[T Float]() kernels[T] {
	k := kernels[T]{
		add: addGo[T], sub: subGo[T], mul: mulGo[T], div: divGo[T], lesser: lesserGo[T], greater: greaterGo[T],
		less: lessGo[T], lessOrEqual: lessOrEqualGo[T], equal: equalGo[T], notEqual: notEqualGo[T],
		abs: absGo[T], sqrt: sqrtGo[T], square: squareGo[T], cube: cubeGo[T], inverse: inverseGo[T],
		exp: expGo[T], log: logGo[T], tanh: tanhGo[T], sigmoid: sigmoidGo[T],
		scaleTo: scaleToGo[T], addScaled: addScaledGo[T], fill: fillGo[T], colSum8: colSum8Go[T],
		sum: sumGo[T], sumSquares: sumSquaresGo[T], addSquares: addSquaresGo[T], dot: dotGo[T],
		maximum: maximumGo[T], maxAbs: maxAbsGo[T],
		relu: reluGo[T], silu: eachGo[T](silu), geluErf: eachGo[T](geluErf), geluTanh: eachGo[T](geluTanh),
		reluGrad: reluGradGo[T], siluGrad: slopeGo[T](siluSlope), geluErfGrad: slopeGo[T](geluErfSlope),
		geluTanhGrad: slopeGo[T](geluTanhSlope), tanhGrad: slopeGo[T](tanhSlope), sigmoidGrad: slopeGo[T](sigmoidSlope),
		glu: [gates]func(y, x, up []T){gluGo[T](silu), gluGo[T](geluErf), gluGo[T](geluTanh), gluGo[T](relu), gluGo[T](sigmoid)},
		gluGrad: [gates]func(dx, dup, x, up, dy []T){gluGradGo[T](silu, siluSlope), gluGradGo[T](geluErf, geluErfSlope),
			gluGradGo[T](geluTanh, geluTanhSlope), gluGradGo[T](relu, reluSlope), gluGradGo[T](sigmoid, sigmoidSlope)},
		expSubSum: expSubSumGo[T], softmaxGrad: softmaxGradGo[T],
		norm: normGo[T], normPlain: normPlainGo[T], normGradSums: normGradSumsGo[T], normGrad: normGradGo[T], rotate: rotateGo[T],
		normPlane: normPlaneGo[T], normPlaneSums: normPlaneSumsGo[T], normPlaneGrad: normPlaneGradGo[T],
		maxPairs: maxPairsGo[T], maxPairsGrad: maxPairsGradGo[T],
		adam: adamGo[T], sgd: sgdGo[T], momentum: momentumGo[T], nesterov: nesterovGo[T], dropout: dropoutGo[T], stochastic: stochasticGo,
		encode8: encode8Go, encodeError8: encodeError8Go, decode8: decode8Go, decodeAdd8: decodeAdd8Go,
	}
	for n := 2; n <= fanIn; n++ {
		k.treeSum[n] = treeSumGo[T]
	}
	return k
}

func addGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func scaleToGo[T Float](dst, x []T, alpha T) {
	for i := range dst {
		dst[i] = alpha * x[i]
	}
}

// addScaledGo converts the product explicitly, which keeps a compiler from fusing it with the sum.
func addScaledGo[T Float](dst, x []T, c T) {
	for i := range dst {
		dst[i] += T(c * x[i])
	}
}

func fillGo[T Float](dst []T, v T) {
	for i := range dst {
		dst[i] = v
	}
}

func colSum8Go[T Float](dst, x []T) {
	n := len(dst)
	for j := range dst {
		c := x[j:]
		dst[j] += ((c[0] + c[n]) + (c[2*n] + c[3*n])) + ((c[4*n] + c[5*n]) + (c[6*n] + c[7*n]))
	}
}

func treeSumGo[T Float](dst []T, srcs [][]T, at int, scale T) {
	for i := range dst {
		dst[i] = scale * treeAt(srcs, at+i)
	}
}

func treeAt[T Float](srcs [][]T, i int) T {
	if len(srcs) == 1 {
		return srcs[0][i]
	}
	mid := 1
	for 2*mid < len(srcs) {
		mid *= 2
	}
	return treeAt(srcs[:mid], i) + treeAt(srcs[mid:], i)
}

func sumGo[T Float](x []T) (sum float64) {
	for _, v := range x {
		sum += float64(v)
	}
	return sum
}

func sumSquaresGo[T Float](x []T, center float64) (sum float64) {
	for _, v := range x {
		d := float64(v) - center
		sum += d * d
	}
	return sum
}

func addSquaresGo[T Float](x []T, scale, onHi, both float64) (hi, lo uint64) {
	for _, v := range x {
		s := float64(v) * scale
		t := math.FMA(s, s, onHi)
		hi += math.Float64bits(t)
		lo += math.Float64bits(math.FMA(s, s, both-t))
	}
	return hi, lo
}

func dotGo[T Float](a, b []T) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func maximumGo[T Float](x []T) T {
	m := T(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

// maxAbsGo compares bits: without the sign they order like integers, NaN above infinity.
func maxAbsGo[T Float](x []T) T {
	m := uint64(0)
	for _, v := range x {
		m = max(m, math.Float64bits(float64(v))&^(1<<63))
	}
	return T(math.Float64frombits(m))
}

func adamGo[T Float](p, g, m, v []T, c adamStep[T]) {
	for i := range p {
		grad := c.gradScale*g[i] + c.l2*p[i]
		m[i] = c.beta1*m[i] + c.rest1*grad
		v[i] = c.beta2*v[i] + c.rest2*grad*grad
		denominator := T(math.Sqrt(float64(v[i])))*c.inverse + c.eps
		p[i] = c.decay*p[i] - c.rate*m[i]/denominator
	}
}

func sgdGo[T Float](p, g []T, c sgdStep[T]) {
	for i := range p {
		p[i] -= c.rate * (c.gradScale*g[i] + c.l2*p[i])
	}
}

func momentumGo[T Float](p, g, buf []T, c sgdStep[T]) {
	for i := range p {
		buf[i] = c.momentum*buf[i] + (c.gradScale*g[i] + c.l2*p[i])
		p[i] -= c.rate * buf[i]
	}
}

func nesterovGo[T Float](p, g, buf []T, c sgdStep[T]) {
	for i := range p {
		grad := c.gradScale*g[i] + c.l2*p[i]
		buf[i] = c.momentum*buf[i] + grad
		p[i] -= c.rate * (grad + c.momentum*buf[i])
	}
}

func dropoutGo[T Float](y, x []T, from, key, threshold uint32, scale T) {
	for i := range y {
		if hash32(from+uint32(i), key) >= threshold {
			y[i] = x[i] * scale
		} else {
			y[i] = 0
		}
	}
}
