package main

import (
	"bytes"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/kernel/neon"
)

// The register tile of NEON is four vectors wide: 6×16 float32 or 6×8 float64. Sum (i, h) is in
// register 4*i+h, a row of B in 24 to 27, and elements of A in 28 to 31 in turn. The processor
// multiplies a vector by an element of another, so nothing is broadcast: an element of A is loaded,
// at any stride, into the first lane of its register. Four vectors and six rows take 36
// instructions: 24 multiply-adds of a vector, 8 loads and 4 others.
//
// With BFMMLA the tile is 8×8. Register 4*i+j has the four sums of rows 2i and 2i+1 and columns 2j
// and 2j+1. An element of A or B is four bfloat16 that are neighbours along k; a register holds two
// such elements. This takes 24 instructions for 16 such products, each of 16 multiply-adds.

// neonRoutine prints the routines for an element type.
type neonRoutine struct {
	routine
	vectors int // in a row of the tile
}

// typed returns an instruction of the element type that Go's assembler does not know.
func (r neonRoutine) typed(name string, registers ...int) string {
	return neon.Op(name, 8*r.size, registers...)
}

// neonSource prints the routines of NEON.
func (t target) neonSource(out *bytes.Buffer) {
	pairs := neonRoutine{routine{t, f32, true, out}, t.b / t.mr}
	if t.dots {
		pairs.mul()
		pairs.flush()
		pairs.transposeFours()
		pairs.interleaveFours()
		return
	}
	for _, e := range elements {
		r := neonRoutine{routine{t, e, false, out}, t.b / t.mr}
		r.mul()
		r.transpose()
		r.interleave()
	}
	pairs.flush()
	pairs.transpose()
	pairs.interleave()
}

// mul prints the register kernel. Its general registers, with counts of elements and strides in
// bytes:
//
//	throughout        R0 tile   R1 aline   R2 astep   R3 bstep   R4 panel of B   R5 its column
//	in the loop on k  R6 k left   R7 row of B   R8 offset in A   R10 to R15 rows of A
//	after it          R7 columns here  R8 out  R9 in  R10 ldout  R11 ldin  R12 sums  R13 rows
func (r neonRoutine) mul() {
	if r.pairs {
		fmt.Fprintf(r.out, "\nTEXT dot<>(SB), NOSPLIT, $%d-8\n", r.b*16)
	} else {
		r.text("mul", fmt.Sprintf("t *tile[float%d]", 8*r.size), r.b*16, 8)
	}
	r.p("MOVD t+0(FP), R0")
	r.p("MOVD tile_aline(R0), R1; LSL $%d, R1", r.log)
	r.p("MOVD tile_astep(R0), R2; LSL $%d, R2", r.log)
	r.p("MOVD tile_bstep(R0), R3; LSL $%d, R3", r.log)
	r.p("MOVD tile_b(R0), R4")
	r.p("MOVD ZR, R5")
	r.p("MOVD tile_rows(R0), R6")
	for rows := r.mr; rows > 1; rows-- {
		r.p("CMP $%d, R6; BEQ rows%d", rows, rows)
	}
	for rows := 1; rows <= r.mr; rows++ {
		r.strip(rows)
	}
	r.edge()
}

// strip prints the body for a number of rows: a loop over the panels of B.
func (r neonRoutine) strip(rows int) {
	at := func(name string) string { return fmt.Sprintf("%s%d", name, rows) }
	r.label(at("rows"))
	r.p("MOVD tile_a(R0), R10")
	for i := 1; i < rows && !r.pairs; i++ {
		r.p("ADD R1, R%d, R%d", 9+i, 10+i)
	}
	sums := r.vectors * rows
	if r.pairs {
		sums += sums % 4 // pairs of rows
	}
	for i := range sums {
		r.p("VEOR V%[1]d.B16, V%[1]d.B16, V%[1]d.B16", i)
	}
	r.p("MOVD R4, R7; MOVD ZR, R8")
	r.p("MOVD tile_cols(R0), R9; SUB R5, R9")
	r.p("MOVD tile_k(R0), R6; CBZ R6, %s", at("store"))
	if r.pairs {
		r.fours(at("fours"), (rows+1)/2)
	} else {
		r.loops(rows, at)
	}
	r.label(at("store"))
	r.store(rows, at)
	r.p("MOVD tile_bpanel(R0), R6; ADD R6<<%d, R4", r.log)
	r.p("ADD $%d, R5", r.vectors*r.lanes())
	r.p("MOVD tile_cols(R0), R6; CMP R6, R5; BLT %s", at("rows"))
	r.p("RET")
}

