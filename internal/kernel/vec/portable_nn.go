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

// normalCDF is Φ. erfc keeps the relative accuracy of the left tail, which 1+erf would lose.
func normalCDF(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }

func geluErfGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = T(float64(v) * normalCDF(float64(v)))
	}
}

func geluErfGradGo[T Float](dx, x, dy []T) {
	const norm = 1 / (math.Sqrt2 * math.SqrtPi)
	for i, v := range x {
		a := clamp(float64(v), 40) // x·φ(x) is 0 beyond, not 0·Inf
		dx[i] = T(float64(dy[i]) * (normalCDF(a) + a*norm*math.Exp(-a*a/2)))
	}
}

// The tanh form of GELU is x·σ(2u), σ(z) = 1/(1+e⁻ᶻ), 2u = x·(tanhA + tanhB·x²).
const (
	tanhA = 2 * 0.797884560802865355879892119868763736951717262 // 2·√(2/π)
	tanhB = tanhA * 0.044715
)

func geluTanhGo[T Float](y, x []T) {
	for i, v := range x {
		a := float64(v)
		y[i] = T(a / (1 + math.Exp(-a*(tanhA+tanhB*a*a))))
	}
}

func geluTanhGradGo[T Float](dx, x, dy []T) {
	for i, v := range x {
		a := clamp(float64(v), 30) // the derivative is 0 or 1 beyond, not 0·Inf
		s := 1 / (1 + math.Exp(-a*(tanhA+tanhB*a*a)))
		dx[i] = T(float64(dy[i]) * (s + a*s*(1-s)*(tanhA+3*tanhB*a*a)))
	}
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
