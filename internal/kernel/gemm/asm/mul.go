package main

import (
	"bytes"
	"fmt"
	"strings"
)

// fields lists the tile struct of package gemm: name and offset in bytes. The first word of a slice
// is its address.
var fields = []struct {
	name   string
	offset int
}{
	{"rows", 0}, {"cols", 8}, {"k", 16},
	{"a", 24}, {"aline", 48}, {"astep", 56},
	{"b", 64}, {"bstep", 88}, {"bpanel", 96},
	{"in", 104}, {"ldin", 128},
	{"out", 136}, {"ldout", 160},
	{"rounded", 168}, {"ldrounded", 192},
	{"scratch", 200},
	{"ahead", 224}, {"aheadLine", 248}, {"aheadStep", 256}, {"aheadPanel", 264},
	{"taps", 272}, {"plane", 296},
	{"stream", 305}, {"read", 304},
}

// printLayout names the offsets: tile_k(DI) is the field k of the tile at DI. The scalars after
// read are aligned to their own size.
func printLayout(out *bytes.Buffer) {
	for _, f := range fields {
		fmt.Fprintf(out, "#define tile_%s %d\n", f.name, f.offset)
	}
	last := fields[len(fields)-1].offset
	for _, e := range elements {
		fmt.Fprintf(out, "#define tile_alpha%s %d\n#define tile_beta%s %d\n", e.float, last+e.size, e.float, last+2*e.size)
	}
}

// mul prints the register kernel. Its general registers, with counts of elements and strides in
// bytes:
//
//	throughout        DI tile   SI aline   DX astep   R13 bstep   AX panel of B   R15 its column
//	in the loop on k  CX k left   BX row of B   R8 to R12 A in rows 0, 3, 6, 9 and 12
//	after it          CX columns here  BX mask  R8 out  R9 in  R10 ldout  R11 ldin  R14 columns left
//
// There is one body for each number of rows, so that a strip costs only its rows. There is one more
// that reads B by taps, if the target supports them: then AX is the panel's first tap, R13 is the
// tap of the row, and R14 is the stride of planes in the loop on k.
func (r routine) mul() {
	if r.pairs {
		fmt.Fprint(r.out, "\nTEXT dot<>(SB), NOSPLIT, $0-8\n")
	} else {
		r.text("mul", fmt.Sprintf("t *tile[float%d]", 8*r.size), 0, 8)
	}
	r.p("MOVQ t+0(FP), DI")
	r.p("MOVQ tile_aline(DI), SI; SHLQ $%d, SI", r.log)
	r.p("MOVQ tile_astep(DI), DX; SHLQ $%d, DX", r.log)
	r.p("MOVQ tile_bstep(DI), R13; SHLQ $%d, R13", r.log)
	r.p("MOVQ tile_b(DI), AX")
	r.p("XORQ R15, R15")
	r.p("MOVQ tile_rows(DI), CX")
	taps := r.masks && !r.pairs
	if taps {
		r.p("MOVQ tile_taps(DI), BX; TESTQ BX, BX; JNZ taps")
	}
	r.strips("")
	if taps {
		r.label("taps")
		r.p("MOVQ BX, AX")
		r.strips("taps")
	}
}

// strips prints the bodies, and the choice of one.
func (r routine) strips(kind string) {
	for rows := r.mr; rows > 1; rows-- {
		r.p("CMPQ CX, $%d; JEQ %s", rows, strip{r, rows, kind}.labelOf("rows"))
	}
	for rows := 1; rows <= r.mr; rows++ {
		strip{r, rows, kind}.print()
	}
}

// flush prints the register kernel for bfloat16 around a kernel that would keep subnormals: it sets
// bits 15 (flush to zero) and 6 (denormals are zeros) of the control register, and restores them.
// Nothing preempts assembly, so no other goroutine sees them.
func (r routine) flush() {
	kernel := "·mulF32" + strings.ToUpper(r.name)
	if r.dots {
		kernel = "dot<>"
	}
	r.text("mul", "t *tile[float32]", 16, 8)
	r.p("MOVQ t+0(FP), DI; MOVQ DI, 0(SP)")
	r.p("STMXCSR 8(SP); MOVL 8(SP), AX; ORL $0x8040, AX; MOVL AX, 12(SP); LDMXCSR 12(SP)")
	r.p("CALL %s(SB)", kernel)
	r.p("LDMXCSR 8(SP)")
	r.p("RET")
}

// strip prints the body for a number of rows.
type strip struct {
	routine
	rows int
	taps string // the prefix of its labels if B is read by taps
}

// labelOf makes a label of this body.
func (s strip) labelOf(name string) string { return fmt.Sprintf("%s%s%d", s.taps, name, s.rows) }