// loops prints the sums over k for tiles of four, two and one vectors.
func (r neonRoutine) loops(rows int, at func(string) string) {
	for _, vectors := range []int{1, 2} {
		r.p("CMP $%d, R9; BLE %s", vectors*r.lanes(), at(fmt.Sprint("vectors", vectors, "of")))
	}
	for vectors := r.vectors; vectors > 0; vectors /= 2 {
		r.loop(at(fmt.Sprint("vectors", vectors, "of")), rows, vectors)
		if vectors > 1 {
			r.p("B %s", at("store"))
		}
	}
}

// fours prints the sums over k of pairs of rows, and their conversion to rows: for a pair of rows
// and two pairs of columns, the lower halves of the sums are a vector of the first row, and the
// upper halves are a vector of the second. An element of A or B is two steps of the tile.
func (r neonRoutine) fours(name string, pairs int) {
	r.p("LSR $1, R6")
	r.p("PCALIGN $16")
	r.label(name)
	r.p("FLDPQ 0(R10), (F%d, F%d); FLDPQ 32(R10), (F%d, F%d)", r.a, r.a+1, r.a+2, r.a+3)
	r.p("FLDPQ 0(R7), (F%d, F%d); FLDPQ 32(R7), (F%d, F%d)", r.b, r.b+1, r.b+2, r.b+3)
	for i := range pairs {
		for j := range 4 {
			r.p("%s", r.typed("bfmmla", 4*i+j, r.a+i, r.b+j))
		}
	}
	r.p("ADD $64, R7; ADD $64, R10")
	r.p("SUBS $1, R6; BNE %s", name)
	for i := range pairs {
		v := 4 * i
		r.p("VZIP2 V%d.D2, V%d.D2, V%d.D2; VZIP1 V%d.D2, V%d.D2, V%d.D2", v+1, v, r.b, v+1, v, v)
		r.p("VZIP1 V%d.D2, V%d.D2, V%d.D2; VZIP2 V%d.D2, V%d.D2, V%d.D2", v+3, v+2, v+1, v+3, v+2, v+3)
		r.p("VMOV V%d.B16, V%d.B16", r.b, v+2)
	}
}

// loop prints the sums over k of a tile some vectors wide: each iteration multiplies a column of A
// by a row of B.
func (r neonRoutine) loop(name string, rows, vectors int) {
	r.p("PCALIGN $16")
	r.label(name)
	r.load("R7", vectors)
	for i := range rows {
		line := fmt.Sprintf("FMOV%s (R%d)(R8), F%d", r.letter, 10+i, r.a+i%4)
		for h := range vectors {
			line += "; " + r.typed("fmla element", r.vectors*i+h, r.b+h, r.a+i%4)
		}
		r.p("%s", line)
	}
	r.p("ADD R3, R7; ADD R2, R8")
	r.p("SUBS $1, R6; BNE %s", name)
}

// load prints the load of some vectors to the registers of a row of B.
func (r neonRoutine) load(address string, vectors int) {
	if vectors == 1 {
		r.p("FMOVQ (%s), F%d", address, r.b)
	}
	for h := 0; h+1 < vectors; h += 2 {
		r.p("FLDPQ %d(%s), (F%d, F%d)", 16*h, address, r.b+h, r.b+h+1)
	}
}

// save prints the store of row i of the sums.
func (r neonRoutine) save(i int, address string) {
	for h := 0; h < r.vectors; h += 2 {
		r.p("FSTPQ (F%d, F%d), %d(%s)", r.vectors*i+h, r.vectors*i+h+1, 16*h, address)
	}
}

// store prints the update of C from the sums: times alpha, plus beta times the addend. A tile that
// is not full goes through memory, to edge.
func (r neonRoutine) store(rows int, at func(string) string) {
	alpha, beta := r.a, r.a+1
	r.p("MOVD tile_out(R0), R8; ADD R5<<%d, R8; MOVD tile_ldout(R0), R10; LSL $%d, R10", r.log, r.log)
	r.p("MOVD tile_in(R0), R9; ADD R5<<%d, R9; MOVD tile_ldin(R0), R11; LSL $%d, R11", r.log, r.log)
	r.p("FMOV%s tile_alpha%s(R0), F%d; FMOV%s tile_beta%s(R0), F%d", r.letter, r.float, alpha, r.letter, r.float, beta)
	for i := range r.vectors * rows {
		r.p("%s", r.typed("fmul element", i, i, alpha))
	}
	r.p("MOVBU tile_read(R0), R6")
	r.p("MOVD tile_cols(R0), R7; SUB R5, R7; CMP $%d, R7; BLT %s", r.vectors*r.lanes(), at("edge"))
	r.p("CBZ R6, %s", at("write"))
	for i := range rows {
		r.load("R9", r.vectors)
		for h := range r.vectors {
			r.p("%s", r.typed("fmla element", r.vectors*i+h, r.b+h, beta))
		}
		r.p("ADD R11, R9")
	}
	r.label(at("write"))
	for i := range rows {
		r.save(i, "R8")
		r.p("ADD R10, R8")
	}
	r.p("B %s", at("next"))
	r.label(at("edge"))
	r.p("MOVD $sums-%d(SP), R12; MOVD $%d, R13", r.b*16, rows)
	for i := range rows {
		r.save(i, "R12")
		r.p("ADD $%d, R12", r.vectors*16)
	}
	r.p("B edge")
	r.label(at("next"))
}

