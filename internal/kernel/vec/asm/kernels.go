package main

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/kernel/neon"
)

// all lists the kernels. Light loops work on four vectors at once, and heavy ones on as many as the
// registers allow.
func all() []kernel {
	return slices.Concat(arithmetic(), comparisons(), treeSums(), reductions(), activations(), functions(), rows(), optimizers(), pools(), wires())
}

// lowSlices lists, by kernel, the slices that have bfloat16 in a kernel in which others have
// float32.
var lowSlices = map[string][]string{
	"sum": {"x"}, "sumSquares": {"x"}, "dot": {"a", "b"},
	"norm": {"y", "x"}, "normPlain": {"y", "x"}, "normGradSums": {"x", "dy"}, "normGrad": {"dx", "x", "dy"},
}

// lows lists the kernels for bfloat16, which only AVX-512 has. They compute in float32 like the
// kernels of the same names, and round results once.
func lows() []kernel {
	list := append(lookups(), kernel{name: "accumulate", params: "dst []T, x []L", unroll: [2]int{4, 4}, low: []string{"x"}, body: func(b *body) {
		b.store("dst", b.add(b.load("dst"), b.load("x")))
	}})
	for _, k := range all() {
		whole := k.name == "add" || strings.HasPrefix(k.name, "relu") || strings.HasPrefix(k.name, "gluReLU")
		switch {
		case k.name == "colSum8":
			k.params, k.low = "dst []T, x []L", k.slices[1:]
		case whole:
			k.low = (&function{kernel: k}).sliceNames()
			k.params = strings.ReplaceAll(k.params, "[]T", "[]L")
		case lowSlices[k.name] != nil:
			k.low = lowSlices[k.name]
			k.params = k.lowParams()
		default:
			continue
		}
		list = append(list, k)
	}
	return list
}

// lookups are the kernels of functions whose results for all bfloat16 are in tables.
func lookups() []kernel {
	unroll := [2]int{4, 4}
	return []kernel{
		{name: "lookup", params: "y, x []L, table []T", unroll: unroll, low: []string{"y", "x"}, body: func(b *body) {
			b.store("y", b.lookup("table", b.loadBits("x")))
		}},
		{name: "lookupTimes", params: "y, x, by []L, table []T", unroll: unroll, low: []string{"y", "x", "by"}, body: func(b *body) {
			b.store("y", b.mul(b.lookup("table", b.loadBits("x")), b.load("by")))
		}},
		{name: "lookupGLUGrad", params: "dx, dup, x, up, dy []L, slopes, values []T", unroll: unroll, low: []string{"dx", "dup", "x", "up", "dy"},
			body: func(b *body) {
				x, dy := b.loadBits("x"), b.load("dy")
				dx := b.mul(b.lookup("slopes", x), b.mul(dy, b.load("up")))
				b.store("dup", b.mul(b.lookup("values", x), dy))
				b.store("dx", dx)
			}},
	}
}

// lowParams returns the parameters of a kernel, where its slices of bfloat16 have their type.
func (k kernel) lowParams() string {
	f := function{kernel: k, bits: 32}
	var list []string
	for _, a := range f.args() {
		kind := a.kind
		if f.isLow(a.name) {
			kind = "[]L"
		}
		list = append(list, a.name+" "+kind)
	}
	return strings.Join(list, ", ")
}

