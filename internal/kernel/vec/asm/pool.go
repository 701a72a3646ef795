package main

import "fmt"

// pools work on windows of 2 × 2 elements. The elements of a vector of windows are two vectors for
// each of their rows. A shuffle within 16 bytes separates the left elements from the right ones.
// This changes the order of the windows: dy is permuted to that order first, and storing undoes it.
func pools() []kernel {
	return []kernel{
		{name: "maxPairs", params: "y, x []T, cols, ld, rows int", only32: true, x86: true, write: func(f *function) {
			f.pairRows("y", "evens", func(masked bool) { f.maxPairs(masked) })
		}},
		{name: "maxPairsGrad", params: "dx, x, dy []T, cols, ld, rows int", only32: true, x86: true, write: func(f *function) {
			f.pairRows("dy", "halves", func(masked bool) { f.maxPairsGrad(masked) })
		}},
	}
}

// pairRows prints the loop over rows of windows, and over the vectors of each. DI is the address in
// the slice of windows, SI and DX are the addresses of the two rows of x, and R11 and R12 of the
// two rows of dx.
func (f *function) pairRows(windows, order string, body func(masked bool)) {
	f.line("MOVQ %s, DI; MOVQ %s, SI", f.param(windows), f.param("x"))
	f.line("MOVQ %s, R8; SHLQ $2, R8; LEAQ (SI)(R8*1), DX", f.param("ld"))
	if windows == "dy" {
		f.line("MOVQ %s, R11; LEAQ (R11)(R8*1), R12", f.param("dx"))
	}
	f.line("SHLQ $1, R8; MOVQ %s, R9; MOVQ %s, R10", f.param("cols"), f.param("rows"))
	f.pairMasks(order)
	f.out.WriteString("\nrow:\n")
	f.line("XORL AX, AX; MOVQ R9, CX; SUBQ $%d, CX; JLT tail", f.lanes())
	f.out.WriteString("\nblock:\n")
	body(false)
	f.line("ADDQ $%d, AX; SUBQ $%d, CX; JGE block", f.lanes(), f.lanes())
	f.out.WriteString("\ntail:\n")
	f.line("CMPQ CX, $-%d; JEQ next", f.lanes())
	body(true)
	f.out.WriteString("\nnext:\n")
	f.line("ADDQ R8, SI; ADDQ R8, DX; ADDQ R8, R11; ADDQ R8, R12; LEAQ (DI)(R9*4), DI")
	f.line("DECQ R10; JNZ row")
}

// pairMasks sets the masks for the windows behind the last whole vector of a row, and for the two
// vectors of their elements, in mask registers 1 to 3 or in vectors 13 to 15. With AVX-512 vector
// 31 is the order of windows, and 30 has all bits set.
func (f *function) pairMasks(order string) {
	f.line("MOVQ R9, CX; ANDQ $%d, CX", f.lanes()-1)
	if f.isa.wide {
		f.line("MOVQ $-1, BX; BZHIQ CX, BX, AX; KMOVW AX, K1")
		f.line("SHLQ $1, CX; BZHIQ CX, BX, AX; KMOVW AX, K2; SHRQ $%d, AX; KMOVW AX, K3", f.lanes())
		f.line("VMOVUPS %s, Z31; VPTERNLOGD $0xff, Z30, Z30, Z30", f.consts.order(order))
		return
	}
	f.line("VMOVQ CX, X15; VPBROADCASTD X15, Y15; VPCMPGTD %s, Y15, Y13", f.consts.iota(32, 0))
	f.line("VPADDD Y15, Y15, Y15; VPCMPGTD %s, Y15, Y14; VPCMPGTD %s, Y15, Y15", f.consts.iota(32, 0), f.consts.iota(32, f.lanes()))
}

// move prints a load or a store, under one of the masks of pairMasks.
func (f *function) move(masked bool, mask int, from, to string, load bool) {
	switch {
	case !masked:
		f.line("VMOVUPS %s, %s", from, to)
	case !f.isa.wide:
		f.line("VMASKMOVPS %s, Y%d, %s", from, 12+mask, to)
	case load:
		f.line("VMOVUPS.Z %s, K%d, %s", from, mask, to)
	default:
		f.line("VMOVUPS %s, K%d, %s", from, mask, to)
	}
}

func (f *function) reg(i int) string { return fmt.Sprint(f.isa.letter, i) }

