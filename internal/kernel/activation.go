package kernel

import "github.com/gofsdp/gofsdp/internal/kernel/vec"

// The activations work element by element on slices of equal length: y may be x, and dx may be x or
// dy.

// ReLU computes y = max(x, 0).
func ReLU[T Float](y, x []T) { vec.ReLU(y, x) }

// ReLUGrad computes dx = dy where x > 0, else 0.
func ReLUGrad[T Float](dx, x, dy []T) { vec.ReLUGrad(dx, x, dy) }

// SiLU computes y = x·σ(x) = x/(1 + e⁻ˣ) (Elfwing et al. 2017, https://arxiv.org/abs/1702.03118).
func SiLU[T Float](y, x []T) { vec.SiLU(y, x) }

// SiLUGrad is the gradient of [SiLU] at x.
func SiLUGrad[T Float](dx, x, dy []T) { vec.SiLUGrad(dx, x, dy) }

// GELU computes y = x·Φ(x) = x/2·(1 + erf(x/√2)) (Hendrycks and Gimpel 2016,
// https://arxiv.org/abs/1606.08415).
func GELU[T Float](y, x []T) { vec.GELUErf(y, x) }

// GELUGrad is the gradient of [GELU] at x.
func GELUGrad[T Float](dx, x, dy []T) { vec.GELUErfGrad(dx, x, dy) }

// GELUTanh computes the tanh approximation of [GELU] that GPT-2 and T5 v1.1 were trained with, y =
// x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
func GELUTanh[T Float](y, x []T) { vec.GELUTanh(y, x) }

// GELUTanhGrad is the gradient of [GELUTanh] at x.
func GELUTanhGrad[T Float](dx, x, dy []T) { vec.GELUTanhGrad(dx, x, dy) }

// Dropout zeroes elements with probability rate in [0, 1) and scales the rest by 1/(1-rate).
// Whether element i is kept depends only on seed and base+i, so the same call on dy is the gradient
// and no mask is stored; base is the position of x[0] in the whole tensor. y may be x.
func Dropout[T Float](y, x []T, seed, base uint64, rate float64) { vec.Dropout(y, x, seed, base, rate) }
