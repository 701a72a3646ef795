package main

import "fmt"

// head prints the entry of a packing routine: DI dst, SI src, BX ld, CX k, DX width, strides in
// bytes, R11 rows. For pairs CX is their number, and the vector split is their upper halves.
func (r routine) head(kind string) {
	params, log := fmt.Sprintf("dst, src []float%d", 8*r.size), r.log
	if r.pairs {
		params, log = "dst []float32, src []half.BFloat16", 1
	}
	r.text(kind, params+", ld, rows, k, width int", 0, 80)
	r.p("MOVQ dst_base+0(FP), DI")
	r.p("MOVQ src_base+24(FP), SI")
	r.p("MOVQ ld+48(FP), BX; SHLQ $%d, BX", log)
	r.p("MOVQ rows+56(FP), R11")
	r.p("MOVQ k+64(FP), CX")
	r.p("MOVQ width+72(FP), DX; SHLQ $%d, DX", r.log)
	if r.pairs {
		r.p("SHRQ $1, CX")
	}
}

// split is the vector with ones in the upper halves of 32 bits.
const split = 15

// ones prints the code that sets split, if pairs are split.
func (r routine) ones() {
	switch {
	case !r.pairs || r.dots:
		return
	case r.masks:
		r.p("VPTERNLOGD $0xff, %[1]s, %[1]s, %[1]s", r.v(split))
	default:
		r.p("VPCMPEQD %[1]s, %[1]s, %[1]s", r.v(split))
	}
	r.p("VPSLLD $16, %[1]s, %[1]s", r.v(split))
}

// packed prints the store of a packed vector. A split pair becomes two: the second element, which
// the dot product adds first, and the first.
func (r routine) packed(i int) {
	if r.pairs && !r.dots {
		r.p("VANDPS %s, %s, %s; VMOVUPS %s, (DI); ADDQ DX, DI", r.v(i), r.v(split), r.v(14), r.v(14))
		r.p("VPSLLD $16, %[1]s, %[1]s", r.v(i))
	}
	r.p("VMOVUP%s %s, (DI); ADDQ DX, DI", r.letter, r.v(i))
}

// transpose prints dst[p*width+r] = src[r*ld+p] for r < rows <= lanes, k a multiple of the g
// elements, or pairs, in 16 bytes.
//
// An iteration takes g columns. Row r is loaded into 16-byte lane r/g of register r%g, directly
// from memory: the load does the part of the transposition that crosses lanes, which is slow with
// shuffles. A g×g transpose inside every lane remains. Missing rows leave zeros.
func (r routine) transpose() {
	g := 16 / r.size
	r.head("transpose")
	r.ones()
	r.p("LEAQ (BX)(BX*2), R12")
	for i := 4; i < r.lanes(); i += 4 {
		r.p("LEAQ (%s)(BX*4), %s", base(i-4), base(i))
	}
	r.label("turn")
	for q := 1; q < g; q++ {
		r.p("VXORPS X%[1]d, X%[1]d, X%[1]d", q)
	}
	for i := range r.lanes() {
		if i > 0 {
			r.p("CMPQ R11, $%d; JEQ shuffle", i)
		}
		r.loadLane(i, g)
	}
	r.label("shuffle")
	if r.size == 4 {
		r.shuffle4()
	} else {
		r.p("VUNPCKLPD %s, %s, %s; VUNPCKHPD %s, %s, %s", r.v(1), r.v(0), r.v(2), r.v(1), r.v(0), r.v(3))
		r.p("VMOVUPD %s, (DI); VMOVUPD %s, (DI)(DX*1)", r.v(2), r.v(3))
		r.p("LEAQ (DI)(DX*2), DI")
	}
	for i := 0; i < r.lanes(); i += 4 {
		r.p("ADDQ $16, %s", base(i))
	}
	r.p("SUBQ $%d, CX; JNZ turn", g)
	r.p("VZEROUPPER")
	r.p("RET")
}

// base names the register that holds the address of row i, a multiple of 4.
func base(i int) string { return []string{"SI", "R8", "R9", "R10"}[i/4] }

