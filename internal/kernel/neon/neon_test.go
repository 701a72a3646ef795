package neon

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOp takes the words of GNU's assembler, as its disassembler prints them.
func TestOp(t *testing.T) {
	tried := map[string]bool{}
	for _, c := range []struct {
		name      string
		bits      int
		registers []int
		want      string
	}{
		{"fadd", 32, []int{1, 2, 3}, "WORD $0x4e23d441 /* fadd v1.4s, v2.4s, v3.4s */"},
		{"fadd", 64, []int{31, 17, 30}, "WORD $0x4e7ed63f /* fadd v31.2d, v17.2d, v30.2d */"},
		{"fsub", 32, []int{1, 2, 3}, "WORD $0x4ea3d441 /* fsub v1.4s, v2.4s, v3.4s */"},
		{"fsub", 64, []int{31, 17, 30}, "WORD $0x4efed63f /* fsub v31.2d, v17.2d, v30.2d */"},
		{"fmul", 32, []int{1, 2, 3}, "WORD $0x6e23dc41 /* fmul v1.4s, v2.4s, v3.4s */"},
		{"fmul", 64, []int{31, 17, 30}, "WORD $0x6e7ede3f /* fmul v31.2d, v17.2d, v30.2d */"},
		{"fdiv", 32, []int{1, 2, 3}, "WORD $0x6e23fc41 /* fdiv v1.4s, v2.4s, v3.4s */"},
		{"fdiv", 64, []int{31, 17, 30}, "WORD $0x6e7efe3f /* fdiv v31.2d, v17.2d, v30.2d */"},
		{"fmax", 32, []int{1, 2, 3}, "WORD $0x4e23f441 /* fmax v1.4s, v2.4s, v3.4s */"},
		{"fmax", 64, []int{31, 17, 30}, "WORD $0x4e7ef63f /* fmax v31.2d, v17.2d, v30.2d */"},
		{"fmin", 32, []int{1, 2, 3}, "WORD $0x4ea3f441 /* fmin v1.4s, v2.4s, v3.4s */"},
		{"fmin", 64, []int{31, 17, 30}, "WORD $0x4efef63f /* fmin v31.2d, v17.2d, v30.2d */"},
		{"fmla", 32, []int{1, 2, 3}, "WORD $0x4e23cc41 /* fmla v1.4s, v2.4s, v3.4s */"},
		{"fmla", 64, []int{31, 17, 30}, "WORD $0x4e7ece3f /* fmla v31.2d, v17.2d, v30.2d */"},
		{"fmls", 32, []int{1, 2, 3}, "WORD $0x4ea3cc41 /* fmls v1.4s, v2.4s, v3.4s */"},
		{"fmls", 64, []int{31, 17, 30}, "WORD $0x4efece3f /* fmls v31.2d, v17.2d, v30.2d */"},
		{"fcmeq", 32, []int{1, 2, 3}, "WORD $0x4e23e441 /* fcmeq v1.4s, v2.4s, v3.4s */"},
		{"fcmeq", 64, []int{31, 17, 30}, "WORD $0x4e7ee63f /* fcmeq v31.2d, v17.2d, v30.2d */"},
		{"fcmge", 32, []int{1, 2, 3}, "WORD $0x6e23e441 /* fcmge v1.4s, v2.4s, v3.4s */"},
		{"fcmge", 64, []int{31, 17, 30}, "WORD $0x6e7ee63f /* fcmge v31.2d, v17.2d, v30.2d */"},
		{"fcmgt", 32, []int{1, 2, 3}, "WORD $0x6ea3e441 /* fcmgt v1.4s, v2.4s, v3.4s */"},
		{"fcmgt", 64, []int{31, 17, 30}, "WORD $0x6efee63f /* fcmgt v31.2d, v17.2d, v30.2d */"},
		{"fneg", 32, []int{1, 2}, "WORD $0x6ea0f841 /* fneg v1.4s, v2.4s */"},
		{"fneg", 64, []int{31, 17}, "WORD $0x6ee0fa3f /* fneg v31.2d, v17.2d */"},
		{"fsqrt", 32, []int{1, 2}, "WORD $0x6ea1f841 /* fsqrt v1.4s, v2.4s */"},
		{"fsqrt", 64, []int{31, 17}, "WORD $0x6ee1fa3f /* fsqrt v31.2d, v17.2d */"},
		{"frintn", 32, []int{1, 2}, "WORD $0x4e218841 /* frintn v1.4s, v2.4s */"},
		{"frintn", 64, []int{31, 17}, "WORD $0x4e618a3f /* frintn v31.2d, v17.2d */"},
		{"fcvtns", 32, []int{1, 2}, "WORD $0x4e21a841 /* fcvtns v1.4s, v2.4s */"},
		{"fcvtl", 32, []int{1, 2}, "WORD $0x0e617841 /* fcvtl v1.2d, v2.2s */"},
		{"fcvtl2", 32, []int{1, 2}, "WORD $0x4e617841 /* fcvtl2 v1.2d, v2.4s */"},
		{"sshr", 32, []int{1, 2, 1}, "WORD $0x4f3f0441 /* sshr v1.4s, v2.4s, #1 */"},
		{"sshr", 32, []int{30, 19, 31}, "WORD $0x4f21067e /* sshr v30.4s, v19.4s, #31 */"},
		{"mul", 32, []int{1, 2, 3}, "WORD $0x4ea39c41 /* mul v1.4s, v2.4s, v3.4s */"},
		{"cmhs", 32, []int{1, 2, 3}, "WORD $0x6ea33c41 /* cmhs v1.4s, v2.4s, v3.4s */"},
		{"bic", 32, []int{1, 2, 3}, "WORD $0x4e631c41 /* bic v1.16b, v2.16b, v3.16b */"},
		{"fmla element", 32, []int{0, 24, 28}, "WORD $0x4f9c1300 /* fmla v0.4s, v24.4s, v28.s[0] */"},
		{"fmla element", 32, []int{23, 27, 31}, "WORD $0x4f9f1377 /* fmla v23.4s, v27.4s, v31.s[0] */"},
		{"fmla element", 64, []int{23, 27, 31}, "WORD $0x4fdf1377 /* fmla v23.2d, v27.2d, v31.d[0] */"},
		{"fmul element", 32, []int{23, 27, 31}, "WORD $0x4f9f9377 /* fmul v23.4s, v27.4s, v31.s[0] */"},
		{"fmul element", 64, []int{23, 27, 31}, "WORD $0x4fdf9377 /* fmul v23.2d, v27.2d, v31.d[0] */"},
		{"bfmmla", 32, []int{1, 30, 7}, "WORD $0x6e47efc1 /* bfmmla v1.4s, v30.8h, v7.8h */"},
		{"shll", 32, []int{0, 0}, "WORD $0x2e613800 /* shll v0.4s, v0.4h, #16 */"},
	} {
		require.Equal(t, c.want, Op(c.name, c.bits, c.registers...))
		tried[c.name] = true
	}
	for name := range forms {
		require.True(t, tried[name], name)
	}
	require.PanicsWithValue(t, "neon: no instruction shll of 1 registers", func() { Op("shll", 32, 1) })
}
