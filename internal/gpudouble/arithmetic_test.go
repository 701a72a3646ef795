//go:build linux && cgo

package gpudouble_test

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/half"
)

// An instruction and what it means, by bits: of each argument those of its type, of the result as
// many count. In the code D is the result, and A, B, C are the arguments.
type instruction struct {
	code  string
	types string // of the result and the arguments
	want  func(a, b, c uint64) uint64
}

// rounded returns the float32 nearest to an exact result, or what float64 says if there is none.
func rounded(exact func(a, b, c *big.Float) *big.Float, plain func(a, b, c float64) float64) func(a, b, c uint64) uint64 {
	return func(a, b, c uint64) uint64 {
		x, y, z := float64(f32(a)), float64(f32(b)), float64(f32(c))
		p := plain(x, y, z)
		if math.IsNaN(p) || math.IsInf(p, 0) || p == 0 {
			return b32(float32(p))
		}
		wide := func(v float64) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(v) }
		f, _ := exact(wide(x), wide(y), wide(z)).Float32()
		return b32(f)
	}
}

func word(f func(a, b, c int64) int64) func(a, b, c uint64) uint64 {
	return func(a, b, c uint64) uint64 { return uint64(f(int64(s32(a)), int64(s32(b)), int64(s32(c)))) }
}

func long(f func(a, b, c uint64) uint64) func(a, b, c uint64) uint64 { return f }

func float(f func(a, b float32) bool) func(a, b, c uint64) uint64 {
	return func(a, b, c uint64) uint64 { return truth(f(f32(a), f32(b))) }
}

func shift(n int, f func(v uint64, by uint) uint64) func(a, b, c uint64) uint64 {
	return func(a, b, c uint64) uint64 { return f(a, uint(min(b, uint64(n)))) }
}

// least is min with its rules for NaN and -0.
func least(a, b float64) float64 {
	switch {
	case math.IsNaN(a):
		return b
	case math.IsNaN(b):
		return a
	}
	return math.Min(a, b)
}

func clamp(x float64, lo, hi float64) float64 { return math.Max(lo, math.Min(x, hi)) }

