package main

import (
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/internal/kernel/neon"
)

// This is the backend for NEON, which differs from AVX2 in more than names:
//
//   - An operand cannot be in memory: constants are loaded from a table into neonScratch.
//   - A multiply-add always overwrites its addend.
//   - There are no masks. The loop over blocks is followed by a loop over single vectors, and the
//     remainder is computed element by element, in the first lane of vectors.
//
// Registers: R1 is the number of elements left, R2 to R10 are the addresses of the slices'
// elements, R11 is the address of the constants, R12 and R14 are temporaries, and R13 is the index
// of the element if it is needed.
var neonISA = isa{name: "NEON", letter: "V", bytes: 16, regs: neonScratch, neon: true}

const neonScratch = 31

var neonPointers = []string{"R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10"}

// neonNames maps instructions of AVX2 to NEON: to a name of package neon or, with an arrangement,
// to a name of Go's assembler, whose operands have the same order on both.
var neonNames = map[string]string{
	"VADDP": "fadd", "VSUBP": "fsub", "VMULP": "fmul", "VDIVP": "fdiv", "VSQRTP": "fsqrt",
	"VMAXP": "fmax", "VMINP": "fmin", "VFMADD231P": "fmla", "VFNMADD231P": "fmls", "VROUNDP": "frintn",
	"VCVTPS2DQ": "fcvtns", "VPSRAD": "sshr", "VPMULLD": "mul", "VANDP": "VAND.B16", "VORP": "VORR.B16", "VPXOR": "VEOR.B16",
	"VPADDD": "VADD.S4", "VPADDQ": "VADD.D2", "VPSUBD": "VSUB.S4", "VPMAXUD": "VUMAX.S4",
	"VPSRLD": "VUSHR.S4", "VPSLLD": "VSHL.S4",
}

// neonOp translates one instruction on registers, in the order of Go's assembler.
func (f *function) neonOp(mnemonic string, operands []string) {
	base, bits := mnemonic, 32
	if neonNames[base] == "" {
		base = mnemonic[:len(mnemonic)-1]
		if strings.HasSuffix(mnemonic, "PD") {
			bits = 64
		}
	}
	name, arrangement, known := strings.Cut(neonNames[base], ".")
	var registers []int
	for i, o := range operands {
		if known && o[0] == 'V' {
			operands[i] = o + "." + arrangement
		}
		var r int
		if _, err := fmt.Sscanf(o[1:], "%d", &r); err != nil {
			panic(mnemonic + ": operand " + o)
		}
		registers = append([]int{r}, registers...)
	}
	if known {
		f.line("%s %s", name, strings.Join(operands, ", "))
	} else {
		f.line("%s", neon.Op(name, bits, registers...))
	}
}

// neonBits is the size of an element in a register.
func (f *function) neonBits() int { return 8 * f.isa.bytes / f.lanes() }

// neonMove returns the instruction that moves bytes between memory and the low part of a vector
// register.
func neonMove(bytes int) string { return map[int]string{4: "FMOVS", 8: "FMOVD", 16: "FMOVQ"}[bytes] }

// neonText returns the text of the function.
func (f *function) neonText() string {
	f.neonLoops()
	loop := f.out.String()
	f.out.Reset()
	fmt.Fprintf(&f.out, "\n// %s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", f.declaration(), f.symbol(), f.frame())
	f.line("MOVD %s_len+8(FP), R1", f.args()[0].name)
	if f.setup != nil {
		f.setup(f)
	} else {
		for _, a := range f.args() {
			if a.kind == "[]T" {
				f.line("MOVD %s_base+%d(FP), %s", a.name, a.offset, f.pointer(a.name))
			}
		}
	}
	for _, used := range []struct{ register, instruction string }{
		{"(R11)", "MOVD $constants<>(SB), R11"}, {"R13", "MOVD ZR, R13"},
	} {
		if strings.Contains(loop+f.start.String(), used.register) {
			f.line("%s", used.instruction)
		}
	}
	return f.out.String() + f.start.String() + loop
}

