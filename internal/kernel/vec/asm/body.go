package main

import (
	"fmt"
	"slices"
)

// A body is the inside of a loop: a straight line of vector instructions on values that are
// assigned once. It is recorded first and gets its registers later, when the last use of every
// value is known. It works on `width` vectors at a time (each node is written out that many times),
// which hides the latency of one vector behind the others.
type body struct {
	*function
	width  int
	masked bool // the remainder: loads and stores touch only the elements that are left
	nodes  []node
}

// A value is an operand or a result of an instruction: registers (one for each vector of the body,
// or a single one that all share) or a constant in memory.
type value struct {
	regs   []int
	mem    string
	pinned bool // its registers belong to the function, not to the body
	last   int  // index of the last node that reads it, or of the node that makes it if none reads it
}

// A node is one or a few instructions.
type node struct {
	dst  *value // nil if it has no result
	args []*value
	late bool // dst is written before all args are read, so they cannot share registers
	emit func(u int)

	addend *value // NEON: the last of args, to which dst adds
}

// record appends a node and returns its result.
func (b *body) record(n node) *value {
	for _, v := range append([]*value{n.dst}, n.args...) {
		if v != nil {
			v.last = len(b.nodes)
		}
	}
	b.nodes = append(b.nodes, n)
	return n.dst
}

// schedule assigns registers to the values of the body and writes its instructions.
func (b *body) schedule() {
	free := b.groups()
	for i, n := range b.nodes {
		if b.isa.neon {
			b.neonConstants(n)
		}
		if n.addend != nil {
			n.late = !b.overwrites(i, n)
		}
		if !n.late {
			free = release(free, i, n.args...)
		}
		if n.dst != nil {
			if len(free) == 0 {
				panic("out of registers in " + b.symbol())
			}
			n.dst.regs = free[len(free)-1] // the one released last, if any: fused relies on it
			free = free[:len(free)-1]
		}
		for u := range b.width {
			n.emit(u)
		}
		if n.late {
			free = release(free, i, n.args...)
		}
		if n.dst != nil {
			free = release(free, i, n.dst)
		}
	}
}

// release returns the registers of the values that end at node i.
func release(free [][]int, i int, values ...*value) [][]int {
	for j, v := range values {
		if v.last == i && !v.pinned && v.regs != nil && !slices.Contains(values[:j], v) {
			free = append(free, v.regs)
		}
	}
	return free
}

// groups divides the registers that the function does not hold into sets of one register for each
// vector of the body.
func (b *body) groups() (free [][]int) {
	for r := 0; r+b.width <= b.pin; r += b.width {
		var g []int
		for u := range b.width {
			g = append(g, r+u)
		}
		free = append([][]int{g}, free...)
	}
	return free
}

// operand returns the operand for vector u.
func (b *body) operand(v *value, u int) string { return b.sized(v, u, b.isa.letter) }

// sized is at with another name of the register: X, Y and Z are its low 16, 32 and 64 bytes.
func (b *body) sized(v *value, u int, letter string) string {
	if v.regs == nil {
		return v.mem
	}
	if len(v.regs) == 1 {
		u = 0
	}
	return fmt.Sprint(letter, v.regs[u])
}

// op writes one instruction. Operands are in the order of Go's assembler: the destination comes
// last, and the other operands of the processor's manual come before it in reverse. On AVX-512 a
// constant operand becomes an embedded broadcast.
func (b *body) op(u int, mnemonic string, args ...any) {
	var operands []string
	for _, a := range args {
		switch a := a.(type) {
		case *value:
			if a.regs == nil && b.isa.wide {
				mnemonic += ".BCST"
			}
			operands = append(operands, b.operand(a, u))
		default:
			operands = append(operands, fmt.Sprint(a))
		}
	}
	b.instruction(mnemonic, operands)
}

// binary records dst = x op y for a three-operand instruction; only y may be in memory.
func (b *body) binary(mnemonic string, x, y *value) *value {
	if x.mem != "" {
		panic(mnemonic + ": the first operand must be in a register")
	}
	d := &value{}
	return b.record(node{dst: d, args: []*value{x, y}, emit: func(u int) { b.op(u, mnemonic, y, x, d) }})
}

// unary records dst = op(x), or op(x, immediate).
func (b *body) unary(mnemonic string, x *value, immediate ...any) *value {
	d := &value{}
	return b.record(node{dst: d, args: []*value{x}, emit: func(u int) { b.op(u, mnemonic, append(immediate, x, d)...) }})
}