func arithmetic() []kernel {
	return []kernel{
		{name: "add", params: "dst, a, b []T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("dst", b.add(b.load("a"), b.load("b")))
		}},
		{name: "sub", params: "dst, a, b []T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("dst", b.sub(b.load("a"), b.load("b")))
		}},
		{name: "mul", params: "dst, a, b []T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("dst", b.mul(b.load("a"), b.load("b")))
		}},
		{name: "div", params: "dst, a, b []T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("dst", b.div(b.load("a"), b.load("b")))
		}},
		{name: "lesser", params: "dst, a, b []T", unroll: [2]int{4, 2}, only32: true, body: func(b *body) {
			b.store("dst", b.lesser(b.load("a"), b.load("b")))
		}},
		{name: "greater", params: "dst, a, b []T", unroll: [2]int{4, 2}, only32: true, body: func(b *body) {
			negative := func(x *value) *value { return b.binary(b.xor(), x, b.word(signBit)) }
			b.store("dst", negative(b.lesser(negative(b.load("a")), negative(b.load("b")))))
		}},
		{name: "sqrt", params: "y, x []T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("y", b.sqrt(b.load("x")))
		}},
		{name: "square", params: "y, x []T", unroll: [2]int{4, 4}, body: func(b *body) {
			x := b.load("x")
			b.store("y", b.mul(x, x))
		}},
		{name: "cube", params: "y, x []T", unroll: [2]int{4, 4}, body: func(b *body) {
			x := b.load("x")
			b.store("y", b.mul(b.mul(x, x), x))
		}},
		{name: "inverse", params: "y, x []T", unroll: [2]int{4, 4}, only32: true, body: func(b *body) {
			b.store("y", b.div(b.register(1), b.load("x")))
		}},
		{name: "abs", params: "y, x []T", unroll: [2]int{4, 4}, only32: true, body: func(b *body) {
			b.store("y", b.and(b.load("x"), b.word(absBits)))
		}},
		{name: "scaleTo", params: "dst, x []T, alpha T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("dst", b.mul(b.load("x"), b.scalar("alpha")))
		}},
		{name: "addScaled", params: "dst, x []T, c T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("dst", b.add(b.load("dst"), b.mul(b.load("x"), b.scalar("c")))) // not fused
		}},
		{name: "fill", params: "dst []T, v T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("dst", b.scalar("v"))
		}},
		{name: "relu", params: "y, x []T", unroll: [2]int{4, 4}, body: func(b *body) {
			if x := b.load("x"); b.isa.neon { // its maximum of 0 and -0 is 0
				b.store("y", b.keepIf(notLess, x, b.zero(), x))
			} else {
				b.store("y", b.max(b.zero(), x))
			}
		}},
		{name: "reluGrad", params: "dx, x, dy []T", unroll: [2]int{4, 4}, body: func(b *body) {
			b.store("dx", b.keepIf(notLessOrEqual, b.load("x"), b.zero(), b.load("dy")))
		}},
	}
}

// comparisons are 1 if they hold, else 0.
func comparisons() (list []kernel) {
	for name, predicate := range map[string]int{"less": less, "lessOrEqual": lessOrEqual, "equal": equal, "notEqual": notEqual} {
		list = append(list, kernel{name: name, params: "dst, a, b []T", unroll: [2]int{4, 2}, only32: true, body: func(b *body) {
			b.store("dst", b.keepIf(predicate, b.load("a"), b.load("b"), b.register(1)))
		}})
	}
	slices.SortFunc(list, func(a, b kernel) int { return strings.Compare(a.name, b.name) })
	return list
}

// lesser is the minimum of x and y, and NaN if either is NaN. The x86 instruction returns y for a
// NaN and for two zeros. Both orders together give the NaN, and the sign of a negative zero.
func (b *body) lesser(x, y *value) *value {
	if b.isa.neon {
		return b.min(x, y)
	}
	return b.or(b.min(x, y), b.min(y, x))
}

// treeSums are the sums of 2 to 8 sources, and the sum of 8 rows for ColSum.
func treeSums() (list []kernel) {
	var names []string
	for n := 1; n <= 8; n++ {
		names = append(names, fmt.Sprint("src", n-1))
		if n == 1 {
			continue
		}
		sources := append([]string{}, names...)
		list = append(list, kernel{
			name: fmt.Sprint("treeSum", n), params: "dst []T, srcs [][]T, at int, scale T", unroll: [2]int{2, 1},
			slices: append([]string{"dst"}, sources...),
			setup: func(f *function) {
				if f.isa.neon {
					f.neonSources(sources)
					return
				}
				f.line("MOVQ dst_base+0(FP), DI")
				f.line("MOVQ srcs_base+24(FP), BX")
				f.line("MOVQ at+48(FP), AX")
				for i, s := range sources {
					f.line("MOVQ %d(BX), %s", 24*i, f.pointer(s))
					f.line("LEAQ (%s)(AX*%d), %s", f.pointer(s), f.bits/8, f.pointer(s))
				}
			},
			body: func(b *body) { b.store("dst", b.mul(b.tree(sources), b.scalar("scale"))) },
		})
	}
	return append(list, kernel{
		name: "colSum8", params: "dst, x []T", unroll: [2]int{2, 1},
		slices: append([]string{"dst"}, names...),
		setup: func(f *function) {
			if f.isa.neon {
				f.neonRows(names)
				return
			}
			f.line("MOVQ dst_base+0(FP), DI")
			f.line("MOVQ x_base+24(FP), %s", f.pointer("src0"))
			size := f.bits / 8
			if f.isLow(names[0]) {
				size = 2
			}
			for i := 1; i < 8; i++ {
				f.line("LEAQ (%s)(CX*%d), %s", f.pointer(names[i-1]), size, f.pointer(names[i]))
			}
		},
		body: func(b *body) { b.store("dst", b.add(b.tree(names), b.load("dst"))) },
	})
}

