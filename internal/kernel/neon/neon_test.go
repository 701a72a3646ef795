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
		{"fmla element", 32, []int{0, 24, 28}, "WORD $0x4f9c1300 /* fmla v0.4s, v24.4s, v28.s[0] */"},
		{"fmla element", 32, []int{23, 27, 31}, "WORD $0x4f9f1377 /* fmla v23.4s, v27.4s, v31.s[0] */"},
		{"fmla element", 64, []int{23, 27, 31}, "WORD $0x4fdf1377 /* fmla v23.2d, v27.2d, v31.d[0] */"},
		{"fmul element", 32, []int{23, 27, 31}, "WORD $0x4f9f9377 /* fmul v23.4s, v27.4s, v31.s[0] */"},
		{"fmul element", 64, []int{23, 27, 31}, "WORD $0x4fdf9377 /* fmul v23.2d, v27.2d, v31.d[0] */"},
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
