package main

import (
	"math"
	"strings"
)

var negInf = math.Inf(-1)

// expCoefficients approximate eʳ for |r| ≤ ln(2)/2 with a relative error of 2e-9 (minimax by Remez'
// exchange).
var expCoefficients = []float64{
	1, 1.00000003654, 0.499999920323, 0.166664191907, 0.0416682317992, 0.00837489834401, 0.00138367421264,
}

// These are ln 2 in two parts: the upper one has so few digits that its product with an integer
// below 2¹¹ is exact.
const (
	ln2Upper = 0.693359375
	ln2Lower = math.Ln2 - ln2Upper
)

// exp is e^(x+extra) for |x| < 150 and a tiny extra; nil means 0. It is 2ⁿ·eʳ with n the integer
// next to x/ln 2. Results beyond the range of float32 are 0, denormal or infinite, correctly.
func (b *body) exp(x, extra *value) *value {
	n := b.round(b.mul(x, b.constant(1/math.Ln2)))
	r := b.fnma(n, b.constant(ln2Upper), x)
	r = b.fnma(n, b.constant(ln2Lower), r)
	if extra != nil {
		r = b.add(r, extra)
	}
	return b.timesPower(b.poly(r, expCoefficients...), n)
}

// limited clamps x to a range slightly wider than the range in which exp is neither 0 nor infinite.
// NaN is kept.
func (b *body) limited(x *value) *value { return b.max(b.register(-105), b.min(b.register(90), x)) }

// round is the nearest integer.
func (b *body) round(x *value) *value {
	switch {
	case b.isa.wide:
		return b.unary("VRNDSCALEPS", x, "$0")
	case b.isa.neon:
		return b.unary("VROUNDPS", x)
	}
	return b.unary("VROUNDPS", x, "$0")
}

// timesPower is p·2ⁿ for p near 1 and an integral n with |n| < 250. If the instruction set has no
// instruction for it, half of n is added to the exponent of p and the other half is multiplied, so
// that only the last operation can leave the range of normal numbers.
func (b *body) timesPower(p, n *value) *value {
	if b.isa.wide {
		return b.binary("VSCALEFPS", p, n)
	}
	const mantissa = "$23"
	i := b.unary("VCVTPS2DQ", n)
	half := b.unary("VPSRAD", i, "$1")
	rest := b.binary("VPSUBD", i, half)
	p = b.binary("VPADDD", p, b.unary("VPSLLD", half, mantissa))
	power := b.binary("VPADDD", b.unary("VPSLLD", rest, mantissa), b.word(math.Float32bits(1)))
	return b.mul(p, power)
}

// tailCoefficients approximate Φ(-a)·exp(a²/2) = t·(c[0] + c[1]·t + …) with t = 1/(1 + tailScale·a)
// for 0 ≤ a ≤ 14.5, with a relative error of 2.4e-8 (minimax by Remez' exchange; the form is from
// Hastings, Approximations for Digital Computers, 1955).
var tailCoefficients = []float64{
	0.1077206568, 0.1075428733, 0.1018106145, 0.0720495819, 0.1078257099, -0.06921090114, 0.1697862935, -0.1264859337, 0.0289611167,
}

const tailScale = 0.27

// A gate is the activation of a gated linear unit.
type gate struct {
	name, index string // index is the constant of package vec
	value       func(b *body, x *value) *value
	// slope is the derivative. y returns the activation and reuses common values.
	slope func(b *body, x *value) (slope *value, y func() *value)
}

var gates = []gate{
	{"SiLU", "GateSiLU", siluValue, siluSlope}, {"GELUErf", "GateGELUErf", geluErfValue, geluErfSlope},
	{"GELUTanh", "GateGELUTanh", geluTanhValue, geluTanhSlope}, {"ReLU", "GateReLU", reluValue, reluSlope},
	{"Sigmoid", "GateSigmoid", (*body).sigmoid, sigmoidSlope},
}