func (b *body) add(x, y *value) *value { return b.binary("VADD"+b.suffix, x, y) }
func (b *body) sub(x, y *value) *value { return b.binary("VSUB"+b.suffix, x, y) }
func (b *body) mul(x, y *value) *value { return b.binary("VMUL"+b.suffix, x, y) }
func (b *body) div(x, y *value) *value { return b.binary("VDIV"+b.suffix, x, y) }
func (b *body) and(x, y *value) *value { return b.binary("VAND"+b.suffix, x, y) }
func (b *body) or(x, y *value) *value  { return b.binary("VOR"+b.suffix, x, y) }
func (b *body) sqrt(x *value) *value   { return b.unary("VSQRT"+b.suffix, x) }

// min and max return y if either is NaN: if x is a constant, a NaN is kept.
func (b *body) min(x, y *value) *value { return b.binary("VMIN"+b.suffix, x, y) }
func (b *body) max(x, y *value) *value { return b.binary("VMAX"+b.suffix, x, y) }

// fma is x·y + z, fms is x·y - z, fnma is z - x·y, each rounded once.
func (b *body) fma(x, y, z *value) *value  { return b.fused("VFMADD", x, y, z) }
func (b *body) fms(x, y, z *value) *value  { return b.fused("VFMSUB", x, y, z) }
func (b *body) fnma(x, y, z *value) *value { return b.fused("VFNMADD", x, y, z) }

// fused picks the form of the instruction by the operand whose register the result has taken: the
// processor overwrites one of the three operands. One of y and z may be in memory.
func (b *body) fused(mnemonic string, x, y, z *value) *value {
	if b.isa.neon {
		return b.neonFused(mnemonic, x, y, z)
	}
	d := &value{}
	return b.record(node{dst: d, args: []*value{y, x, z}, emit: func(u int) {
		switch dst := b.operand(d, u); dst {
		case b.operand(z, u):
			b.op(u, mnemonic+"231"+b.suffix, y, x, d)
		case b.operand(x, u):
			if y.mem != "" {
				b.op(u, mnemonic+"132"+b.suffix, y, z, d)
			} else {
				b.op(u, mnemonic+"213"+b.suffix, z, y, d)
			}
		case b.operand(y, u):
			b.op(u, mnemonic+"213"+b.suffix, z, x, d)
		default:
			b.copy(u, z, d)
			b.op(u, mnemonic+"231"+b.suffix, y, x, d)
		}
	}})
}

// copy writes d = v, for v in a register or in memory.
func (b *body) copy(u int, v, d *value) {
	if b.isa.neon {
		b.neonCopy(u, v, d)
		return
	}
	if v.mem != "" {
		b.line("VBROADCASTSS %s, %s", v.mem, b.operand(d, u))
		return
	}
	b.line("VMOVAPS %s, %s", b.operand(v, u), b.operand(d, u))
}

// poly is the polynomial c[0] + c[1]·x + c[2]·x² + …, by Horner's rule.
func (b *body) poly(x *value, c ...float64) *value {
	first, top := &value{}, b.constant(c[len(c)-1])
	d := b.record(node{dst: first, emit: func(u int) { b.copy(u, top, first) }})
	for i := len(c) - 2; i >= 0; i-- {
		d = b.fma(d, x, b.constant(c[i]))
	}
	return d
}

// load reads the next vector of a slice. Elements beyond the end are 0. bfloat16 becomes float32,
// and in a widened function float32 becomes float64.
func (b *body) load(slice string) *value {
	d := &value{}
	return b.record(node{dst: d, emit: func(u int) {
		mem := b.address(slice, u)
		switch {
		case b.isLow(slice):
			mask := ""
			if b.masked {
				mask = "K1, "
			}
			to := b.operand(d, u)
			if b.widened {
				to = b.sized(d, u, "Y")
			}
			b.line("VPMOVZXWD%s %s, %s%s", map[bool]string{true: ".Z"}[b.masked], mem, mask, to)
			b.line("VPSLLD $16, %[1]s, %[1]s", to)
			if b.widened {
				b.line("VCVTPS2PD %s, %s", to, b.operand(d, u))
			}
		case b.isa.neon:
			b.neonLoad(slice, u, d)
		case b.widened && b.masked && !b.isa.wide:
			x := b.sized(d, u, "X")
			b.line("VMASKMOVPS %s, X%d, %s", mem, b.isa.mask, x)
			b.line("VCVTPS2PD %s, %s", x, b.operand(d, u))
		case b.widened && b.masked:
			b.line("VCVTPS2PD.Z %s, K1, %s", mem, b.operand(d, u))
		case b.widened:
			b.line("VCVTPS2PD %s, %s", mem, b.operand(d, u))
		case b.masked && !b.isa.wide:
			b.line("VMASKMOV%s %s, Y%d, %s", b.suffix, mem, b.isa.mask, b.operand(d, u))
		case b.masked:
			b.line("VMOVU%s.Z %s, K1, %s", b.suffix, mem, b.operand(d, u))
		default:
			b.line("VMOVU%s %s, %s", b.suffix, mem, b.operand(d, u))
		}
	}})
}