// edge prints the addend and the stores for the last tile, which is not full, element by element.
func (r neonRoutine) edge() {
	beta := r.a + 1
	r.label("edge")
	r.p("MOVD $sums-%d(SP), R12", r.b*16)
	r.label("row")
	r.p("MOVD R7, R14; MOVD R12, R15; MOVD R9, R16; MOVD R8, R17")
	r.label("column")
	r.p("FMOV%s.P %d(R15), F0", r.letter, r.size)
	r.p("CBZ R6, write")
	r.p("FMOV%s.P %d(R16), F1; FMADD%s F1, F0, F%d, F0", r.letter, r.size, r.letter, beta)
	r.label("write")
	r.p("FMOV%s.P F0, %d(R17)", r.letter, r.size)
	r.p("SUBS $1, R14; BNE column")
	r.p("ADD $%d, R12; ADD R11, R9; ADD R10, R8", r.vectors*16)
	r.p("SUBS $1, R13; BNE row")
	r.p("RET")
}

// flush prints the register kernel for bfloat16 around the float32 kernel: it sets bit 24 of the
// control register, which makes subnormal numbers zeros, and restores it.
func (r neonRoutine) flush() {
	kernel := "·mulF32NEON"
	if r.target.dots {
		kernel = "dot<>"
	}
	r.text("mul", "t *tile[float32]", 24, 8)
	r.p("MOVD t+0(FP), R0; MOVD R0, 8(RSP)")
	r.p("MOVD FPCR, R1; MOVD R1, control-8(SP); ORR $(1<<24), R1; MOVD R1, FPCR")
	r.p("CALL %s(SB)", kernel)
	r.p("MOVD control-8(SP), R1; MOVD R1, FPCR")
	r.p("RET")
}

// head prints the entry of a packing routine: R0 dst, R1 src, R2 ld, R3 rows, R4 k, R5 width,
// strides in bytes. For pairs R4 is their number, and the vector split is their upper halves.
func (r neonRoutine) head(kind string) {
	params, log := fmt.Sprintf("dst, src []float%d", 8*r.size), r.log
	if r.pairs {
		params, log = "dst []float32, src []half.BFloat16", 1
	}
	r.text(kind, params+", ld, rows, k, width int", 0, 80)
	r.p("MOVD dst_base+0(FP), R0")
	r.p("MOVD src_base+24(FP), R1")
	r.p("MOVD ld+48(FP), R2; LSL $%d, R2", log)
	r.p("MOVD rows+56(FP), R3")
	r.p("MOVD k+64(FP), R4")
	r.p("MOVD width+72(FP), R5; LSL $%d, R5", r.log)
	if r.pairs {
		r.p("LSR $1, R4")
	}
}

// packed prints the store of a packed vector. A pair becomes two: the second element, which is
// added first, and the first.
func (r neonRoutine) packed(i int) {
	if r.pairs {
		r.p("VAND V%d.B16, V%d.B16, V14.B16; FMOVQ F14, (R0); ADD R5, R0", split, i)
		r.p("VSHL $16, V%[1]d.S4, V%[1]d.S4", i)
	}
	r.p("FMOVQ F%d, (R0); ADD R5, R0", i)
}

// transpose prints dst[p*width+r] = src[r*ld+p] for r < rows <= lanes, k a multiple of the
// elements, or pairs, in a vector. The first row is used again for missing rows.
func (r neonRoutine) transpose() {
	r.head("transpose")
	if r.pairs {
		r.p("MOVD $0xffff0000, R6; VDUP R6, V%d.S4", split)
	}
	row := []string{"R1", "R6", "R7", "R8"}[:r.lanes()]
	for i := 1; i < r.lanes(); i++ {
		r.p("ADD R2, %s, R9; CMP $%d, R3; CSEL GT, R9, R1, %s", row[i-1], i, row[i])
	}
	r.label("turn")
	for i := range row {
		r.p("FMOVQ.P 16(%s), F%d", row[i], i)
	}
	if r.lanes() == 2 {
		r.p("VTRN1 V1.D2, V0.D2, V8.D2; VTRN2 V1.D2, V0.D2, V9.D2")
	} else {
		for i := 0; i < 4; i += 2 {
			r.p("VTRN1 V%[2]d.S4, V%[1]d.S4, V%[3]d.S4; VTRN2 V%[2]d.S4, V%[1]d.S4, V%[4]d.S4", i, i+1, 4+i, 5+i)
		}
		for i := range 2 {
			r.p("VTRN1 V%[2]d.D2, V%[1]d.D2, V%[3]d.D2; VTRN2 V%[2]d.D2, V%[1]d.D2, V%[4]d.D2", 4+i, 6+i, 8+i, 10+i)
		}
	}
	for p := range row {
		r.packed(8 + p)
	}
	r.p("SUBS $%d, R4; BNE turn", r.lanes())
	r.p("RET")
}

