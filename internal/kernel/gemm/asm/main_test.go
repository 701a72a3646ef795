package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommittedAssemblyIsGenerated(t *testing.T) {
	for _, target := range targets {
		committed, err := os.ReadFile("../" + target.file())
		require.NoError(t, err)
		require.Equal(t, string(target.source()), string(committed), "run go generate in internal/kernel/gemm")
	}
	committed, err := os.ReadFile("../" + amx.file())
	require.NoError(t, err)
	require.Equal(t, string(amxSource()), string(committed), "run go generate in internal/kernel/gemm")
	committed, err = os.ReadFile("../../../peak/" + peakFile)
	require.NoError(t, err)
	require.Equal(t, string(peakSource()), string(committed), "run go generate in internal/peak")
}

// disassemble returns the instruction that [evex] encoded as text, by the layout of the prefix.
func disassemble(t *testing.T, text string) string {
	var long, word uint32
	_, err := fmt.Sscanf(text, "LONG $0x%x; WORD $0x%x", &long, &word)
	require.NoError(t, err)
	c := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32(nil, long), uint16(word))
	require.Equal(t, []byte{0x62, 0x02, 0x06, 0x40}, []byte{c[0], c[1] & 0x0f, c[2] & 0x86, c[3] & 0xf7}, "512.F2 or F3.0F38.W0 without a mask")
	require.Equal(t, byte(3), c[5]>>6, "operands are registers")
	reg := c[5]>>3&7 | ^c[1]>>7&1<<3 | ^c[1]>>4&1<<4
	rm := c[5]&7 | ^c[1]>>5&1<<3 | ^c[1]>>6&1<<4
	vvvv := ^c[2]>>3&15 | ^c[3]>>3&1<<4
	switch c[4] {
	case 0x52:
		require.Zero(t, c[2]&1, "F3")
		return fmt.Sprintf("VDPBF16PS Z%d, Z%d, Z%d", rm, vvvv, reg)
	case 0x72:
		if c[2]&1 == 1 { // F2
			return fmt.Sprintf("VCVTNE2PS2BF16 Z%d, Z%d, Z%d", rm, vvvv, reg)
		}
		require.Zero(t, vvvv)
		return fmt.Sprintf("VCVTNEPS2BF16 Z%d, Y%d", rm, reg)
	}
	require.Failf(t, "unknown opcode", "%#x", c[4])
	return ""
}

// TestDisassemble takes the bytes of some instructions as GNU's assembler makes them.
func TestDisassemble(t *testing.T) {
	for text, want := range map[string]string{
		"LONG $0x486ef262; WORD $0xcb52": "VDPBF16PS Z3, Z2, Z1",
		"LONG $0x400e9262; WORD $0xc452": "VDPBF16PS Z28, Z30, Z0",
		"LONG $0x40060262; WORD $0xdd52": "VDPBF16PS Z29, Z31, Z27",
		"LONG $0x40765262; WORD $0xe152": "VDPBF16PS Z9, Z17, Z12",
		"LONG $0x487ef262; WORD $0xc072": "VCVTNEPS2BF16 Z0, Y0",
		"LONG $0x487e1262; WORD $0xdd72": "VCVTNEPS2BF16 Z29, Y11",
		"LONG $0x487ee262; WORD $0xce72": "VCVTNEPS2BF16 Z6, Y17",
		"LONG $0x4067a262; WORD $0xe272": "VCVTNE2PS2BF16 Z18, Z19, Z20",
	} {
		require.Equal(t, want, disassemble(t, text))
	}
	for code, want := range map[string]string{
		"c4e2784903":           "LDTILECFG 0(BX)",
		"c4e27849c0":           "TILERELEASE",
		"c4e27b49d8":           "TILEZERO TMM3",
		"c4a27b4b240e":         "TILELOADD 0(SI)(R9*1), TMM4",
		"c4a2794b7c1b40":       "TILELOADDT1 64(BX)(R11*1), TMM7",
		"c482794b7c1b40":       "TILELOADDT1 64(R11)(R11*1), TMM7",
		"c4827a4b941c00080000": "TILESTORED TMM2, 2048(R12)(R11*1)",
		"c4e24a5cd5":           "TDPBF16PS TMM6, TMM5, TMM2",
		"0f0d8fc0000000":       "PREFETCHW 192(DI)",
		"0f0d4f40":             "PREFETCHW 64(DI)",
	} {
		c, err := hex.DecodeString(code)
		require.NoError(t, err)
		require.Equal(t, want, disassembleBytes(t, c))
	}
}

