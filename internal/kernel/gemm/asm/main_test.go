package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommittedAssemblyIsGenerated(t *testing.T) {
	for _, target := range targets {
		committed, err := os.ReadFile("../" + target.file())
		require.NoError(t, err)
		require.Equal(t, string(target.source()), string(committed), "run go generate in internal/kernel/gemm")
	}
	committed, err := os.ReadFile("../../../peak/" + peakFile)
	require.NoError(t, err)
	require.Equal(t, string(peakSource()), string(committed), "run go generate in internal/peak")
}

// disassemble returns the instruction that [evex] encoded as text, by the layout of the prefix.
func disassemble(t *testing.T, text string) string {
	var long, word uint32
	_, err := fmt.Sscanf(text, "LONG $0x%x; WORD $0x%x", &long, &word)
	require.NoError(t, err)
	c := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint32(nil, long), uint16(word))
	require.Equal(t, []byte{0x62, 0x02, 0x06, 0x40}, []byte{c[0], c[1] & 0x0f, c[2] & 0x87, c[3] & 0xf7}, "512.F3.0F38.W0 without a mask")
	require.Equal(t, byte(3), c[5]>>6, "operands are registers")
	reg := c[5]>>3&7 | ^c[1]>>7&1<<3 | ^c[1]>>4&1<<4
	rm := c[5]&7 | ^c[1]>>5&1<<3 | ^c[1]>>6&1<<4
	vvvv := ^c[2]>>3&15 | ^c[3]>>3&1<<4
	switch c[4] {
	case 0x52:
		return fmt.Sprintf("VDPBF16PS Z%d, Z%d, Z%d", rm, vvvv, reg)
	case 0x72:
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
	} {
		require.Equal(t, want, disassemble(t, text))
	}
}

// TestBytesAreWhatTheySay disassembles every instruction that stands in the assembly as bytes.
func TestBytesAreWhatTheySay(t *testing.T) {
	encoded := regexp.MustCompile(`(LONG \S+; WORD \S+) /\* (.*?) \*/`)
	check := func(source []byte, some bool) {
		all := encoded.FindAllSubmatch(source, -1)
		require.Len(t, all, bytes.Count(source, []byte("LONG")))
		require.Equal(t, some, len(all) > 0)
		for _, e := range all {
			require.Equal(t, string(e[2]), disassemble(t, string(e[1])))
		}
	}
	for _, target := range targets {
		check(target.source(), target.dots && !target.neon)
	}
	check(peakSource(), true)
}