func siluValue(b *body, x *value) *value {
	one := b.register(1)
	e := b.exp(b.limited(b.mul(x, b.constant(-1))), nil)
	return b.mul(x, b.div(one, b.add(e, one)))
}

func siluSlope(b *body, x *value) (slope *value, y func() *value) {
	const limit = 80 // within 1e-32 of 0 or 1 beyond, and e still finite
	one := b.register(1)
	a := b.max(b.register(-limit), b.min(b.register(limit), x))
	e := b.exp(b.mul(a, b.constant(-1)), nil)
	s := b.div(one, b.add(e, one))
	slope = b.mul(a, b.mul(e, s)) // 1-σ = e·σ, without the cancellation
	return b.fma(slope, s, s), func() *value { return b.mul(x, s) }
}

func geluErfValue(b *body, x *value) *value {
	_, density, tail := b.normal(x)
	return b.mul(x, b.mirrored(x, b.mul(density, tail)))
}

func geluErfSlope(b *body, x *value) (slope *value, y func() *value) {
	a, density, tail := b.normal(x)
	q := b.mul(density, b.fnma(a, b.constant(1/math.Sqrt(2*math.Pi)), tail)) // Φ(-a) - a·φ(a)
	return b.mirrored(x, q), func() *value { return b.mul(x, b.mirrored(x, b.mul(density, tail))) }
}

func geluTanhValue(b *body, x *value) *value {
	_, _, _, s := b.tanhGate(x, 12) // 0 or 1 beyond, in float32
	return b.mul(x, s)
}

func geluTanhSlope(b *body, x *value) (slope *value, y func() *value) {
	a, square, e, s := b.tanhGate(x, 9.5) // within 1e-30 of 0 or 1 beyond, and e still finite
	slope = b.mul(b.poly(square, tanhA, 3*tanhB), a)
	slope = b.mul(slope, b.mul(e, s)) // 1-σ = e·σ, without the cancellation
	return b.fma(slope, s, s), func() *value { return b.mul(x, s) }
}

func reluValue(b *body, x *value) *value { return b.keepIf(notLess, x, b.zero(), x) }

func reluSlope(b *body, x *value) (slope *value, y func() *value) {
	return b.keepIf(notLessOrEqual, x, b.zero(), b.register(1)), func() *value { return reluValue(b, x) }
}

// sigmoidSlope returns the derivative by bell.
func sigmoidSlope(b *body, x *value) (slope *value, y func() *value) {
	one := b.register(1)
	e := b.exp(b.limited(b.sub(b.zero(), b.and(x, b.word(absBits)))), nil)
	s := b.div(one, b.add(e, one))
	rest := b.mul(e, s)
	return b.mul(rest, s), func() *value { return b.ifNegative(x, rest, s) }
}

// activations are the kernels that need an exponential.
func activations() []kernel {
	twoOf := [2]int{2, 2}
	list := []kernel{
		{name: "expSubSum", params: "y, x []T, scale, m T", result: "float64", unroll: twoOf, only32: true,
			finish: func(f *function) {
				f.returns("ret", f.results(), f.fold("sum", "VADDPD", 64), 64)
			},
			body: func(b *body) {
				e := b.exp(b.limited(b.fms(b.load("x"), b.scalar("scale"), b.scalar("m"))), nil)
				b.store("y", e)
				b.accumulateWide(b.accumulator("sum", nil), b.present(e, nil))
			}},
	}
	for _, g := range gates {
		list = append(list, g.kernels(twoOf)...)
	}
	return list
}