// loadLane prints the load of 16 bytes of row i.
func (r routine) loadLane(i, g int) {
	at := "(" + base(i) + ")" + []string{"", "(BX*1)", "(BX*2)", "(R12*1)"}[i%4]
	q, lane := i%g, i/g
	switch {
	case lane == 0:
		r.p("VMOVUPS %s, X%d", at, q)
	case r.bytes == 64:
		r.p("VINSERTF32X4 $%d, %s, Z%d, Z%d", lane, at, q, q)
	default:
		r.p("VINSERTF128 $%d, %s, Y%d, Y%d", lane, at, q, q)
	}
}

// shuffle4 prints the 4×4 transpose of registers 0 to 3 inside 16-byte lanes, and its four stores.
func (r routine) shuffle4() {
	for i := range 2 {
		lo, hi := r.v(2*i), r.v(2*i+1)
		r.p("VUNPCKLPS %s, %s, %s; VUNPCKHPS %s, %s, %s", hi, lo, r.v(4+2*i), hi, lo, r.v(5+2*i))
	}
	for i := range 2 {
		x, y := r.v(4+i), r.v(6+i)
		r.p("VUNPCKLPD %s, %s, %s; VUNPCKHPD %s, %s, %s", y, x, r.v(8+2*i), y, x, r.v(9+2*i))
	}
	for p := range 4 {
		r.packed(8 + p)
	}
}

// interleave prints dst[p*width+r] = src[p*ld+r] for r < rows <= lanes: a masked load and a whole
// store for every p. The rows of src are far apart, so hardware does not prefetch them. For
// bfloat16 p counts pairs of rows, and without mask registers lanes elements of each row are read.
// If pairs are kept together, there may be twice as many rows, up to the bfloat16 elements of a
// cache line.
func (r routine) interleave() {
	r.head("interleave")
	switch {
	case r.masks:
		r.p("XCHGQ CX, R11; MOVQ $1, R8; SHLQ CX, R8; DECQ R8; KMOVW R8, K1; XCHGQ CX, R11")
	case !r.pairs:
		r.mask("R11", "Y1", "Y2")
	}
	r.ones()
	if r.dots {
		r.p("CMPQ R11, $%d; JLE copy; SHRQ $%d, R8; KMOVW R8, K2", r.lanes(), r.lanes())
		r.label("wide")
		r.printPairs(2)
		r.p("VMOVUPS %s, (DI); VMOVUPS %s, %d(DI); ADDQ DX, DI", r.v(0), r.v(2), r.bytes)
		r.p("DECQ CX; JNZ wide")
		r.p("VZEROUPPER")
		r.p("RET")
	}
	r.label("copy")
	switch {
	case r.pairs:
		r.printPairs(1)
	case r.masks:
		r.p("VMOVUP%s.Z (SI), K1, Z0; PREFETCHT0 (SI)(BX*8); ADDQ BX, SI", r.letter)
	default:
		r.p("VMASKMOVP%s (SI), Y1, Y0; PREFETCHT0 (SI)(BX*8); ADDQ BX, SI", r.letter)
	}
	r.packed(0)
	r.p("DECQ CX; JNZ copy")
	r.p("VZEROUPPER")
	r.p("RET")
}

// printPairs prints the pairs of two rows, as one or two vectors: 0 and 2.
func (r routine) printPairs(vectors int) {
	for i := range 2 {
		for v := range vectors {
			load, at := "VPMOVZXWD (SI), ", v*r.bytes/2
			if r.masks {
				load = fmt.Sprintf("VPMOVZXWD.Z %d(SI), K%d, ", at, v+1)
			}
			r.p("%s%s", load, r.v(2*v+i))
		}
		r.p("PREFETCHT0 (SI)(BX*8); ADDQ BX, SI")
	}
	for v := range vectors {
		r.p("VPSLLD $16, %[1]s, %[1]s; VORPS %[1]s, %[2]s, %[2]s", r.v(2*v+1), r.v(2*v))
	}
}