// disassembleBytes returns the instruction of tiles, or of fetching, that c is.
func disassembleBytes(t *testing.T, c []byte) string {
	names := []string{"AX", "CX", "DX", "BX", "SP", "BP", "SI", "DI", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15"}
	displacement := func(mod byte, c []byte) int32 {
		switch {
		case mod == 1 && len(c) == 1:
			return int32(int8(c[0]))
		case mod == 2 && len(c) == 4:
			return int32(binary.LittleEndian.Uint32(c))
		}
		require.True(t, mod == 0 && len(c) == 0, "%#x", c)
		return 0
	}
	if c[0] == 0x0f {
		require.Equal(t, byte(0x0d), c[1])
		require.Equal(t, byte(1), c[2]>>3&7)
		return fmt.Sprintf("PREFETCHW %d(%s)", displacement(c[2]>>6, c[3:]), names[c[2]&7])
	}
	require.Equal(t, []byte{0xc4, 0x82, 0}, []byte{c[0], c[1] & 0x9f, c[2] & 0x84}, "128.0F38.W0")
	pp, opcode, mod, reg, rm, vvvv := c[2]&3, c[3], c[4]>>6, c[4]>>3&7, c[4]&7, ^c[2]>>3&15
	if mod == 3 {
		require.Len(t, c, 5)
		switch [2]byte{pp, opcode} {
		case [2]byte{0, 0x49}:
			return "TILERELEASE"
		case [2]byte{3, 0x49}:
			return fmt.Sprintf("TILEZERO TMM%d", reg)
		case [2]byte{2, 0x5c}:
			return fmt.Sprintf("TDPBF16PS TMM%d, TMM%d, TMM%d", vvvv, rm, reg)
		}
		require.Failf(t, "unknown instruction", "%#x", c)
	}
	require.Zero(t, vvvv)
	base, index, rest := rm|^c[1]>>5&1<<3, byte(4), c[5:]
	if rm == 4 {
		base, index, rest = c[5]&7|^c[1]>>5&1<<3, c[5]>>3&7|^c[1]>>6&1<<3, c[6:]
		require.Zero(t, c[5]>>6, "not scaled")
	}
	at := fmt.Sprintf("%d(%s)", displacement(mod, rest), names[base])
	if index != 4 {
		at += fmt.Sprintf("(%s*1)", names[index])
	}
	switch [2]byte{pp, opcode} {
	case [2]byte{0, 0x49}:
		return "LDTILECFG " + at
	case [2]byte{3, 0x4b}:
		return fmt.Sprintf("TILELOADD %s, TMM%d", at, reg)
	case [2]byte{1, 0x4b}:
		return fmt.Sprintf("TILELOADDT1 %s, TMM%d", at, reg)
	case [2]byte{2, 0x4b}:
		return fmt.Sprintf("TILESTORED TMM%d, %s", reg, at)
	}
	require.Failf(t, "unknown instruction", "%#x", c)
	return ""
}

// TestBytesAreWhatTheySay disassembles every instruction that stands in the assembly as bytes.
func TestBytesAreWhatTheySay(t *testing.T) {
	words := regexp.MustCompile(`(LONG \S+; WORD \S+) /\* (.*?) \*/`)
	single := regexp.MustCompile(`((?:BYTE \$0x[0-9a-f]{2}(?:; | ))+)/\* (.*?) \*/`)
	check := func(source []byte, some bool) {
		all := words.FindAllSubmatch(source, -1)
		require.Len(t, all, bytes.Count(source, []byte("LONG")))
		require.Equal(t, some, len(all) > 0)
		for _, e := range all {
			require.Equal(t, string(e[2]), disassemble(t, string(e[1])))
		}
		count := 0
		for _, e := range single.FindAllSubmatch(source, -1) {
			digits := strings.NewReplacer("BYTE $0x", "", ";", "", " ", "").Replace(string(e[1]))
			c, err := hex.DecodeString(digits)
			require.NoError(t, err)
			require.Equal(t, string(e[2]), disassembleBytes(t, c))
			count += len(c)
		}
		require.Equal(t, bytes.Count(source, []byte("BYTE")), count)
	}
	check(amxSource(), true)
	for _, target := range targets {
		check(target.source(), target.dots && !target.neon)
	}
	check(peakSource(), true)
}
