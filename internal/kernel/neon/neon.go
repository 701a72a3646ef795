// Package neon encodes vector instructions of arm64 for the generators of assembly, since Go's
// assembler knows few of them.
package neon

import (
	"fmt"
	"strings"
)

// form is an instruction with all registers 0, and its operands in GNU syntax: T is the arrangement
// of the vectors, 4s or 2d, and E its element. Registers are the destination in bits 0 to 4, the
// first source in bits 5 to 9 and the second in bits 16 to 20. The distance of a shift, subtracted
// from 64, is also in bits 16 to 20.
type form struct {
	word     uint32
	operands string
}

const (
	two   = "v%d.T, v%d.T"
	three = "v%d.T, v%d.T, v%d.T"
	shift = "v%d.T, v%d.T, #%d"
)

var forms = map[string]form{
	"fadd":  {0x4e20d400, three},
	"fsub":  {0x4ea0d400, three},
	"fmul":  {0x6e20dc00, three},
	"fdiv":  {0x6e20fc00, three},
	"fmax":  {0x4e20f400, three},
	"fmin":  {0x4ea0f400, three},
	"fmla":  {0x4e20cc00, three},
	"fmls":  {0x4ea0cc00, three},
	"fcmeq": {0x4e20e400, three},
	"fcmge": {0x6e20e400, three},
	"fcmgt": {0x6ea0e400, three},

	"fneg":   {0x6ea0f800, two},
	"fsqrt":  {0x6ea1f800, two},
	"frintn": {0x4e218800, two},
	"fcvtns": {0x4e21a800, two},
	"fcvtl":  {0x0e617800, "v%d.2d, v%d.2s"},
	"fcvtl2": {0x4e617800, "v%d.2d, v%d.4s"},

	"sshr": {0x4f000400, shift},
	"mul":  {0x4ea09c00, three},
	"cmhs": {0x6ea03c00, three},
	"bic":  {0x4e601c00, "v%d.16b, v%d.16b, v%d.16b"},

	"fmla element": {0x4f801000, "v%d.T, v%d.T, v%d.E[0]"},
	"fmul element": {0x4f809000, "v%d.T, v%d.T, v%d.E[0]"},
	"bfmmla":       {0x6e40ec00, "v%d.4s, v%d.8h, v%d.8h"},
	"shll":         {0x2e613800, "v%d.4s, v%d.4h, #16"},
}

// Op returns an instruction as a word for Go's assembler, with its GNU syntax as a comment. Its
// vectors have elements of 32 bits, or of bits for floating-point instructions. Registers, and the
// distance of a shift, are in the order of that text, the destination first. A name ends in "
// element" if the last operand is the first element of a register.
func Op(name string, bits int, registers ...int) string {
	f, ok := forms[name]
	if !ok || len(registers) != strings.Count(f.operands, "%d") {
		panic(fmt.Sprintf("neon: no instruction %s of %d registers", name, len(registers)))
	}
	word, arrangement, args := f.word, "4s", []any{}
	if bits == 64 {
		word |= 1 << 22
		arrangement = "2d"
	}
	for i, r := range registers {
		args = append(args, r)
		if i == 2 && f.operands == shift {
			r = 64 - r
		}
		word |= uint32(r) << []int{0, 5, 16}[i]
	}
	mnemonic, _, _ := strings.Cut(name, " ")
	operands := strings.NewReplacer("T", arrangement, "E", arrangement[1:]).Replace(f.operands)
	return fmt.Sprintf("WORD $%#08x /* %s %s */", word, mnemonic, fmt.Sprintf(operands, args...))
}