// neonLoops prints the loops on blocks of vectors, on vectors and on elements, and what follows.
func (f *function) neonLoops() {
	steps := []struct {
		name        string
		body        *body
		step, bytes int
	}{
		{"block", &body{function: f, width: f.width()}, f.width() * f.lanes(), 0},
		{"vector", &body{function: f, width: 1}, f.lanes(), 0},
		{"element", &body{function: f, width: 1, masked: true}, 1, 0},
	}
	if f.width() == 1 {
		steps = steps[1:]
	}
	for _, s := range steps {
		f.body(s.body) // all are recorded before any is written, so that all pinned registers are known
	}
	for _, s := range steps {
		f.line("SUBS $%d, R1; BLT after%s", s.step, s.name)
		fmt.Fprintf(&f.out, "\n%s:\n", s.name)
		s.body.schedule()
		for i := range f.sliceNames() {
			f.line("ADD $%d, %s", s.step*f.bits/8, neonPointers[i])
		}
		if f.counts {
			f.line("ADD $%d, R13", s.step)
		}
		f.line("SUBS $%d, R1; BGE %s", s.step, s.name)
		fmt.Fprintf(&f.out, "\nafter%s:\n", s.name)
		f.line("ADD $%d, R1", s.step)
	}
	if f.finish != nil {
		f.finish(f)
	}
	f.line("RET")
}

// neonConstants loads the operands of a node that are in memory, except an addend, to neonScratch.
func (b *body) neonConstants(n node) {
	for _, v := range n.args {
		if v.mem != "" && v != n.addend {
			b.line("FMOVQ %s, F%d", v.mem, neonScratch)
			v.regs, v.pinned = []int{neonScratch}, true
		}
	}
}

// overwrites reports whether node i may overwrite its addend: it must be the last to read it.
func (b *body) overwrites(i int, n node) bool {
	z := n.addend
	return z.last == i && !z.pinned && z.regs != nil && n.args[0] != z && n.args[1] != z
}

// neonFused is fused.
func (b *body) neonFused(mnemonic string, x, y, z *value) *value {
	if mnemonic == "VFMSUB" && z.mem != "" {
		panic("VFMSUB: a constant to subtract")
	}
	d := &value{}
	return b.record(node{dst: d, args: []*value{y, x, z}, addend: z, emit: func(u int) {
		name := "fmla"
		switch {
		case mnemonic == "VFMSUB":
			b.line("%s", neon.Op("fneg", b.neonBits(), b.reg(d, u), b.reg(z, u)))
		case b.operand(z, u) != b.operand(d, u):
			b.copy(u, z, d)
		}
		if mnemonic == "VFNMADD" {
			name = "fmls"
		}
		b.line("%s", neon.Op(name, b.neonBits(), b.reg(d, u), b.reg(x, u), b.reg(y, u)))
	}})
}

// reg returns the number of the register of v for vector u.
func (b *body) reg(v *value, u int) int {
	if len(v.regs) == 1 {
		u = 0
	}
	return v.regs[u]
}

func (b *body) neonCopy(u int, v, d *value) {
	if v.mem != "" {
		b.line("FMOVQ %s, F%d", v.mem, b.reg(d, u))
		return
	}
	b.line("VMOV V%d.B16, V%d.B16", b.reg(v, u), b.reg(d, u))
}

func (b *body) neonLoad(slice string, u int, d *value) {
	bytes := b.isa.bytes
	switch {
	case b.masked:
		bytes = b.bits / 8
	case b.widened:
		bytes = 8
	}
	b.line("%s %s, F%d", neonMove(bytes), b.address(slice, u), b.reg(d, u))
	if b.widened {
		b.line("%s", neon.Op("fcvtl", 32, b.reg(d, u), b.reg(d, u)))
	}
}

func (b *body) neonStore(slice string, u int, v *value) {
	bytes := b.isa.bytes
	if b.masked {
		bytes = b.bits / 8
	}
	b.line("%s F%d, %s", neonMove(bytes), b.reg(v, u), b.address(slice, u))
}

func (b *body) neonPresent(u int, v, fill, d *value) {
	if fill == nil {
		b.line("%[1]s F%[2]d, F%[3]d", neonMove(b.neonBits()/8), b.reg(v, u), b.reg(d, u)) // clears the other lanes
		return
	}
	b.copy(u, fill, d)
	b.line("VMOV V%d.S[0], V%d.S[0]", b.reg(v, u), b.reg(d, u))
}