// tree adds sources by the canonical tree: the left part is the largest power of two below their
// number.
func (b *body) tree(sources []string) *value {
	if len(sources) == 1 {
		return b.load(sources[0])
	}
	mid := 1 << (bits.Len(uint(len(sources)-1)) - 1)
	return b.add(b.tree(sources[:mid]), b.tree(sources[mid:]))
}

func reductions() []kernel {
	sum := func(f *function) {
		f.returns("ret", f.results(), f.fold("sum", "VADDPD", 64), 64)
	}
	return []kernel{
		{name: "sum", params: "x []T", result: "float64", unroll: [2]int{4, 4}, widened: true, finish: sum, body: func(b *body) {
			b.accumulate("VADDPD", b.accumulator("sum", nil), b.load("x"))
		}},
		{name: "sumSquares", params: "x []T, center float64", result: "float64", unroll: [2]int{4, 4}, widened: true, finish: sum,
			body: func(b *body) {
				d := b.present(b.sub(b.load("x"), b.scalar("center")), nil)
				b.accumulateProduct(b.accumulator("sum", nil), d, d)
			}},
		{name: "addSquares", params: "x []T, scale, onHi, both float64", result: "(hi, lo uint64)", unroll: [2]int{4, 2}, widened: true,
			finish: func(f *function) {
				f.returns("hi", f.results(), f.fold("hi", "VPADDQ", 64), 64)
				f.returns("lo", f.results()+8, f.fold("lo", "VPADDQ", 64), 64)
			},
			body: func(b *body) {
				x := b.mul(b.load("x"), b.scalar("scale"))
				t := b.fma(x, x, b.scalar("onHi"))
				b.accumulate("VPADDQ", b.accumulator("hi", nil), b.present(t, nil))
				u := b.fma(x, x, b.sub(b.scalar("both"), t))
				b.accumulate("VPADDQ", b.accumulator("lo", nil), b.present(u, nil))
			}},
		{name: "dot", params: "a, b []T", result: "float64", unroll: [2]int{4, 4}, widened: true, finish: sum, body: func(b *body) {
			b.accumulateProduct(b.accumulator("sum", nil), b.load("a"), b.load("b"))
		}},
		{name: "maximum", params: "x []T", result: "T", unroll: [2]int{4, 2}, only32: true, finish: finishMaximum, body: func(b *body) {
			lowest := b.register(negInf)
			x := b.load("x")
			b.accumulate("VPMAXUD", b.accumulator("abs", nil), b.and(x, b.word(absBits)))
			b.accumulate("VMAXPS", b.accumulator("max", lowest), b.present(x, lowest))
		}},
		{name: "maxAbs", params: "x []T", result: "T", unroll: [2]int{4, 4}, only32: true,
			finish: func(f *function) {
				f.returns("ret", f.results(), f.fold("abs", "VPMAXUD", 32), 32)
			},
			body: func(b *body) {
				b.accumulate("VPMAXUD", b.accumulator("abs", nil), b.and(b.load("x"), b.word(absBits)))
			}},
	}
}

// absBits masks the sign. The result orders like an unsigned integer, and every NaN is above
// infinity. So an integer maximum never loses a NaN, unlike the floating-point maximum of the
// processor.
const (
	absBits = 0x7FFFFFFF
	infBits = 0x7F800000
	signBit = 1 << 31
)

// finishMaximum returns the maximum, or NaN if there was one.
func finishMaximum(f *function) {
	if f.isa.neon {
		f.neonNumber(f.fold("abs", "VPMAXUD", 32), f.fold("max", "VMAXPS", 32))
		return
	}
	f.line("VMOVD  X%d, BX", f.fold("abs", "VPMAXUD", 32))
	f.line("VMOVSS X%d, ret+%d(FP)", f.fold("max", "VMAXPS", 32), f.results())
	f.line("CMPL   BX, $0x%X", infBits)
	f.line("JLS    number")
	f.line("MOVL   BX, ret+%d(FP)", f.results())
	f.out.WriteString("\nnumber:\n")
}

