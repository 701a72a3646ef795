// Package neon encodes vector instructions of arm64 for the generators of assembly, since Go's
// assembler knows few of them.
package neon

import (
	"fmt"
	"strings"
)

// form is an instruction with all registers 0, and its operands as GNU's assembler writes them: T is
// the arrangement of the vectors, 4s or 2d, and E its element. Registers are the destination in bits
// 0 to 4, the first source in bits 5 to 9 and the second in bits 16 to 20.
type form struct {
	word     uint32
	operands string
}

var forms = map[string]form{
	"fmla element": {0x4f801000, "v%d.T, v%d.T, v%d.E[0]"},
	"fmul element": {0x4f809000, "v%d.T, v%d.T, v%d.E[0]"},
	"shll":         {0x2e613800, "v%d.4s, v%d.4h, #16"},
}

// Op returns an instruction as the word that Go's assembler takes, with what GNU's assembler calls
// it as a comment. Its vectors are of float32 or, with bits 64, of float64; registers are in the
// order of that text, the destination first. A name ends in " element" if the last operand is the
// first element of a register.
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
		word |= uint32(r) << []int{0, 5, 16}[i]
		args = append(args, r)
	}
	mnemonic, _, _ := strings.Cut(name, " ")
	operands := strings.NewReplacer("T", arrangement, "E", arrangement[1:]).Replace(f.operands)
	return fmt.Sprintf("WORD $%#08x /* %s %s */", word, mnemonic, fmt.Sprintf(operands, args...))
}