// loadPairs loads two vectors of each row of x into vectors 0 to 3.
func (f *function) loadPairs(masked bool) {
	for i, row := range []string{"SI", "DX"} {
		f.move(masked, 2, fmt.Sprintf("(%s)(AX*8)", row), f.reg(2*i), true)
		f.move(masked, 3, fmt.Sprintf("%d(%s)(AX*8)", f.isa.bytes, row), f.reg(2*i+1), true)
	}
}

// split sets vector left to the elements at even positions of vectors from and from+1, and the next
// vector to the elements at odd positions.
func (f *function) split(from, left int) {
	f.line("VSHUFPS $0x88, %s, %s, %s", f.reg(from+1), f.reg(from), f.reg(left))
	f.line("VSHUFPS $0xDD, %s, %s, %s", f.reg(from+1), f.reg(from), f.reg(left+1))
}

// permute permutes the windows of vector i to the order given to pairRows.
func (f *function) permute(i int) {
	if f.isa.wide {
		f.line("VPERMPD Z%[1]d, Z31, Z%[1]d", i)
	} else {
		f.line("VPERMPD $0xD8, Y%[1]d, Y%[1]d", i)
	}
}

// larger sets vector a to the larger elements of a and b as in Go, using vectors 8 to 10. The
// instruction returns its second operand for a NaN and for two zeros.
func (f *function) larger(a, b int) {
	f.line("VMAXPS %s, %s, %s; VMAXPS %s, %s, %s", f.reg(a), f.reg(b), f.reg(8), f.reg(b), f.reg(a), f.reg(9))
	if f.isa.wide {
		f.line("VCMPPS $3, Z%d, Z%d, K4; VANDPS Z8, Z9, Z%d; VMOVAPS Z30, K4, Z%d", a, b, a, a)
	} else {
		f.line("VCMPPS $3, Y%d, Y%d, Y10; VANDPS Y8, Y9, Y%d; VORPS Y10, Y%d, Y%d", a, b, a, a, a)
	}
}

func (f *function) maxPairs(masked bool) {
	f.loadPairs(masked)
	f.larger(0, 2)
	f.larger(1, 3)
	f.split(0, 4)
	f.larger(4, 5)
	f.permute(4)
	f.move(masked, 1, f.reg(4), "(DI)(AX*4)", false)
}

// maxPairsGrad keeps the largest element so far in vector 4. Mask register 3+i, or vector 8+i,
// marks the elements where the i-th of the next three is larger, or is the first NaN.
func (f *function) maxPairsGrad(masked bool) {
	f.loadPairs(masked)
	f.split(0, 4)
	f.split(2, 6)
	f.move(masked, 1, "(DI)(AX*4)", f.reg(8), true)
	f.permute(8)
	for i := 1; i <= 3; i++ {
		next, largest := f.reg(4+i), f.reg(4)
		if f.isa.wide {
			k := 3 + i
			f.line("VCMPPS $6, %[1]s, %[2]s, K%[3]d; VCMPPS $7, %[1]s, %[1]s, K%[3]d, K%[3]d; VMOVAPS %[2]s, K%[3]d, %[1]s", largest, next, k)
			continue
		}
		m, t := f.reg(8+i), f.reg(9+i)
		f.line("VCMPPS $6, %s, %s, %s; VCMPPS $7, %s, %s, %s; VANDPS %s, %s, %s", largest, next, m, largest, largest, t, t, m, m)
		f.line("VBLENDVPS %s, %s, %s, %s", m, next, largest, largest)
	}
	for i := 3; i >= 1; i-- { // the last larger one takes dy
		if f.isa.wide {
			f.line("VMOVAPS.Z Z8, K%d, Z%d; KNOTW K%d, K7; VMOVAPS.Z Z8, K7, Z8", 3+i, i, 3+i)
		} else {
			f.line("VANDPS Y%[1]d, Y8, Y%[2]d; VANDNPS Y8, Y%[1]d, Y8", 8+i, i)
		}
	}
	for i, row := range []string{"R11", "R12"} {
		left, right := f.reg([]int{8, 2}[i]), f.reg([]int{1, 3}[i])
		f.line("VUNPCKLPS %s, %s, %s; VUNPCKHPS %s, %s, %s", right, left, f.reg(4), right, left, f.reg(5))
		f.move(masked, 2, f.reg(4), fmt.Sprintf("(%s)(AX*8)", row), false)
		f.move(masked, 3, f.reg(5), fmt.Sprintf("%d(%s)(AX*8)", f.isa.bytes, row), false)
	}
}