var instructions = []instruction{
	{"add.s32 D, A, B;", "s32 s32 s32", word(func(a, b, _ int64) int64 { return a + b })},
	{"sub.u32 D, A, B;", "u32 u32 u32", word(func(a, b, _ int64) int64 { return a - b })},
	{"mul.lo.s32 D, A, B;", "s32 s32 s32", word(func(a, b, _ int64) int64 { return a * b })},
	{"mul.hi.s32 D, A, B;", "s32 s32 s32", word(func(a, b, _ int64) int64 { return a * b >> 32 })},
	{"mul.hi.u32 D, A, B;", "u32 u32 u32", long(func(a, b, _ uint64) uint64 { return a * b >> 32 })},
	{"mul.wide.s32 D, A, B;", "s64 s32 s32", word(func(a, b, _ int64) int64 { return a * b })},
	{"mul.wide.u32 D, A, B;", "u64 u32 u32", long(func(a, b, _ uint64) uint64 { return a * b })},
	{"mul.wide.s16 D, A, B;", "s32 s16 s16", long(func(a, b, _ uint64) uint64 { return uint64(int64(int16(a)) * int64(int16(b))) })},
	{"mad.lo.s32 D, A, B, C;", "s32 s32 s32 s32", word(func(a, b, c int64) int64 { return a*b + c })},
	{"mad.hi.s32 D, A, B, C;", "s32 s32 s32 s32", word(func(a, b, c int64) int64 { return a*b>>32 + c })},
	{"mad.wide.s32 D, A, B, C;", "s64 s32 s32 s64", long(func(a, b, c uint64) uint64 { return uint64(int64(s32(a))*int64(s32(b)) + int64(c)) })},
	{"add.s64 D, A, B;", "s64 s64 s64", long(func(a, b, _ uint64) uint64 { return a + b })},
	{"mul.lo.u64 D, A, B;", "u64 u64 u64", long(func(a, b, _ uint64) uint64 { return a * b })},
	{"mad.lo.s64 D, A, B, C;", "s64 s64 s64 s64", long(func(a, b, c uint64) uint64 { return a*b + c })},
	{"mul.hi.u64 D, A, B;", "u64 u64 u64", long(func(a, b, _ uint64) uint64 { hi, _ := bits.Mul64(a, b); return hi })},
	{"mul.hi.s64 D, A, B;", "s64 s64 s64", long(func(a, b, _ uint64) uint64 {
		hi, _ := bits.Mul64(a, b)
		return hi - b*(a>>63) - a*(b>>63)
	})},
	{"div.s32 D, A, B;", "s32 s32 s32", word(func(a, b, _ int64) int64 {
		if b == 0 {
			return -1
		}
		return a / b
	})},
	{"rem.u32 D, A, B;", "u32 u32 u32", long(func(a, b, _ uint64) uint64 {
		if b == 0 {
			return a
		}
		return a % b
	})},
	{"div.s64 D, A, B;", "s64 s64 s64", long(func(a, b, _ uint64) uint64 {
		if b == 0 {
			return ^uint64(0)
		}
		return uint64(int64(a) / int64(b))
	})},
	{"rem.s64 D, A, B;", "s64 s64 s64", long(func(a, b, _ uint64) uint64 {
		if b == 0 {
			return a
		}
		return uint64(int64(a) % int64(b))
	})},
	{"min.s32 D, A, B;", "s32 s32 s32", word(func(a, b, _ int64) int64 { return min(a, b) })},
	{"max.u64 D, A, B;", "u64 u64 u64", long(func(a, b, _ uint64) uint64 { return max(a, b) })},
	{"min.s64 D, A, B;", "s64 s64 s64", long(func(a, b, _ uint64) uint64 { return uint64(min(int64(a), int64(b))) })},
	{"abs.s32 D, A;", "s32 s32", word(func(a, _, _ int64) int64 { return max(a, -a) })},
	{"neg.s64 D, A;", "s64 s64", long(func(a, _, _ uint64) uint64 { return -a })},
	{"sad.s32 D, A, B, C;", "s32 s32 s32 s32", word(func(a, b, c int64) int64 { return c + max(a-b, b-a) })},
	{"and.b64 D, A, B;", "b64 b64 b64", long(func(a, b, _ uint64) uint64 { return a & b })},
	{"or.b16 D, A, B;", "b16 b16 b16", long(func(a, b, _ uint64) uint64 { return a | b })},
	{"xor.b32 D, A, B;", "b32 b32 b32", long(func(a, b, _ uint64) uint64 { return a ^ b })},
	{"not.b32 D, A;", "b32 b32", long(func(a, _, _ uint64) uint64 { return ^a })},
	{"cnot.b32 D, A;", "b32 b32", long(func(a, _, _ uint64) uint64 { return truth(a == 0) })},
	{"add.s16 D, A, B;", "s16 s16 s16", long(func(a, b, _ uint64) uint64 { return a + b })},
	{"mul.lo.s16 D, A, B;", "s16 s16 s16", long(func(a, b, _ uint64) uint64 { return a * b })},
	{"shr.s16 D, A, 3;", "s16 s16", long(func(a, _, _ uint64) uint64 { return uint64(int16(a) >> 3) })},
	{"shl.b32 D, A, B;", "b32 b32 u32", shift(64, func(v uint64, by uint) uint64 { return v << by })},
	{"shr.u32 D, A, B;", "u32 u32 u32", shift(64, func(v uint64, by uint) uint64 { return v >> by })},
	{"shr.s32 D, A, B;", "s32 s32 u32", shift(64, func(v uint64, by uint) uint64 { return uint64(int64(s32(v)) >> by) })},
	{"shl.b64 D, A, B;", "b64 b64 u32", shift(64, func(v uint64, by uint) uint64 { return v << by })},
	{"shr.s64 D, A, B;", "s64 s64 u32", shift(64, func(v uint64, by uint) uint64 { return uint64(int64(v) >> by) })},
	{"shf.l.wrap.b32 D, A, B, C;", "b32 b32 b32 b32", long(func(a, b, c uint64) uint64 { return (b<<32 | a) << (c & 31) >> 32 })},
	{"shf.r.wrap.b32 D, A, B, C;", "b32 b32 b32 b32", long(func(a, b, c uint64) uint64 { return (b<<32 | a) >> (c & 31) })},
	{"shf.l.clamp.b32 D, A, B, C;", "b32 b32 b32 b32", long(func(a, b, c uint64) uint64 { return (b<<32 | a) << min(c, 32) >> 32 })},
	{"prmt.b32 D, A, B, 0x5214;", "b32 b32 b32", long(func(a, b, _ uint64) uint64 {
		return b&0xff | a>>8&0xff<<8 | a>>16&0xff<<16 | b>>8&0xff<<24
	})},
	{"lop3.b32 D, A, B, C, 0xe8;", "b32 b32 b32 b32", long(func(a, b, c uint64) uint64 { return a&b | a&c | b&c })},
	{"bfe.u32 D, A, 5, 9;", "u32 u32", long(func(a, _, _ uint64) uint64 { return a >> 5 & 511 })},
	{"bfe.s32 D, A, 5, 9;", "s32 s32", long(func(a, _, _ uint64) uint64 { return uint64(int64(a<<50) >> 55) })},
	{"bfe.s32 D, A, 28, 9;", "s32 s32", long(func(a, _, _ uint64) uint64 { return uint64(s32(a) >> 28) })},
	{"bfe.u64 D, A, 33, 20;", "u64 u64", long(func(a, _, _ uint64) uint64 { return a >> 33 & (1<<20 - 1) })},
	{"bfi.b32 D, A, B, 4, 8;", "b32 b32 b32", long(func(a, b, _ uint64) uint64 { return b&^0xff0 | a<<4&0xff0 })},
	{"bfi.b64 D, A, B, 40, 16;", "b64 b64 b64", long(func(a, b, _ uint64) uint64 { return b&^(0xffff<<40) | a&0xffff<<40 })},
	{"brev.b32 D, A;", "b32 b32", long(func(a, _, _ uint64) uint64 { return uint64(bits.Reverse32(uint32(a))) })},
	{"brev.b64 D, A;", "b64 b64", long(func(a, _, _ uint64) uint64 { return bits.Reverse64(a) })},
	{"popc.b32 D, A;", "u32 b32", long(func(a, _, _ uint64) uint64 { return uint64(bits.OnesCount64(a)) })},
	{"clz.b64 D, A;", "u32 b64", long(func(a, _, _ uint64) uint64 { return uint64(bits.LeadingZeros64(a)) })},
	{"bfind.u32 D, A;", "u32 u32", long(func(a, _, _ uint64) uint64 { return uint64(bits.Len64(a) - 1) })},
	{"bfind.s64 D, A;", "u32 s64", long(func(a, _, _ uint64) uint64 { return uint64(bits.Len64(a^uint64(int64(a)>>63)) - 1) })},
	{"selp.b64 D, A, B, C;", "b64 b64 b64 pred", long(func(a, b, c uint64) uint64 { return []uint64{b, a}[c&1] })},
	{"slct.f32.s32 D, A, B, C;", "f32 f32 f32 s32", long(func(a, b, c uint64) uint64 { return []uint64{a, b}[c>>31&1] })},
	{"and.pred D, A, B;", "pred pred pred", long(func(a, b, _ uint64) uint64 { return a & b & 1 })},
	{"not.pred D, A;", "pred pred", long(func(a, _, _ uint64) uint64 { return ^a & 1 })},
	{"mov.b64 D, {A, B};", "b64 b32 b32", long(func(a, b, _ uint64) uint64 { return a | b<<32 })},
	{"mov.b32 D, {A, B};", "b32 b16 b16", long(func(a, b, _ uint64) uint64 { return a | b<<16 })},
	{"mov.b64 {_, D}, A;", "b32 b64", long(func(a, _, _ uint64) uint64 { return a >> 32 })},
	{"add.cc.u32 E, A, B; addc.u32 D, A, C;", "u32 u32 u32 u32", long(func(a, b, c uint64) uint64 { return a + c + (a+b)>>32 })},
	{"sub.cc.u32 E, A, B; subc.u32 D, A, C;", "u32 u32 u32 u32", long(func(a, b, c uint64) uint64 { return a - c - truth(a < b) })},
	{"mad.lo.cc.u32 E, A, B, C; madc.hi.u32 D, A, B, 0;", "u32 u32 u32 u32", long(func(a, b, c uint64) uint64 { return (a*b + c) >> 32 })},

	{"add.f32 D, A, B;", "f32 f32 f32", long(func(a, b, _ uint64) uint64 { return b32(f32(a) + f32(b)) })},
	{"mul.f32 D, A, B;", "f32 f32 f32", long(func(a, b, _ uint64) uint64 { return b32(f32(a) * f32(b)) })},
	{"fma.rn.f32 D, A, B, C;", "f32 f32 f32 f32", rounded(
		func(a, b, c *big.Float) *big.Float { return a.Mul(a, b).Add(a, c) }, func(a, b, c float64) float64 { return a*b + c })},
	{"div.rn.f32 D, A, B;", "f32 f32 f32", long(func(a, b, _ uint64) uint64 { return b32(f32(a) / f32(b)) })},
	{"sqrt.rn.f32 D, A;", "f32 f32", long(func(a, _, _ uint64) uint64 { return b32(float32(math.Sqrt(float64(f32(a))))) })},
	{"rcp.rn.f32 D, A;", "f32 f32", long(func(a, _, _ uint64) uint64 { return b32(1 / f32(a)) })},
	{"neg.f32 D, A;", "f32 f32", long(func(a, _, _ uint64) uint64 { return b32(-f32(a)) })},
	{"min.f32 D, A, B;", "f32 f32 f32", long(func(a, b, _ uint64) uint64 { return b32(float32(least(float64(f32(a)), float64(f32(b))))) })},
	{"max.f64 D, A, B;", "f64 f64 f64", long(func(a, b, _ uint64) uint64 { return b64(-least(-f64(a), -f64(b))) })},
	{"min.NaN.f32 D, A, B;", "f32 f32 f32", long(func(a, b, _ uint64) uint64 { return b32(min(f32(a), f32(b))) })},
	{"copysign.f32 D, A, B;", "f32 f32 f32", long(func(a, b, _ uint64) uint64 { return a&(1<<31) | b&(1<<31-1) })},
	{"add.f64 D, A, B;", "f64 f64 f64", long(func(a, b, _ uint64) uint64 { return b64(f64(a) + f64(b)) })},
	{"fma.rn.f64 D, A, B, C;", "f64 f64 f64 f64", long(func(a, b, c uint64) uint64 { return b64(math.FMA(f64(a), f64(b), f64(c))) })},
	{"div.rn.f64 D, A, B;", "f64 f64 f64", long(func(a, b, _ uint64) uint64 { return b64(f64(a) / f64(b)) })},
	{"sqrt.rn.f64 D, A;", "f64 f64", long(func(a, _, _ uint64) uint64 { return b64(math.Sqrt(f64(a))) })},
	{"abs.f64 D, A;", "f64 f64", long(func(a, _, _ uint64) uint64 { return a &^ (1 << 63) })},
	{"rcp.approx.ftz.f64 D, A;", "f64 f64", long(func(a, _, _ uint64) uint64 {
		if a&(0x7ff<<52) == 0 {
			a &= 1 << 63
		}
		r := 1 / f64(a)
		if math.Abs(r) < 0x1p-1022 {
			r = math.Copysign(0, r)
		}
		return b64(r) &^ math.MaxUint32
	})},
	{"add.sat.f32 D, A, B;", "f32 f32 f32", long(func(a, b, _ uint64) uint64 {
		s := float64(f32(a) + f32(b))
		if s != s {
			s = 0
		}
		return b32(float32(clamp(s, 0, 1)))
	})},
	{"add.ftz.f32 D, A, B;", "f32 f32 f32", long(func(a, b, _ uint64) uint64 { return flushed(b32(f32(flushed(a)) + f32(flushed(b)))) })},
	{"add.rz.f32 D, A, B;", "f32 f32 f32", toward(big.ToZero)},
	{"add.rm.f32 D, A, B;", "f32 f32 f32", toward(big.ToNegativeInf)},
	{"add.rp.f32 D, A, B;", "f32 f32 f32", toward(big.ToPositiveInf)},

	{"setp.lt.s32 D, A, B;", "pred s32 s32", word(func(a, b, _ int64) int64 { return int64(truth(a < b)) })},
	{"setp.ge.u32 D, A, B;", "pred u32 u32", long(func(a, b, _ uint64) uint64 { return truth(a >= b) })},
	{"setp.hi.u32 D, A, B;", "pred u32 u32", long(func(a, b, _ uint64) uint64 { return truth(a > b) })},
	{"setp.ne.s64 D, A, B;", "pred s64 s64", long(func(a, b, _ uint64) uint64 { return truth(a != b) })},
	{"setp.le.s16 D, A, B;", "pred s16 s16", long(func(a, b, _ uint64) uint64 { return truth(int16(a) <= int16(b)) })},
	{"setp.eq.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return a == b })},
	{"setp.ne.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return a < b || a > b })},
	{"setp.lt.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return a < b })},
	{"setp.gt.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return a > b })},
	{"setp.equ.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return !(a < b || a > b) })},
	{"setp.neu.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return a != b })},
	{"setp.ltu.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return !(a >= b) })},
	{"setp.leu.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return !(a > b) })},
	{"setp.gtu.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return !(a <= b) })},
	{"setp.geu.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return !(a < b) })},
	{"setp.num.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return a == a && b == b })},
	{"setp.nan.f32 D, A, B;", "pred f32 f32", float(func(a, b float32) bool { return a != a || b != b })},
	{"setp.le.f64 D, A, B;", "pred f64 f64", long(func(a, b, _ uint64) uint64 { return truth(f64(a) <= f64(b)) })},
	{"setp.lt.and.s32 D, A, B, C;", "pred s32 s32 pred", long(func(a, b, c uint64) uint64 { return truth(s32(a) < s32(b)) & c })},
	{"setp.lt.xor.s32 Q|D, A, B, !C;", "pred s32 s32 pred", long(func(a, b, c uint64) uint64 { return (truth(s32(a) >= s32(b)) ^ ^c) & 1 })},

	{"cvt.s64.s32 D, A;", "s64 s32", word(func(a, _, _ int64) int64 { return a })},
	{"cvt.u64.u32 D, A;", "u64 u32", long(func(a, _, _ uint64) uint64 { return a })},
	{"cvt.u32.u64 D, A;", "u32 u64", long(func(a, _, _ uint64) uint64 { return a })},
	{"cvt.s64.s32 D, A;", "s64 s64", word(func(a, _, _ int64) int64 { return a })}, // the lower half of a register
	{"cvt.s32.s8 D, A;", "s32 s16", long(func(a, _, _ uint64) uint64 { return uint64(int8(a)) })},
	{"cvt.u16.u32 D, A;", "u16 u32", long(func(a, _, _ uint64) uint64 { return a })},
	{"cvt.rn.f32.s32 D, A;", "f32 s32", word(func(a, _, _ int64) int64 { return int64(b32(float32(a))) })},
	{"cvt.rn.f32.u64 D, A;", "f32 u64", long(func(a, _, _ uint64) uint64 { return b32(float32(a)) })},
	{"cvt.rn.f64.s64 D, A;", "f64 s64", long(func(a, _, _ uint64) uint64 { return b64(float64(int64(a))) })},
	{"cvt.rn.f32.f64 D, A;", "f32 f64", long(func(a, _, _ uint64) uint64 { return b32(float32(f64(a))) })},
	{"cvt.f64.f32 D, A;", "f64 f32", long(func(a, _, _ uint64) uint64 { return b64(float64(f32(a))) })},
	{"cvt.rzi.s32.f32 D, A;", "s32 f32", toInteger(math.Trunc, math.MinInt32, math.MaxInt32, 0)},
	{"cvt.rni.s32.f32 D, A;", "s32 f32", toInteger(math.RoundToEven, math.MinInt32, math.MaxInt32, 0)},
	{"cvt.rmi.u32.f32 D, A;", "u32 f32", toInteger(math.Floor, 0, math.MaxUint32, 0)},
	{"cvt.rpi.s64.f32 D, A;", "s64 f32", toInteger(math.Ceil, math.MinInt64, math.MaxInt64, math.MinInt64)},
	{"cvt.rni.f32.f32 D, A;", "f32 f32", long(func(a, _, _ uint64) uint64 { return b32(float32(math.RoundToEven(float64(f32(a))))) })},
	{"cvt.rmi.f64.f64 D, A;", "f64 f64", long(func(a, _, _ uint64) uint64 { return b64(math.Floor(f64(a))) })},
	{"cvt.sat.f32.f32 D, A;", "f32 f32", long(func(a, _, _ uint64) uint64 {
		if x := f32(a); x == x {
			return b32(float32(clamp(float64(x), 0, 1)))
		}
		return 0
	})},
	{"cvt.rn.bf16.f32 D, A;", "b16 f32", long(func(a, _, _ uint64) uint64 { return bf16(a) })},
	{"cvt.rn.bf16x2.f32 D, A, B;", "b32 f32 f32", long(func(a, b, _ uint64) uint64 { return bf16(a)<<16 | bf16(b) })},
	{"cvt.rn.f16.f32 D, A;", "b16 f32", long(func(a, _, _ uint64) uint64 { return f16(a) })},
	{"cvt.rn.f16x2.f32 D, A, B;", "b32 f32 f32", long(func(a, b, _ uint64) uint64 { return f16(a)<<16 | f16(b) })},
	{"cvt.f32.f16 D, A;", "f32 b16", long(func(a, _, _ uint64) uint64 { return b32(half.Float16(a).Float32()) })},
}

func f16(a uint64) uint64 {
	if isNaN(a, 32) {
		return 0x7fff
	}
	return uint64(half.ToFloat16(f32(a)))
}

func bf16(a uint64) uint64 {
	if isNaN(a, 32) {
		return 0x7fff
	}
	return (a + 0x7fff + a>>16&1) >> 16
}

// flushed makes floats that are too small for a normal number 0.
func flushed(a uint64) uint64 {
	if a&(0xff<<23) == 0 {
		return a & (1 << 31)
	}
	return a
}

// toward returns a + b rounded another way.
func toward(mode big.RoundingMode) func(a, b, c uint64) uint64 {
	return func(a, b, _ uint64) uint64 {
		x, y := float64(f32(a)), float64(f32(b))
		if s := x + y; math.IsNaN(s) || math.IsInf(s, 0) {
			return b32(float32(s))
		}
		if x+y == 0 && x != 0 {
			return map[bool]uint64{true: 1 << 31}[mode == big.ToNegativeInf]
		}
		if x+y == 0 {
			if x, y := math.Signbit(x), math.Signbit(y); x != y {
				return map[bool]uint64{true: 1 << 31}[mode == big.ToNegativeInf]
			}
			return b32(float32(x + y))
		}
		exact := new(big.Float).SetPrec(1000).SetFloat64(x)
		exact.Add(exact, new(big.Float).SetPrec(1000).SetFloat64(y))
		near, _ := exact.Float32()
		if below := new(big.Float).SetFloat64(float64(near)); !math.IsInf(float64(near), 0) && below.Cmp(exact) == 0 {
			return b32(near)
		}
		up := mode == big.ToPositiveInf || mode == big.ToZero && exact.Sign() < 0
		lower := near
		if math.IsInf(float64(near), 1) || new(big.Float).SetFloat64(float64(near)).Cmp(exact) > 0 {
			lower = math.Nextafter32(near, float32(math.Inf(-1)))
		}
		if up {
			return b32(math.Nextafter32(lower, float32(math.Inf(1))))
		}
		return b32(lower)
	}
}

// toInteger returns the integer that a float32 is rounded to, the nearest there is, or what a NaN
// becomes.
func toInteger(round func(float64) float64, lo, hi, nan float64) func(a, b, c uint64) uint64 {
	return func(a, _, _ uint64) uint64 {
		x := round(float64(f32(a)))
		switch {
		case x != x:
			return uint64(int64(nan))
		case x >= hi && hi == math.MaxInt64:
			return math.MaxInt64
		case x >= hi:
			return uint64(hi)
		}
		return uint64(int64(math.Max(x, lo)))
	}
}

// TestArithmetic compares each instruction with its meaning, for numbers of all kinds.
func TestArithmetic(t *testing.T) {
	m := newMachine(t)
	var text strings.Builder
	for n, in := range instructions {
		text.WriteString(kernelOf(fmt.Sprintf("i%d", n), in.code, strings.Fields(in.types)))
	}
	mod := m.load(text.String())
	r := rand.New(rand.NewPCG(1, 2))
	const threads = 512
	for n, in := range instructions {
		types := strings.Fields(in.types)
		var args [3][]uint64
		for k := range args {
			args[k] = make([]uint64, threads)
			for i := range args[k] {
				if k+1 < len(types) {
					args[k][i] = draw(r, types[k+1])
				}
			}
		}
		out := values(make([]uint64, threads))
		require.NoError(t, m.run(function(t, mod, fmt.Sprintf("i%d", n)), 1, threads, 0, out, values(args[0]), values(args[1]), values(args[2])), in.code)
		mask := ^uint64(0) >> (64 - size(types[0]))
		for i, got := range decode[uint64](out) {
			want := in.want(args[0][i], args[1][i], args[2][i]) & mask
			if types[0][0] == 'f' && isNaN(want, size(types[0])) && isNaN(got, size(types[0])) {
				continue
			}
			require.Equal(t, want, got, "%s of %#x, %#x, %#x", in.code, args[0][i], args[1][i], args[2][i])
		}
	}
}

// draw returns a number of a type: often one that is special, small, or near the end of its range.
func draw(r *rand.Rand, kind string) uint64 {
	mask := ^uint64(0) >> (64 - size(kind))
	if kind[0] != 'f' {
		special := []uint64{0, 1, 2, ^uint64(0), 1 << (size(kind) - 1), 1<<(size(kind)-1) - 1, uint64(r.IntN(70)), -uint64(r.IntN(70))}
		if r.IntN(3) == 0 {
			return special[r.IntN(len(special))] & mask
		}
		return r.Uint64() >> r.IntN(64) & mask
	}
	if r.IntN(4) == 0 {
		return r.Uint64() & mask // any bits at all
	}
	special := []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 1.5, 2.5, -2.5, math.Inf(1), math.Inf(-1), math.NaN(), 0x1p31, -0x1p31, 0x1p32,
		0x1p63, -0x1p63, 0x1p64, math.MaxFloat32, math.SmallestNonzeroFloat32, 0x1p-127, -0x1p-126, 0x1p-1030, 0x1.000001p0, 0x1.00008p0}
	x := special[r.IntN(len(special))]
	if r.IntN(2) == 0 {
		x = r.NormFloat64() * math.Exp2(float64(r.IntN(60)-30))
	}
	if kind == "f64" {
		return b64(x)
	}
	return b32(float32(x))
}