// print prints an iteration for every panel of B: sums over k, and their conversion to C.
func (s strip) print() {
	s.label(s.labelOf("rows"))
	s.p("MOVQ tile_a(DI), R8")
	if s.rows > 3 {
		s.p("LEAQ (SI)(SI*2), CX")
	}
	for i := 3; i < s.rows; i += 3 {
		s.p("LEAQ (R%d)(CX*1), R%d", 7+i/3, 8+i/3)
	}
	for i := range s.rows {
		s.p("VXORPS %[1]s, %[1]s, %[1]s; VXORPS %[2]s, %[2]s, %[2]s", s.zero(2*i), s.zero(2*i+1))
	}
	s.prefetch()
	if s.taps == "" {
		s.p("MOVQ AX, BX")
	} else {
		s.p("MOVQ tile_bstep(DI), BX; ADDQ R15, BX; SHLQ $%d, BX; ADDQ tile_b(DI), BX; MOVQ AX, R13", s.log)
	}
	s.p("MOVQ tile_cols(DI), R14; SUBQ R15, R14")
	s.p("MOVQ tile_k(DI), CX")
	s.p("TESTQ CX, CX; JZ %s", s.labelOf("store"))
	s.p("CMPQ R14, $%d", s.lanes())
	if s.taps != "" {
		s.p("MOVQ tile_plane(DI), R14")
	}
	s.p("JLE %s", s.labelOf("narrow"))
	s.loop("wide", 2)
	s.p("JMP %s", s.labelOf("store"))
	s.loop("narrow", 1)
	s.label(s.labelOf("store"))
	if s.taps != "" {
		s.p("MOVQ tile_cols(DI), R14; SUBQ R15, R14")
	}
	s.store()
	if s.taps == "" {
		s.p("MOVQ tile_bpanel(DI), BX; SHLQ $%d, BX; ADDQ BX, AX", s.log)
	} else {
		s.p("MOVQ tile_bpanel(DI), BX; LEAQ (BX)(BX*2), BX; LEAQ (AX)(BX*8), AX")
	}
	s.p("ADDQ $%d, R15", 2*s.lanes())
	s.p("CMPQ R15, tile_cols(DI); JLT %s", s.labelOf("rows"))
	s.p("VZEROUPPER")
	s.p("RET")
}

// zero returns the narrowest register whose clearing clears vector i: its encoding is shorter.
func (s strip) zero(i int) string {
	if i < 16 {
		return fmt.Sprintf("X%d", i)
	}
	return s.v(i)
}

// prefetch prints the request for the tile of C, which is far from the core: it has until the end
// of the sums to arrive.
func (s strip) prefetch() {
	if s.dots {
		s.p("MOVQ tile_rounded(DI), BX; TESTQ BX, BX; JZ %s", s.labelOf("out"))
		s.p("LEAQ (BX)(R15*2), BX; MOVQ tile_ldrounded(DI), R14; SHLQ $1, R14")
		for range s.rows {
			s.p("PREFETCHT0 (BX); ADDQ R14, BX")
		}
		s.p("JMP %s", s.labelOf("sums"))
		s.label(s.labelOf("out"))
		defer s.label(s.labelOf("sums"))
	}
	s.p("MOVQ tile_out(DI), BX; LEAQ (BX)(R15*%d), BX; MOVQ tile_ldout(DI), R14; SHLQ $%d, R14", s.size, s.log)
	for range s.rows {
		s.p("PREFETCHT0 (BX); PREFETCHT0 %d(BX); ADDQ R14, BX", s.bytes)
	}
}

// loop prints the sums over k of a tile one or two vectors wide: each iteration multiplies a column
// of A by a row of B.
func (s strip) loop(name string, halves int) {
	s.p("PCALIGN $32")
	s.label(s.labelOf(name))
	for h := range halves {
		if s.taps == "" {
			s.p("VMOVUP%s %d(BX), %s; PREFETCHT0 %d(BX)(R13*8)", s.letter, h*s.bytes, s.v(s.b+h), h*s.bytes)
		} else {
			mask := map[int]string{8: "B", 16: "W"}[s.lanes()]
			s.p("KMOV%s %d(R13), K%d; VMOVUP%s.Z %d(BX), K%d, %s", mask, 16+h*s.lanes()/8, h+1, s.letter, h*s.bytes, h+1, s.v(s.b+h))
			s.p("PREFETCHT0 %d(BX)(R14*1)", h*s.bytes)
		}
	}
	for i := range s.rows {
		row := fmt.Sprintf("(R%d)", 8+i/3)
		if i%3 > 0 {
			row += fmt.Sprintf("(SI*%d)", i%3)
		}
		line := fmt.Sprintf("VBROADCASTS%s %s, %s", s.letter, row, s.v(s.a+i%2))
		for h := range halves {
			line += "; " + s.multiplyAdd(s.b+h, s.a+i%2, 2*i+h)
		}
		s.p("%s", line)
	}
	for i := 0; i < s.rows; i += 3 {
		s.p("ADDQ DX, R%d", 8+i/3)
	}
	if s.taps == "" {
		s.p("ADDQ R13, BX")
	} else {
		s.p("ADDQ (R13), BX; ADDQ 8(R13), R13")
	}
	s.p("DECQ CX; JNZ %s", s.labelOf(name))
}

// multiplyAdd returns the instruction that adds the product of vectors b and a to sum.
func (s strip) multiplyAdd(b, a, sum int) string {
	if s.pairs {
		return vdpbf16ps(b, a, sum)
	}
	return fmt.Sprintf("VFMADD231P%s %s, %s, %s", s.letter, s.v(b), s.v(a), s.v(sum))
}