// accumulateProduct adds x·y to an accumulator.
func (b *body) accumulateProduct(acc, x, y *value) {
	b.record(node{args: []*value{x, y, acc}, emit: func(u int) { b.op(u, "VFMADD231"+b.suffix, y, x, acc) }})
}

// rows are the parts of softmax and of the norms.
func rows() []kernel {
	const widely = "dx, x, gain, dy []T, mean, rstd, c1, c2 T"
	hat := func(b *body) *value { return b.mul(b.sub(b.load("x"), b.scalar("mean")), b.scalar("rstd")) }
	sums := func(f *function) {
		f.returns("s1", f.results(), f.fold("s1", "VADDPD", 64), 64)
		f.returns("s2", f.results()+8, f.fold("s2", "VADDPD", 64), 64)
	}
	return []kernel{
		{name: "softmaxGrad", params: "dx, p, dp []T, delta, scale T", unroll: [2]int{4, 2}, body: func(b *body) {
			d := b.sub(b.load("dp"), b.scalar("delta"))
			b.store("dx", b.mul(b.mul(b.load("p"), b.scalar("scale")), d))
		}},
		{name: "norm", params: "y, x, gain, bias []T, mean, rstd T", unroll: [2]int{4, 2}, body: func(b *body) {
			b.store("y", b.fma(hat(b), b.load("gain"), b.load("bias")))
		}},
		{name: "rotate", params: "a, b, x, y, cos, sin []T", unroll: [2]int{2, 1}, body: func(b *body) {
			x, y, cos, sin := b.load("x"), b.load("y"), b.load("cos"), b.load("sin")
			first, second := b.fms(x, cos, b.mul(y, sin)), b.fma(x, sin, b.mul(y, cos))
			b.store("a", first)
			b.store("b", second)
		}},
		{name: "normPlain", params: "y, x, gain []T, mean, rstd T", unroll: [2]int{4, 2}, body: func(b *body) {
			b.store("y", b.mul(hat(b), b.load("gain")))
		}},
		{name: "normGradSums", params: "dgain, x, gain, dy []T, mean, rstd T", result: "(s1, s2 float64)", unroll: [2]int{4, 2}, finish: sums, body: func(b *body) {
			s1, s2 := b.accumulator("s1", nil), b.accumulator("s2", nil)
			hat, dy := hat(b), b.load("dy")
			b.store("dgain", b.fma(dy, hat, b.load("dgain")))
			g := b.mul(dy, b.load("gain"))
			b.accumulateWide(s1, g)
			b.accumulateWide(s2, b.mul(g, hat))
		}},
		{name: "normGrad", params: widely, unroll: [2]int{4, 2}, body: func(b *body) {
			hat := hat(b)
			centered := b.fms(b.load("gain"), b.load("dy"), b.scalar("c1"))
			b.store("dx", b.mul(b.fnma(hat, b.scalar("c2"), centered), b.scalar("rstd")))
		}},
		{name: "normPlane", params: "y, x []T, mean, rstd, gain, bias T", unroll: [2]int{4, 2}, body: func(b *body) {
			b.store("y", b.fma(hat(b), b.scalar("gain"), b.scalar("bias")))
		}},
		{name: "normPlaneSums", params: "x, dy []T, mean, rstd T", result: "(s1, s2 float64)", unroll: [2]int{4, 2}, finish: sums, body: func(b *body) {
			s1, s2 := b.accumulator("s1", nil), b.accumulator("s2", nil)
			hat, dy := hat(b), b.load("dy")
			b.accumulateWide(s1, dy)
			b.accumulateWide(s2, b.mul(dy, hat))
		}},
		{name: "normPlaneGrad", params: "dx, x, dy []T, mean, rstd, gain, c1, c2 T", unroll: [2]int{4, 2}, body: func(b *body) {
			hat := hat(b)
			centered := b.fms(b.load("dy"), b.scalar("gain"), b.scalar("c1"))
			b.store("dx", b.mul(b.fnma(hat, b.scalar("c2"), centered), b.scalar("rstd")))
		}},
		{name: "dropout", params: "y, x []T, from, key, threshold uint32, scale T", unroll: [2]int{4, 2}, only32: true, body: dropout},
		{name: "stochastic", params: "x []T, from, key uint32", unroll: [2]int{4, 2}, only32: true, body: stochastic},
	}
}