// kernels are the kernels of the activation, unless it is among the arithmetic or the functions,
// and the kernels of the gated linear unit.
func (g gate) kernels(unroll [2]int) []kernel {
	name := strings.ToLower(g.name[:4]) + g.name[4:]
	plain := []kernel{
		{name: name, params: "y, x []T", unroll: unroll, only32: true, body: func(b *body) {
			b.store("y", g.value(b, b.load("x")))
		}},
		{name: name + "Grad", params: "dx, x, dy []T", unroll: unroll, only32: true, body: func(b *body) {
			slope, _ := g.slope(b, b.load("x"))
			b.store("dx", b.mul(slope, b.load("dy")))
		}},
	}
	if g.name == "ReLU" || g.name == "Sigmoid" {
		plain = nil
	}
	return append(plain,
		kernel{name: "glu" + g.name, at: "glu[" + g.index + "]", params: "y, x, up []T", unroll: unroll, only32: true, body: func(b *body) {
			b.store("y", b.mul(g.value(b, b.load("x")), b.load("up")))
		}},
		kernel{name: "glu" + g.name + "Grad", at: "gluGrad[" + g.index + "]", params: "dx, dup, x, up, dy []T", unroll: [2]int{unroll[0], 1}, only32: true,
			body: func(b *body) {
				slope, y := g.slope(b, b.load("x"))
				dy := b.load("dy")
				dx := b.mul(slope, b.mul(dy, b.load("up")))
				b.store("dup", b.mul(y(), dy))
				b.store("dx", dx)
			}})
}

// functions are elementary functions.
func functions() []kernel {
	twoOf := [2]int{2, 2}
	return []kernel{
		{name: "exp", params: "y, x []T", unroll: twoOf, only32: true, body: func(b *body) {
			b.store("y", b.exp(b.limited(b.load("x")), nil))
		}},
		{name: "sigmoid", params: "y, x []T", unroll: twoOf, only32: true, body: func(b *body) {
			b.store("y", b.sigmoid(b.load("x")))
		}},
		{name: "sigmoidGrad", params: "dx, x, dy []T", unroll: twoOf, only32: true, body: func(b *body) {
			b.store("dx", b.mul(b.bell(b.load("x")), b.load("dy")))
		}},
		{name: "tanh", params: "y, x []T", unroll: twoOf, only32: true, body: func(b *body) {
			b.store("y", b.tanh(b.load("x")))
		}},
		{name: "tanhGrad", params: "dx, x, dy []T", unroll: twoOf, only32: true, body: func(b *body) {
			x := b.load("x")
			b.store("dx", b.mul(b.mul(b.bell(b.add(x, x)), b.constant(4)), b.load("dy")))
		}},
		{name: "log", params: "y, x []T", unroll: [2]int{2, 1}, only32: true, body: logarithm},
	}
}

func (b *body) sigmoid(x *value) *value {
	one := b.register(1)
	e := b.exp(b.limited(b.sub(b.zero(), x)), nil)
	return b.div(one, b.add(e, one))
}

// bell is the derivative of the sigmoid, e/(1+e)² with e = e^-|x|: s - s² would cancel where s is
// near 1.
func (b *body) bell(x *value) *value {
	one := b.register(1)
	e := b.exp(b.limited(b.sub(b.zero(), b.and(x, b.word(absBits)))), nil)
	d := b.add(e, one)
	return b.div(e, b.mul(d, d))
}

// tanhCoefficients approximate (tanh(a)/a - 1)/a² as a polynomial in a² for 0 ≤ a ≤ tanhNear, such
// that tanh has a relative error of 1.7e-9 (minimax by Lawson's iteration).
var tanhCoefficients = []float64{-0.3333331512, 0.1333269408, -0.05389272431, 0.02145203432, -0.007657255291, 0.001736935737}

const tanhNear = 0.75

// tanh is a polynomial near 0, and (e²ᵃ - 1)/(e²ᵃ + 1) with a = |x| elsewhere, with the sign of x.
func (b *body) tanh(x *value) *value {
	one := b.register(1)
	a := b.min(b.register(10), b.and(x, b.word(absBits))) // 1 beyond, in float32
	square := b.mul(a, a)
	small := b.mul(b.fma(square, b.poly(square, tanhCoefficients...), one), a)
	e := b.exp(b.add(a, a), nil)
	large := b.div(b.sub(e, one), b.add(e, one))
	y := b.ifNegative(b.sub(a, b.constant(tanhNear)), small, large)
	return b.or(y, b.and(x, b.word(signBit)))
}