// neonKeepIf keeps v by a predicate. If the predicate is true for NaN, it clears v by the opposite
// predicate.
func (b *body) neonKeepIf(predicate, u int, x, y, v, d *value) {
	name := map[int]string{
		equal: "fcmeq", less: "fcmgt", lessOrEqual: "fcmge", notEqual: "fcmeq", notLess: "fcmgt", notLessOrEqual: "fcmge",
	}[predicate]
	b.line("%s", neon.Op(name, b.neonBits(), b.reg(d, u), b.reg(y, u), b.reg(x, u)))
	if predicate < notEqual {
		b.op(u, "VANDPS", v, d, d)
	} else {
		b.line("%s", neon.Op("bic", 32, b.reg(d, u), b.reg(v, u), b.reg(d, u)))
	}
}

func (b *body) neonIfNegative(u int, s, x, y, d *value) {
	b.line("%s", neon.Op("sshr", 32, b.reg(d, u), b.reg(s, u), 31))
	b.line("VBSL V%d.B16, V%d.B16, V%d.B16", b.reg(y, u), b.reg(x, u), b.reg(d, u))
}

func (b *body) neonAccumulateWide(u int, acc, v, t *value) {
	for _, half := range []string{"fcvtl", "fcvtl2"} {
		b.line("%s", neon.Op(half, 32, b.reg(t, u), b.reg(v, u)))
		b.line("%s", neon.Op("fadd", 64, b.reg(acc, u), b.reg(acc, u), b.reg(t, u)))
	}
}

func (b *body) neonIndex(u int, d *value) {
	b.counts = true
	b.line("VDUP R13, V%d.S4", b.reg(d, u))
	b.line("MOVD $%s, R12; FMOVQ (R12), F%d", b.consts.iota(32, u*b.lanes()), neonScratch)
	b.line("VADD V%d.S4, V%d.S4, V%d.S4", neonScratch, b.reg(d, u), b.reg(d, u))
}

// neonFold is fold.
func (f *function) neonFold(mnemonic string, r, t, bits int) int {
	for distance := 8; distance >= bits/8; distance /= 2 {
		f.line("VEXT $%d, V%d.B16, V%d.B16, V%d.B16", distance, r, r, t)
		f.neonOp(mnemonic, []string{fmt.Sprint("V", t), fmt.Sprint("V", r), fmt.Sprint("V", r)})
	}
	return r
}

// neonSources sets the addresses of sources at an index.
func (f *function) neonSources(sources []string) {
	f.line("MOVD dst_base+0(FP), %s", f.pointer("dst"))
	f.line("MOVD srcs_base+24(FP), R12")
	f.line("MOVD at+48(FP), R14")
	for i, s := range sources {
		f.line("MOVD %d(R12), %s; ADD R14<<%d, %s", 24*i, f.pointer(s), f.bits/32+1, f.pointer(s))
	}
}

// neonRows sets the addresses of the rows of x.
func (f *function) neonRows(rows []string) {
	f.line("MOVD dst_base+0(FP), %s", f.pointer("dst"))
	f.line("MOVD x_base+24(FP), %s", f.pointer(rows[0]))
	for i := 1; i < len(rows); i++ {
		f.line("ADD R1<<%d, %s, %s", f.bits/32+1, f.pointer(rows[i-1]), f.pointer(rows[i]))
	}
}

// neonBroadcast puts a parameter in every lane.
func (f *function) neonBroadcast(from string, bits int, v *value) {
	lane := map[int]string{32: "S", 64: "D"}[bits]
	fmt.Fprintf(&f.start, "\tFMOV%s %s, F%d; VDUP V%d.%s[0], V%d.%s%d\n", lane, from, v.regs[0], v.regs[0], lane, v.regs[0], lane, 128/bits)
}

// neonNumber returns the maximum of finishMaximum.
func (f *function) neonNumber(abs, max int) {
	f.line("FMOVS F%d, R12", abs)
	f.line("FMOVS F%d, ret+%d(FP)", max, f.results())
	f.line("MOVD $0x%X, R14; CMPW R14, R12; BLS number", infBits)
	f.line("MOVW R12, ret+%d(FP)", f.results())
	f.out.WriteString("\nnumber:\n")
}
