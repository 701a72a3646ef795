package main

import (
	"fmt"
	"math"
)

// wires are the kernels of numbers sent in 8 bits, which package vec describes. AX is the index of
// an element in its block, and CX is the number of blocks left.
//
//	vectors 0 to 3   largest magnitudes; later the block's magnitude in all lanes of the first
//	vectors 4 to 7   elements, one after the other
//	vectors 8 to 10  127/magnitude, the scale of the block, the scale of the errors that were left
//	vectors 12, 13   temporaries
//	vector 15        the mask of the sign
//
// The stack frame holds elements that are sums, and the codes of a block that may be behind its own
// elements.
func wires() []kernel {
	return []kernel{
		{name: "encode8", params: "dst []byte, src []T", only32: true, x86: true, write: (*function).encode8},
		{name: "encodeError8", params: "dst []byte, src []T, left []byte", only32: true, x86: true, locals: 4 * block8, write: (*function).encodeError8},
		{name: "decode8", params: "dst []T, src []byte", only32: true, x86: true, locals: block8, write: func(f *function) { f.decode8(false) }},
		{name: "decodeAdd8", params: "dst []T, src []byte", only32: true, x86: true, write: func(f *function) { f.decode8(true) }},
	}
}

const (
	block8 = 256
	tiny8  = 0x1p-100
	huge8  = 0x1.020406p121
)

func (f *function) encode8() {
	f.blocks8([]string{"dst", "src"}, []string{"DI", "SI"}, "src")
	f.magnitude8("sought", func(u int) {
		f.line("VANDPS %s, %s, %s", f.at8(u, "SI", 4), f.reg(15), f.reg(4+u))
	})
	f.scale8("")
	f.codes8("coded", "DI", "SI", nil)
	f.line("JMP next; spoiled:")
	f.spoiled8("DI")
	f.nextBlock8(map[string]int{"DI": 4 + block8, "SI": 4 * block8})
}

func (f *function) encodeError8() {
	f.blocks8([]string{"dst", "src", "left"}, []string{"DI", "SI", "DX"}, "src")
	f.line("VBROADCASTSS (DX), %s", f.reg(10))
	f.magnitude8("sought", func(u int) {
		f.widen8(u, "4", "DX", 10)
		f.line("VADDPS %s, %s, %s", f.at8(u, "SI", 4), f.reg(4+u), f.reg(4+u))
		f.line("VMOVUPS %s, %s; VANDPS %s, %s, %s", f.reg(4+u), f.at8(u, "SP", 4), f.reg(15), f.reg(4+u), f.reg(4+u))
	})
	f.scale8("")
	f.clear8()
	f.codes8("coded", "DI", "SP", func(u int) { // the error takes the place of the elements
		x, t := f.reg(13), f.reg(12)
		f.line("VCVTDQ2PS %s, %s; VMULPS %s, %s, %s; VMOVUPS %s, %s", f.reg(4+u), t, f.reg(9), t, t, f.at8(u, "SP", 4), x)
		f.line("VSUBPS %s, %s, %s; VMOVUPS %s, %s", t, x, x, x, f.at8(u, "SP", 4))
		f.line("VANDPS %s, %s, %s; VPMAXUD %s, %s, %s", f.reg(15), x, x, x, f.reg(u), f.reg(u))
	})
	f.scale8("Left")
	f.codes8("codedLeft", "DX", "SP", nil)
	f.line("JMP next; spoiled:")
	f.spoiled8("DI")
	f.line("spoiledLeft:")
	f.spoiled8("DX")
	f.line("MOVL $0, (DX)")
	f.nextBlock8(map[string]int{"DI": 4 + block8, "SI": 4 * block8, "DX": 4 + block8})
}

// decode8 reads the codes. Without add it reads a copy of them, as the codes may be where the
// numbers will be written.
func (f *function) decode8(add bool) {
	f.blocks8([]string{"dst", "src"}, []string{"DI", "SI"}, "dst")
	f.line("VBROADCASTSS (SI), %s", f.reg(9))
	from, first := "SI", "4"
	if !add {
		from, first = "SP", ""
		for i := 0; i < block8; i += f.isa.bytes {
			f.line("VMOVUPS %d(SI), %s; VMOVUPS %s, %d(SP)", 4+i, f.reg(4), f.reg(4), i)
		}
	}
	f.fours8("decoded", func() {
		for u := range 4 {
			f.widen8(u, first, from, 9)
			if add {
				f.line("VADDPS %s, %s, %s", f.at8(u, "DI", 4), f.reg(4+u), f.reg(4+u))
			}
			f.line("VMOVUPS %s, %s", f.reg(4+u), f.at8(u, "DI", 4))
		}
	})
	f.nextBlock8(map[string]int{"DI": 4 * block8, "SI": 4 + block8})
}

// blocks8 begins the loop over the blocks of a slice of floats.
func (f *function) blocks8(slices, registers []string, floats string) {
	for i, name := range slices {
		f.line("MOVQ %s, %s", f.param(name), registers[i])
		if name == floats {
			f.line("MOVQ %s_len+%d(FP), CX", name, f.param(name).offset+8)
		}
	}
	f.line("SHRQ $8, CX; JEQ done; VBROADCASTSS %s, %s", f.consts.word(absBits), f.reg(15))
	f.out.WriteString("\nblock:\n")
}