// store prints the update of C from the sums: times alpha, plus beta times the addend, in the
// columns that exist.
func (s strip) store() {
	s.p("MOVQ tile_out(DI), R8; LEAQ (R8)(R15*%d), R8; MOVQ tile_ldout(DI), R10; SHLQ $%d, R10", s.size, s.log)
	s.p("MOVQ tile_in(DI), R9; LEAQ (R9)(R15*%d), R9; MOVQ tile_ldin(DI), R11; SHLQ $%d, R11", s.size, s.log)
	scalar := s.v(s.a)
	s.p("VBROADCASTS%s tile_alpha%s(DI), %s", s.letter, s.float, scalar)
	for i := range s.rows {
		s.p("VMULP%[1]s %[2]s, %[3]s, %[3]s; VMULP%[1]s %[2]s, %[4]s, %[4]s", s.letter, scalar, s.sum(i, 0), s.sum(i, 1))
	}
	s.p("VBROADCASTS%s tile_beta%s(DI), %s", s.letter, s.float, scalar)
	if s.masks {
		// Masks cost a full tile nothing.
		s.p("MOVQ $%d, CX; CMPQ R14, CX; CMOVQLT R14, CX", 2*s.lanes())
		s.p("MOVQ $1, BX; SHLQ CX, BX; DECQ BX")
		s.p("KMOVW BX, K1; SHRQ $%d, BX; KMOVW BX, K2", s.lanes())
		s.plain(", K1", ", K2")
		return
	}
	// Masked stores are slow on some processors: a full tile does not use them.
	s.p("CMPQ R14, $%d; JLT %s", 2*s.lanes(), s.labelOf("edge"))
	s.plain("", "")
	s.p("JMP %s", s.labelOf("next"))
	s.label(s.labelOf("edge"))
	s.edge()
	s.label(s.labelOf("next"))
}

// plain prints the addend and the stores with ordinary moves, under the masks given, if any.
func (s strip) plain(mask0, mask1 string) {
	beta := s.v(s.a)
	s.p("CMPB tile_read(DI), $0; JEQ %s", s.labelOf("write"))
	for i := range s.rows {
		s.p("VFMADD231P%[1]s (R9), %[2]s%[3]s, %[4]s; VFMADD231P%[1]s %[5]d(R9), %[2]s%[6]s, %[7]s; ADDQ R11, R9",
			s.letter, beta, mask0, s.sum(i, 0), s.bytes, mask1, s.sum(i, 1))
	}
	s.label(s.labelOf("write"))
	if s.dots {
		s.round(mask0, mask1)
		defer s.label(s.labelOf("next"))
	}
	for i := range s.rows {
		s.p("VMOVUP%[1]s %[2]s%[3]s, (R8); VMOVUP%[1]s %[4]s%[5]s, %[6]d(R8); ADDQ R10, R8",
			s.letter, s.sum(i, 0), mask0, s.sum(i, 1), mask1, s.bytes)
	}
}

// round prints the stores of rounded sums, if they are wanted. The sums are not subnormal.
func (s strip) round(mask0, mask1 string) {
	s.p("MOVQ tile_rounded(DI), BX; TESTQ BX, BX; JZ %s", s.labelOf("floats"))
	s.p("LEAQ (BX)(R15*2), R8; MOVQ tile_ldrounded(DI), R10; SHLQ $1, R10")
	for i := range s.rows {
		for h, mask := range []string{mask0, mask1} {
			s.p("%s; VMOVDQU16 Y%d%s, %d(R8)", vcvtneps2bf16(2*i+h, 2*i+h), 2*i+h, mask, h*s.bytes/2)
		}
		s.p("ADDQ R10, R8")
	}
	s.p("JMP %s", s.labelOf("next"))
	s.label(s.labelOf("floats"))
}

// edge prints the addend and the stores for a tile that is not full, with the masked moves of AVX2.
func (s strip) edge() {
	masks, beta, in := [2]string{s.v(s.b), s.v(s.b + 1)}, s.v(s.a), s.v(s.a+1)
	s.mask("R14", masks[0], masks[1])
	s.p("CMPB tile_read(DI), $0; JEQ %s", s.labelOf("edgewrite"))
	for i := range s.rows {
		for h := range 2 {
			s.p("VMASKMOVP%[1]s %[2]d(R9), %[3]s, %[4]s; VFMADD231P%[1]s %[4]s, %[5]s, %[6]s",
				s.letter, h*s.bytes, masks[h], in, beta, s.sum(i, h))
		}
		s.p("ADDQ R11, R9")
	}
	s.label(s.labelOf("edgewrite"))
	for i := range s.rows {
		s.p("VMASKMOVP%[1]s %[2]s, %[3]s, (R8); VMASKMOVP%[1]s %[4]s, %[5]s, %[6]d(R8); ADDQ R10, R8",
			s.letter, s.sum(i, 0), masks[0], s.sum(i, 1), masks[1], s.bytes)
	}
}