// interleave prints dst[p*width+r] = src[p*ld+r] for r < rows <= lanes, with a loop for each number
// of rows. For bfloat16 p counts pairs of rows.
func (r neonRoutine) interleave() {
	r.head("interleave")
	if r.pairs {
		r.p("ADD R2, R1, R7; LSL $1, R2")
	}
	for rows := r.lanes(); rows > 1; rows-- {
		r.p("CMP $%d, R3; BEQ copy%d", rows, rows)
	}
	for rows := 1; rows <= r.lanes(); rows++ {
		r.label(fmt.Sprint("copy", rows))
		if r.pairs {
			for _, from := range []string{"R7", "R1"} { // the second element of a pair first
				r.part(rows, 2, from)
				r.p("%s; FMOVQ F0, (R0); ADD R5, R0; ADD R2, %s", neon.Op("shll", 32, 0, 0), from)
			}
		} else {
			r.part(rows, r.size, "R1")
			r.p("FMOVQ F0, (R0); ADD R5, R0; ADD R2, R1")
		}
		r.p("SUBS $1, R4; BNE copy%d", rows)
		r.p("RET")
	}
}

// part prints the load of some elements, at most a vector, to vector 0.
func (r neonRoutine) part(count, size int, from string) {
	letter := func(bytes int) string { return map[int]string{2: "H", 4: "S", 8: "D", 16: "Q"}[bytes] }
	first := 1
	for first*2 <= count {
		first *= 2
	}
	if first*size == 2 {
		r.p("VLD1 (%s), V0.H[0]", from)
	} else {
		r.p("FMOV%s (%s), F0", letter(first*size), from)
	}
	if count == 3 {
		r.p("ADD $%d, %s, R6; VLD1 (R6), V0.%s[2]", 2*size, from, letter(size))
	}
}

// transposeFours is transpose for elements of four bfloat16, with k a multiple of eight and up to
// eight rows, two at a time.
func (r neonRoutine) transposeFours() {
	r.head("transpose")
	r.p("MOVD R4, R9")
	r.label("pair")
	r.p("ADD R2, R1, R6; CMP $1, R3; CSEL GT, R6, R1, R7")
	r.p("MOVD R1, R10; MOVD R0, R8; MOVD R9, R4")
	r.label("turn")
	r.p("FMOVQ.P 16(R10), F0; FMOVQ.P 16(R7), F1")
	r.p("VTRN1 V1.D2, V0.D2, V2.D2; VTRN2 V1.D2, V0.D2, V3.D2")
	r.p("FMOVQ F2, (R8); ADD R5<<1, R8; FMOVQ F3, (R8); ADD R5<<1, R8")
	r.p("SUBS $4, R4; BNE turn")
	r.p("ADD R2, R6, R1; ADD $16, R0")
	r.p("SUBS $2, R3; BGT pair")
	r.p("RET")
}

// interleaveFours is interleave for elements of four bfloat16, for eight rows, with k a multiple of
// four.
func (r neonRoutine) interleaveFours() {
	r.head("interleave")
	r.label("turn")
	for i := range 4 {
		r.p("FMOVQ (R1), F%d; ADD R2, R1", i)
	}
	for i := range 2 {
		r.p("VZIP1 V%[1]d.H8, V%[2]d.H8, V%[3]d.H8; VZIP2 V%[1]d.H8, V%[2]d.H8, V%[4]d.H8", 2+i, i, 4+i, 6+i)
	}
	for i := 4; i < 8; i += 2 {
		r.p("VZIP1 V%[1]d.H8, V%[2]d.H8, V%[3]d.H8; VZIP2 V%[1]d.H8, V%[2]d.H8, V%[4]d.H8", i+1, i, i+4, i+5)
	}
	r.p("FSTPQ (F8, F9), 0(R0); FSTPQ (F10, F11), 32(R0); ADD R5<<1, R0")
	r.p("SUBS $2, R4; BNE turn")
	r.p("RET")
}