// nextBlock8 ends the loop. Each pointer advances by its number of bytes in steps.
func (f *function) nextBlock8(steps map[string]int) {
	f.out.WriteString("\nnext:\n")
	for _, pointer := range []string{"DI", "SI", "DX"} {
		if steps[pointer] > 0 {
			f.line("ADDQ $%d, %s", steps[pointer], pointer)
		}
	}
	f.line("DECQ CX; JNZ block")
	f.out.WriteString("\ndone:\n")
}

// at8 returns the address of vector u of the four at element AX. Each element takes size bytes.
func (f *function) at8(u int, pointer string, size int) string {
	return fmt.Sprintf("%d(%s)(AX*%d)", u*f.lanes()*size, pointer, size)
}

// fours8 prints a loop over the elements of a block, four vectors at a time.
func (f *function) fours8(label string, body func()) {
	f.line("XORL AX, AX")
	fmt.Fprintf(&f.out, "\n%s:\n", label)
	body()
	f.line("ADDQ $%d, AX; CMPQ AX, $%d; JLT %s", 4*f.lanes(), block8, label)
}

// clear8 sets the magnitudes to 0.
func (f *function) clear8() {
	for u := range 4 {
		f.line("VXORPS X%[1]d, X%[1]d, X%[1]d", u)
	}
}

// magnitude8 computes the largest magnitude of the elements that load puts in vectors 4 to 7.
func (f *function) magnitude8(label string, load func(u int)) {
	f.clear8()
	f.fours8(label, func() {
		for u := range 4 {
			load(u)
			f.line("VPMAXUD %s, %s, %s", f.reg(4+u), f.reg(u), f.reg(u))
		}
	})
}

// scale8 sets vectors 8 and 9 from the largest magnitude, which is in vectors 0 to 3. If it is not
// finite, it jumps to the code for a spoiled block.
func (f *function) scale8(suffix string) {
	f.pinned["magnitude"] = &value{regs: []int{0, 1, 2, 3}}
	r := f.foldTo("magnitude", "VPMAXUD", 32, 4)
	c127 := f.consts.word(math.Float32bits(127))
	f.line("VMOVD X%d, BX; VXORPS X8, X8, X8; VXORPS X9, X9, X9", r)
	f.line("CMPL BX, $0x%X; JCC spoiled%s; CMPL BX, $0x%X; JCS scaled%s", infBits, suffix, math.Float32bits(tiny8), suffix)
	f.line("VMOVSS %s, X4; VDIVSS X%d, X4, X8; VDIVSS X4, X%d, X9; VMINSS %s, X9, X9", c127, r, r, f.consts.word(math.Float32bits(huge8)))
	fmt.Fprintf(&f.out, "\nscaled%s:\n", suffix)
	f.line("VBROADCASTSS X8, %s; VBROADCASTSS X9, %s", f.reg(8), f.reg(9))
}

// codes8 writes the codes of a block of elements at from. It calls rest(u), if there is a rest, for
// each of four vectors, when register 4+u has the codes of vector u.
func (f *function) codes8(label, to, from string, rest func(u int)) {
	f.fours8(label, func() {
		for u := range 4 {
			f.line("VMULPS %s, %s, %s; VCVTPS2DQ %s, %s", f.at8(u, from, 4), f.reg(8), f.reg(4+u), f.reg(4+u), f.reg(4+u))
			if rest != nil {
				rest(u)
			}
			if f.isa.wide {
				f.line("VPMOVDB %s, 4+%s", f.reg(4+u), f.at8(u, to, 1))
			}
		}
		if !f.isa.wide {
			f.line("VPACKSSDW Y5, Y4, Y4; VPACKSSDW Y7, Y6, Y6; VPACKSSWB Y6, Y4, Y4; VEXTRACTI128 $1, Y4, X5")
			f.line("VPUNPCKLDQ X5, X4, X6; VPUNPCKHDQ X5, X4, X7; VMOVUPS X6, 4(%s)(AX*1); VMOVUPS X7, 20(%s)(AX*1)", to, to)
		}
	})
	f.line("VMOVSS X9, (%s)", to)
}

// widen8 sets vector 4+u to the numbers of codes, times the scale in another vector. The codes
// begin behind bytes after the pointer.
func (f *function) widen8(u int, behind, pointer string, scale int) {
	if behind != "" {
		behind += "+"
	}
	x := f.reg(4 + u)
	f.line("VPMOVSXBD %s%s, %s; VCVTDQ2PS %s, %s; VMULPS %s, %s, %s", behind, f.at8(u, pointer, 1), x, x, x, f.reg(scale), x, x)
}

// spoiled8 writes a block that is not finite.
func (f *function) spoiled8(to string) {
	f.line("VXORPS X4, X4, X4; MOVL $0x7FC00000, (%s)", to)
	for i := 0; i < block8; i += f.isa.bytes {
		f.line("VMOVUPS %s, %d(%s)", f.reg(4), 4+i, to)
	}
}
