package vec

import "math"

func reluGo[T Float](y, x []T) {
	for i, v := range x {
		if v < 0 {
			v = 0
		}
		y[i] = v
	}
}

func reluGradGo[T Float](dx, x, dy []T) {
	for i, v := range x {
		if v <= 0 {
			dx[i] = 0
		} else {
			dx[i] = dy[i]
		}
	}
}

// eachGo and slopeGo apply a function, or the derivative of one.
func eachGo[T Float](f func(x float64) float64) func(y, x []T) {
	return func(y, x []T) {
		for i, v := range x {
			y[i] = T(f(float64(v)))
		}
	}
}

func slopeGo[T Float](slope func(x float64) float64) func(dx, x, dy []T) {
	return func(dx, x, dy []T) {
		for i, v := range x {
			dx[i] = T(float64(dy[i]) * slope(float64(v)))
		}
	}
}

func gluGo[T Float](f func(x float64) float64) func(y, x, up []T) {
	return func(y, x, up []T) {
		for i, v := range x {
			y[i] = T(f(float64(v)) * float64(up[i]))
		}
	}
}

func gluGradGo[T Float](f, slope func(x float64) float64) func(dx, dup, x, up, dy []T) {
	return func(dx, dup, x, up, dy []T) {
		for i, v := range x {
			d, a := float64(dy[i]), float64(v)
			dx[i], dup[i] = T(slope(a)*(d*float64(up[i]))), T(f(a)*d)
		}
	}
}

func relu(x float64) float64 {
	if x < 0 {
		return 0
	}
	return x
}

func reluSlope(x float64) float64 {
	if x <= 0 {
		return 0
	}
	return 1
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

func siluSlope(x float64) float64 {
	a := clamp(x, 300) // the derivative is 0 or 1 beyond, not 0·Inf
	e := math.Exp(-a)
	s := 1 / (1 + e)
	return s + a*s*(e*s) // 1-s = e·s, without the cancellation
}

// normalCDF is Φ. erfc keeps the relative accuracy of the left tail, which 1+erf would lose.
func normalCDF(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }

func geluErf(x float64) float64 { return x * normalCDF(x) }

func geluErfSlope(x float64) float64 {
	const norm = 1 / (math.Sqrt2 * math.SqrtPi)
	a := clamp(x, 40) // x·φ(x) is 0 beyond, not 0·Inf
	return normalCDF(a) + a*norm*math.Exp(-a*a/2)
}

// The tanh form of GELU is x·σ(2u), σ(z) = 1/(1+e⁻ᶻ), 2u = x·(tanhA + tanhB·x²).
const (
	tanhA = 2 * 0.797884560802865355879892119868763736951717262 // 2·√(2/π)
	tanhB = tanhA * 0.044715
)

func geluTanh(x float64) float64 { return x / (1 + math.Exp(-x*(tanhA+tanhB*x*x))) }

func geluTanhSlope(x float64) float64 {
	a := clamp(x, 30) // the derivative is 0 or 1 beyond, not 0·Inf
	s := 1 / (1 + math.Exp(-a*(tanhA+tanhB*a*a)))
	return s + a*s*(1-s)*(tanhA+3*tanhB*a*a)
}

func tanhSlope(x float64) float64 {
	return 4 * sigmoidSlope(2*x)
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func sigmoidSlope(x float64) float64 {
	e := math.Exp(-math.Abs(x))
	return e / ((1 + e) * (1 + e))
}

func clamp(x, limit float64) float64 { return max(-limit, min(x, limit)) }

func expSubSumGo[T Float](y, x []T, scale, m T) (sum float64) {
	for i, v := range x {
		e := math.Exp(float64(scale)*float64(v) - float64(m))
		y[i] = T(e)
		sum += e
	}
	return sum
}

func softmaxGradGo[T Float](dx, p, dp []T, delta, scale T) {
	for i := range dx {
		dx[i] = scale * p[i] * (dp[i] - delta)
	}
}

func normGo[T Float](y, x, gain, bias []T, mean, rstd T) {
	for i := range y {
		y[i] = (x[i]-mean)*rstd*gain[i] + bias[i]
	}
}

func normPlainGo[T Float](y, x, gain []T, mean, rstd T) {
	for i := range y {
		y[i] = (x[i] - mean) * rstd * gain[i]
	}
}

func normGradSumsGo[T Float](dgain, x, gain, dy []T, mean, rstd T) (s1, s2 float64) {
	for i := range x {
		hat := (x[i] - mean) * rstd
		g := gain[i] * dy[i]
		dgain[i] += dy[i] * hat
		s1 += float64(g)
		s2 += float64(g) * float64(hat)
	}
	return s1, s2
}

func normGradGo[T Float](dx, x, gain, dy []T, mean, rstd, c1, c2 T) {
	for i := range dx {
		hat := (x[i] - mean) * rstd
		dx[i] = rstd * (gain[i]*dy[i] - c1 - hat*c2)
	}
}

func normPlaneGo[T Float](y, x []T, mean, rstd, gain, bias T) {
	for i := range y {
		y[i] = (x[i]-mean)*rstd*gain + bias
	}
}

func normPlaneSumsGo[T Float](x, dy []T, mean, rstd T) (s1, s2 float64) {
	for i, g := range dy {
		s1 += float64(g)
		s2 += float64(g) * float64((x[i]-mean)*rstd)
	}
	return s1, s2
}

func normPlaneGradGo[T Float](dx, x, dy []T, mean, rstd, gain, c1, c2 T) {
	for i := range dx {
		hat := (x[i] - mean) * rstd
		dx[i] = rstd * (gain*dy[i] - c1 - hat*c2)
	}
}

func rotateGo[T Float](a, b, x, y, cos, sin []T) {
	for i, c := range cos {
		x, y, s := x[i], y[i], sin[i]
		a[i], b[i] = x*c-y*s, x*s+y*c
	}
}
