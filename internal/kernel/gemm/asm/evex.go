package main

import "fmt"

// evex returns an instruction on 512-bit registers as bytes for Go's assembler, which does not know
// its name: EVEX.512.pp.0F38.W0 opcode /r of Intel's manual (volume 2, section 2.7.1), from the
// registers in ModRM:r/m and EVEX.vvvv to ModRM:reg. The upper bits of their numbers, and all of
// vvvv, are inverted.
func evex(pp, opcode uint32, rm, vvvv, reg int) string {
	bit := func(register, i int) uint32 { return uint32(^register>>i) & 1 }
	prefix := uint32(0x62) |
		(bit(reg, 3)<<7|bit(rm, 4)<<6|bit(rm, 3)<<5|bit(reg, 4)<<4|2)<<8 | // 0F38
		(uint32(^vvvv&15)<<3|1<<2|pp)<<16 |
		(2<<5|bit(vvvv, 4)<<3)<<24 // 512 bits
	modrm := uint32(3<<6 | reg&7<<3 | rm&7)
	return fmt.Sprintf("LONG $%#08x; WORD $%#04x", prefix, modrm<<8|opcode)
}

// vdpbf16ps returns the instruction that adds to every float32 of vector sum the dot product of the
// corresponding bfloat16 pairs in vectors a and b.
func vdpbf16ps(b, a, sum int) string {
	return evex(ppF3, 0x52, b, a, sum) + fmt.Sprintf(" /* VDPBF16PS Z%d, Z%d, Z%d */", b, a, sum)
}

// vcvtneps2bf16 returns the instruction that rounds the float32 of vector src to bfloat16, in the
// lower half of vector dst. Subnormal numbers become zeros.
func vcvtneps2bf16(src, dst int) string {
	return evex(ppF3, 0x72, src, 0, dst) + fmt.Sprintf(" /* VCVTNEPS2BF16 Z%d, Y%d */", src, dst)
}

// vcvtne2ps2bf16 returns the instruction that rounds the float32 of vectors high and low to bfloat16,
// in the halves of vector dst. Subnormal numbers become zeros.
func vcvtne2ps2bf16(high, low, dst int) string {
	return evex(ppF2, 0x72, low, high, dst) + fmt.Sprintf(" /* VCVTNE2PS2BF16 Z%d, Z%d, Z%d */", low, high, dst)
}