func dropout(b *body) {
	b.store("y", b.keepAtLeast(b.hash(), b.scalar("threshold"), b.mul(b.load("x"), b.scalar("scale"))))
}

// stochastic adds 16 random bits to a number, and clears the lower 16 bits. It keeps NaN.
func stochastic(b *body) {
	x := b.load("x")
	sum := b.binary("VPADDD", b.unary("VPSRLD", b.hash(), "$16"), x)
	b.store("x", b.or(b.keepIf(equal, x, x, b.and(sum, b.word(0xFFFF0000))), b.keepIf(notEqual, x, x, x)))
}

// hash computes hash32 of package vec in every lane.
func (b *body) hash() *value {
	xorshift := func(h *value, by string) *value {
		return b.binary(b.xor(), h, b.unary("VPSRLD", h, by))
	}
	h := b.binary("VPADDD", b.index(), b.scalar("from"))
	h = b.binary("VPMULLD", xorshift(h, "$16"), b.word(0x7FEB352D))
	h = b.binary(b.xor(), h, b.scalar("key"))
	h = b.binary("VPMULLD", xorshift(h, "$15"), b.word(0x846CA68B))
	return xorshift(h, "$16")
}

// xor returns the integer instruction, whose name differs between the instruction sets.
func (b *body) xor() string {
	if b.isa.wide {
		return "VPXORD"
	}
	return "VPXOR"
}

// keepAtLeast is v if the unsigned integer h is at least t, else 0.
func (b *body) keepAtLeast(h, t, v *value) *value {
	d := &value{}
	return b.record(node{dst: d, args: []*value{h, t, v}, late: true, emit: func(u int) {
		if b.isa.neon {
			b.line("%s", neon.Op("cmhs", 32, b.reg(d, u), b.reg(h, u), b.reg(t, u)))
			b.op(u, "VANDPS", v, d, d)
			return
		}
		if b.isa.wide {
			k := fmt.Sprint("K", 2+u)
			b.op(u, "VPCMPUD", "$5", t, h, k)
			b.op(u, "VMOVAPS.Z", v, k, d)
			return
		}
		b.op(u, "VPMAXUD", t, h, d) // AVX2 compares signed integers only, but h = max(h, t) is equivalent
		b.op(u, "VPCMPEQD", h, d, d)
		b.op(u, "VANDPS", v, d, d)
	}})
}

func optimizers() []kernel {
	gradient := func(b *body, p *value) *value {
		return b.fma(p, b.scalar("c_l2"), b.mul(b.load("g"), b.scalar("c_gradScale")))
	}
	momentum := func(b *body, p *value) (grad, buf *value) {
		grad = gradient(b, p)
		buf = b.fma(b.load("buf"), b.scalar("c_momentum"), grad)
		b.store("buf", buf)
		return grad, buf
	}
	step := func(b *body, p, by *value) { b.store("p", b.fnma(by, b.scalar("c_rate"), p)) }
	return []kernel{
		{name: "adam", params: "p, g, m, v []T, c adamStep", unroll: [2]int{2, 1}, body: func(b *body) {
			p := b.load("p")
			g := gradient(b, p)
			m := b.fma(g, b.scalar("c_rest1"), b.mul(b.load("m"), b.scalar("c_beta1")))
			b.store("m", m)
			v := b.fma(b.mul(g, b.scalar("c_rest2")), g, b.mul(b.load("v"), b.scalar("c_beta2")))
			b.store("v", v)
			denominator := b.fma(b.sqrt(v), b.scalar("c_inverse"), b.scalar("c_eps"))
			by := b.div(b.mul(m, b.scalar("c_rate")), denominator)
			b.store("p", b.fms(p, b.scalar("c_decay"), by))
		}},
		{name: "sgd", params: "p, g []T, c sgdStep", unroll: [2]int{4, 2}, body: func(b *body) {
			p := b.load("p")
			step(b, p, gradient(b, p))
		}},
		{name: "momentum", params: "p, g, buf []T, c sgdStep", unroll: [2]int{4, 2}, body: func(b *body) {
			p := b.load("p")
			_, buf := momentum(b, p)
			step(b, p, buf)
		}},
		{name: "nesterov", params: "p, g, buf []T, c sgdStep", unroll: [2]int{4, 2}, body: func(b *body) {
			p := b.load("p")
			grad, buf := momentum(b, p)
			step(b, p, b.fma(buf, b.scalar("c_momentum"), grad))
		}},
	}
}