// logCoefficients approximate (log(1+f) - f + f²/2)/f³ for √½ ≤ 1+f ≤ √2, such that log has a
// relative error of 6e-9 (minimax by Lawson's iteration).
var logCoefficients = []float64{
	0.3333333171, -0.2500082103, 0.2000122688, -0.1662335736, 0.1420175792, -0.1316018216, 0.1276157753, -0.07634497755,
}

// logarithm writes x as 2ⁿ·(1+f) with √½ ≤ 1+f < √2. Denormal numbers are made normal first. The
// exponent is converted by way of the bits of 2²³+n.
func logarithm(b *body) {
	const mantissa, magic, bias = "$23", 1 << 23, 192
	x := b.load("x")
	tiny := b.sub(x, b.constant(0x1p-126))
	normal := b.ifNegative(tiny, b.mul(x, b.constant(magic)), x)
	upper := b.binary("VPADDD", normal, b.word(bias<<23-math.Float32bits(math.Sqrt2/2))) // n+bias in its exponent
	exponent := b.unary("VPSRLD", upper, mantissa)
	n := b.sub(b.binary("VPADDD", exponent, b.word(math.Float32bits(magic))), b.constant(magic+bias))
	n = b.sub(n, b.ifNegative(tiny, b.constant(23), b.zero()))
	power := b.binary("VPSUBD", b.unary("VPSLLD", exponent, mantissa), b.word(bias<<23))
	f := b.sub(b.binary("VPSUBD", normal, power), b.constant(1))
	square := b.mul(f, f)
	y := b.mul(b.mul(square, f), b.poly(f, logCoefficients...))
	y = b.fma(n, b.constant(ln2Lower), y)
	y = b.add(b.fnma(square, b.constant(0.5), y), f)
	y = b.fma(n, b.constant(ln2Upper), y)
	y = b.fma(b.sqrt(b.min(b.register(1), x)), b.zero(), y) // NaN for NaN and for negative numbers
	y = b.ifNegative(b.sub(b.register(math.MaxFloat32), x), x, y)
	b.store("y", b.ifNegative(b.sub(b.and(x, b.word(absBits)), b.constant(0x1p-149)), b.constant(negInf), y))
}

// normal returns a = |x|, at most 15 (where Φ(-a) is 0 in float32), exp(-a²/2), and
// Φ(-a)·exp(a²/2). The exponent is exact: the rounding error of the square is added to the
// exponential too, since it would otherwise grow with a² in the left tail.
func (b *body) normal(x *value) (a, density, tail *value) {
	one := b.register(1)
	a = b.min(b.register(15), b.and(x, b.word(absBits)))
	t := b.div(one, b.fma(a, b.constant(tailScale), one))
	tail = b.mul(b.poly(t, tailCoefficients...), t)
	square := b.mul(a, a)
	extra := b.mul(b.fms(a, a, square), b.constant(-0.5))
	return a, b.exp(b.mul(square, b.constant(-0.5)), extra), tail
}

// mirrored is q for negative x, else 1-q.
func (b *body) mirrored(x, q *value) *value { return b.ifNegative(x, q, b.sub(b.register(1), q)) }

// The tanh form of GELU is x·σ(2u), σ(z) = 1/(1+e⁻ᶻ), 2u = x·(tanhA + tanhB·x²).
const (
	tanhA = 2 * 0.797884560802865355879892119868763736951717262 // 2·√(2/π)
	tanhB = tanhA * 0.044715
)

// tanhGate returns a = x clamped to ±limit, a², e = exp(-2u) and σ(2u) = 1/(1+e).
func (b *body) tanhGate(x *value, limit float64) (a, square, e, s *value) {
	one := b.register(1)
	a = b.max(b.register(-limit), b.min(b.register(limit), x))
	square = b.mul(a, a)
	e = b.exp(b.mul(a, b.poly(square, -tanhA, -tanhB)), nil)
	return a, square, e, b.div(one, b.add(e, one))
}
