package vec

import "math"

func subGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = a[i] - b[i]
	}
}

func mulGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = a[i] * b[i]
	}
}

func divGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = a[i] / b[i]
	}
}

func lesserGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = min(a[i], b[i])
	}
}

func greaterGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = max(a[i], b[i])
	}
}

func lessGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = truth[T](a[i] < b[i])
	}
}

func lessOrEqualGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = truth[T](a[i] <= b[i])
	}
}

func equalGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = truth[T](a[i] == b[i])
	}
}

func notEqualGo[T Float](dst, a, b []T) {
	for i := range dst {
		dst[i] = truth[T](a[i] != b[i])
	}
}

func truth[T Float](is bool) T {
	if is {
		return 1
	}
	return 0
}

func absGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = T(math.Abs(float64(v)))
	}
}

func sqrtGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = T(math.Sqrt(float64(v)))
	}
}

func squareGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = v * v
	}
}

func cubeGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = v * v * v
	}
}

func inverseGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = 1 / v
	}
}

func expGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = T(math.Exp(float64(v)))
	}
}

func logGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = T(math.Log(float64(v)))
	}
}

func tanhGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = T(math.Tanh(float64(v)))
	}
}

func sigmoidGo[T Float](y, x []T) {
	for i, v := range x {
		y[i] = T(sigmoid(float64(v)))
	}
}