// loadBits reads the bits of the next vector of bfloat16, as integers.
func (b *body) loadBits(slice string) *value {
	d := &value{}
	return b.record(node{dst: d, emit: func(u int) {
		if b.masked {
			b.line("VPMOVZXWD.Z %s, K1, %s", b.address(slice, u), b.operand(d, u))
		} else {
			b.line("VPMOVZXWD %s, %s", b.address(slice, u), b.operand(d, u))
		}
	}})
}

// lookup is the elements of a slice at the indices at.
func (b *body) lookup(slice string, at *value) *value {
	d := &value{}
	return b.record(node{dst: d, args: []*value{at}, late: true, emit: func(u int) {
		k, to := fmt.Sprint("K", 2+u), b.operand(d, u)
		b.line("KXNORW %[1]s, %[1]s, %[1]s", k)
		b.line("VPXORD %[1]s, %[1]s, %[1]s", to) // or the gather waits for its old value
		b.line("VPGATHERDD (%s)(%s*4), %s, %s", b.pointer(slice), b.operand(at, u), k, to)
	}})
}

// store writes v to the same position of a slice as load reads.
func (b *body) store(slice string, v *value) {
	if b.isLow(slice) {
		b.storeLow(slice, v)
		return
	}
	b.record(node{args: []*value{v}, emit: func(u int) {
		mem := b.address(slice, u)
		switch {
		case b.isa.neon:
			b.neonStore(slice, u, v)
		case b.masked && !b.isa.wide:
			b.line("VMASKMOV%s %s, Y%d, %s", b.suffix, b.operand(v, u), b.isa.mask, mem)
		case b.masked:
			b.line("VMOVU%s %s, K1, %s", b.suffix, b.operand(v, u), mem)
		default:
			b.line("VMOVU%s %s, %s", b.suffix, b.operand(v, u), mem)
		}
	}})
}

// storeLow is store to bfloat16. It rounds to nearest even as package half does: it adds 0x7fff to
// the bits, and one more if the upper half is odd. A NaN keeps its upper half and becomes quiet.
func (b *body) storeLow(slice string, v *value) {
	odd := b.binary("VPANDD", b.unary("VPSRLD", v, "$16"), b.word(1))
	sum := b.binary("VPADDD", b.binary("VPADDD", odd, b.word(0x7fff)), v)
	d := &value{}
	b.record(node{dst: d, args: []*value{v, sum}, late: true, emit: func(u int) {
		k := fmt.Sprint("K", 2+u)
		b.op(u, "VCMPPS", "$3", v, v, k)
		b.op(u, "VMOVDQA32", sum, d)
		b.op(u, "VPORD", b.word(0x400000), v, k, d)
	}})
	high := b.unary("VPSRLD", d, "$16")
	b.record(node{args: []*value{high}, emit: func(u int) {
		if b.masked {
			b.line("VPMOVDW %s, K1, %s", b.operand(high, u), b.address(slice, u))
		} else {
			b.line("VPMOVDW %s, %s", b.operand(high, u), b.address(slice, u))
		}
	}})
}

