package main

import (
	"fmt"
	"slices"
	"strings"
)

// constants collects the read-only data of a file.
type constants struct {
	isa    isa
	words  []uint32
	tables map[string]string // by name
}

func newConstants(isa isa) *constants { return &constants{isa: isa, tables: map[string]string{}} }

// word returns the address of a 32-bit constant. For AVX2 and NEON, which have no broadcasting
// operands, it is a register full of the constant.
func (c *constants) word(bits uint32) string {
	if !slices.Contains(c.words, bits) {
		c.words = append(c.words, bits)
	}
	if c.isa.neon {
		return fmt.Sprintf("%d(R11)", 16*slices.Index(c.words, bits))
	}
	return fmt.Sprintf("k%08x<>(SB)", bits)
}

// iota returns the address of the integers from, from+1, … with the given number of bits.
func (c *constants) iota(bits, from int) string {
	name := fmt.Sprintf("iota%d", bits)
	c.tables[name] = ""
	const n = 128
	var s strings.Builder
	for i := range n * 32 / bits {
		fmt.Fprintf(&s, "DATA %s<>+%d(SB)/%d, $%d\n", name, i*bits/8, bits/8, i)
	}
	fmt.Fprintf(&s, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", name, n*4)
	c.tables[name] = s.String()
	return fmt.Sprintf("%s<>+%d(SB)", name, from*bits/8)
}

// order returns the address of a permutation of eight pairs of elements: "evens" puts the elements
// at even positions first, and "halves" is its inverse.
func (c *constants) order(name string) string {
	list := map[string][8]int{"evens": {0, 2, 4, 6, 1, 3, 5, 7}, "halves": {0, 4, 1, 5, 2, 6, 3, 7}}[name]
	var s strings.Builder
	for i, n := range list {
		fmt.Fprintf(&s, "DATA %s<>+%d(SB)/8, $%d\n", name, 8*i, n)
	}
	fmt.Fprintf(&s, "GLOBL %s<>(SB), RODATA|NOPTR, $64\n", name)
	c.tables[name] = s.String()
	return name + "<>(SB)"
}

func (c *constants) text() string {
	var s strings.Builder
	if c.isa.neon {
		for i, w := range c.words {
			fmt.Fprintf(&s, "DATA constants<>+%d(SB)/8, $0x%08x%08x\nDATA constants<>+%d(SB)/8, $0x%08x%08x\n", 16*i, w, w, 16*i+8, w, w)
		}
		fmt.Fprintf(&s, "GLOBL constants<>(SB), RODATA|NOPTR, $%d\n%s", 16*len(c.words), c.tables["iota32"])
		return s.String()
	}
	slices.Sort(c.words)
	for _, w := range c.words {
		if c.isa.wide {
			fmt.Fprintf(&s, "DATA k%08x<>(SB)/4, $0x%08x\nGLOBL k%08x<>(SB), RODATA|NOPTR, $4\n", w, w, w)
			continue
		}
		for i := 0; i < c.isa.bytes; i += 8 {
			fmt.Fprintf(&s, "DATA k%08x<>+%d(SB)/8, $0x%08x%08x\n", w, i, w, w)
		}
		fmt.Fprintf(&s, "GLOBL k%08x<>(SB), RODATA|NOPTR, $%d\n", w, c.isa.bytes)
	}
	for _, name := range []string{"iota32", "iota64", "evens", "halves"} {
		s.WriteString(c.tables[name])
	}
	return s.String()
}