// present is v with the elements beyond the end of the slices replaced by fill. A nil fill means 0;
// a widened function supports only that.
func (b *body) present(v, fill *value) *value {
	if !b.masked {
		return v
	}
	d := &value{}
	return b.record(node{dst: d, args: []*value{v}, late: true, emit: func(u int) {
		switch {
		case b.isa.neon:
			b.neonPresent(u, v, fill, d)
		case b.widened && !b.isa.wide:
			b.line("VPMOVSXDQ X%d, %s", b.isa.mask, b.operand(d, u)) // the mask is for float32
			b.op(u, "VANDPD", v, d, d)
		case fill == nil && b.isa.wide:
			b.op(u, "VMOVA"+b.suffix+".Z", v, "K1", d)
		case fill == nil:
			b.line("VANDPS Y%d, %s, %s", b.isa.mask, b.operand(v, u), b.operand(d, u))
		case b.isa.wide:
			b.op(u, "VBLENDM"+b.suffix, v, fill, "K1", d)
		default:
			b.line("VBLENDV%s Y%d, %s, %s, %s", b.suffix, b.isa.mask, b.operand(v, u), b.operand(fill, u), b.operand(d, u))
		}
	}})
}

// These are predicates of keepIf, as the immediates of VCMPPS.
const (
	equal          = 0
	less           = 1
	lessOrEqual    = 2
	notEqual       = 4
	notLess        = 5
	notLessOrEqual = 6
)

// keepIf is v if `x predicate y` holds, else 0.
func (b *body) keepIf(predicate int, x, y, v *value) *value {
	d := &value{}
	return b.record(node{dst: d, args: []*value{x, y, v}, late: true, emit: func(u int) {
		if b.isa.neon {
			b.neonKeepIf(predicate, u, x, y, v, d)
			return
		}
		imm := fmt.Sprint("$", predicate)
		if b.isa.wide {
			k := fmt.Sprint("K", 2+u)
			b.op(u, "VCMP"+b.suffix, imm, y, x, k)
			b.op(u, "VMOVA"+b.suffix+".Z", v, k, d)
			return
		}
		b.op(u, "VCMP"+b.suffix, imm, y, x, d)
		b.op(u, "VANDPS", v, d, d)
	}})
}

// ifNegative is x if the sign bit of s is set, else y.
func (b *body) ifNegative(s, x, y *value) *value {
	d := &value{}
	return b.record(node{dst: d, args: []*value{s, x, y}, late: true, emit: func(u int) {
		if b.isa.neon {
			b.neonIfNegative(u, s, x, y, d)
			return
		}
		if b.isa.wide {
			k := fmt.Sprint("K", 2+u)
			b.op(u, "VPMOVD2M", s, k)
			b.op(u, "VBLENDMPS", x, y, k, d)
			return
		}
		b.op(u, "VBLENDVPS", s, x, y, d)
	}})
}

// accumulate sets acc = acc op v for an accumulator of the function.
func (b *body) accumulate(mnemonic string, acc, v *value) {
	b.record(node{args: []*value{v, acc}, emit: func(u int) { b.op(u, mnemonic, v, acc, acc) }})
}

// accumulateWide adds the elements of v to an accumulator of float64.
func (b *body) accumulateWide(acc, v *value) {
	if b.suffix == "PD" {
		b.accumulate("VADDPD", acc, v)
		return
	}
	t, half, extract := &value{}, "Y", "VEXTRACTF32X8"
	if !b.isa.wide {
		half, extract = "X", "VEXTRACTF128"
	}
	b.record(node{dst: t, args: []*value{v, acc}, late: true, emit: func(u int) {
		if b.isa.neon {
			b.neonAccumulateWide(u, acc, v, t)
			return
		}
		b.line("VCVTPS2PD %s, %s", b.sized(v, u, half), b.operand(t, u))
		b.op(u, "VADDPD", t, acc, acc)
		b.line("%s $1, %s, %s", extract, b.operand(v, u), b.sized(t, u, half))
		b.line("VCVTPS2PD %s, %s", b.sized(t, u, half), b.operand(t, u))
		b.op(u, "VADDPD", t, acc, acc)
	}})
}

// index is the position of every element in the slices, as 32-bit integers.
func (b *body) index() *value {
	d := &value{}
	return b.record(node{dst: d, emit: func(u int) {
		dst := b.operand(d, u)
		if b.isa.neon {
			b.neonIndex(u, d)
			return
		}
		if b.isa.wide {
			b.line("VPBROADCASTD AX, %s", dst)
		} else {
			b.line("VMOVD AX, %s", b.sized(d, u, "X"))
			b.line("VPBROADCASTD %s, %s", b.sized(d, u, "X"), dst)
		}
		b.line("VPADDD %s, %s, %s", b.consts.iota(32, u*b.lanes()), dst, dst)
	}})
}
