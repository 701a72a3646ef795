package main

import (
	"bytes"
	"fmt"
	"strings"
)

// amx is the target for the tiles of AMX. They multiply only bfloat16. The code around them is
// AVX-512.
var amx = target{name: "amx", reg: "Z", bytes: 64, masks: true, dots: true}

// amxSource returns the file with the register kernel of AMX.
func amxSource() []byte {
	out := new(bytes.Buffer)
	fmt.Fprint(out, amx.header())
	printLayout(out)
	printConfigs(out)
	r := routine{amx, f32, true, out}
	fmt.Fprint(out, "\nTEXT dot<>(SB), NOSPLIT, $48-8\n")
	tiles{r}.mul()
	r.flush()
	return out.Bytes()
}

// printConfigs defines the data for LDTILECFG, for 1 to 32 rows of A: the tiles 0 to 3 are C, two
// by two, 4 and 5 are A, and 6 and 7 are B. The rows of A beyond 16 are in the lower tiles, which
// have at least one row.
func printConfigs(out *bytes.Buffer) {
	for rows := 1; rows <= 32; rows++ {
		var config [64]byte
		config[0] = 1 // palette
		upper, lower := min(rows, 16), max(rows-16, 1)
		for t, n := range []int{upper, upper, lower, lower, upper, lower, 16, 16} {
			config[16+2*t], config[48+t] = 64, byte(n)
		}
		for i := 0; i < 64; i += 8 {
			fmt.Fprintf(out, "DATA configs<>+%d(SB)/8, $0x%x\n", 64*(rows-1)+i, reversed(config[i:i+8]))
		}
	}
	fmt.Fprint(out, "GLOBL configs<>(SB), RODATA|NOPTR, $2048\n")
}

// reversed returns bytes from the last to the first, in the order of written numbers.
func reversed(b []byte) []byte {
	r := make([]byte, len(b))
	for i := range b {
		r[len(b)-1-i] = b[i]
	}
	return r
}

// tiles prints the register kernel of AMX.
type tiles struct{ routine }

// mul prints the strip of tiles: 32 columns of C at a time, as four tiles of 16×16 that stay in
// registers while k runs. A step of 32 along k is four loads and four TDPBF16PS, which take 64
// cycles. B is loaded with TILELOADDT1: it does not evict the strip of A from L1.
//
// The tiles store their sums in the scratch. Vector instructions bring these sums to C while the
// tiles compute the next 32 columns: four rows in a step. Its general registers:
//
//	throughout          AX tile   R9 aline   R11 row of B   R13 ldout   R14 aheadLine
//	in the loop on k    CX steps left   BX B   SI, R8 upper and lower rows of A   R10 ahead
//	columns summed      DX rows left   R12 scratch   DI out   R15 in
//
// The stack frame holds the distance of the lower rows of A, the columns left, ldin, the address to
// fetch from, and the addresses of the next columns of C and of B.
func (t tiles) mul() {
	const lower, left, ldin, ahead, to, panel = "0(SP)", "8(SP)", "16(SP)", "24(SP)", "32(SP)", "40(SP)"
	t.p("MOVQ t+0(FP), AX")
	t.p("MOVQ tile_rows(AX), DX; LEAQ configs<>-64(SB), BX; MOVQ DX, CX; SHLQ $6, CX; ADDQ CX, BX")
	t.p("%s", ldtilecfg("BX"))
	t.p("MOVQ tile_aline(AX), R9; SHLQ $2, R9")
	t.p("MOVQ R9, SI; SHLQ $4, SI; XORQ CX, CX; CMPQ DX, $16; CMOVQLE CX, SI; MOVQ SI, %s", lower)
	t.p("MOVQ tile_ahead(AX), R10; MOVQ R10, %s; MOVQ tile_aheadLine(AX), R14", ahead)
	t.p("MOVQ tile_cols(AX), CX; MOVQ CX, %s", left)
	t.p("MOVQ tile_ldin(AX), CX; SHLQ $2, CX; MOVQ CX, %s", ldin)
	t.p("MOVQ tile_b(AX), CX; MOVQ CX, %s; MOVQ $128, R11; XORQ DX, DX", panel)
	t.p("VBROADCASTSS tile_alphaF32(AX), Z30; VBROADCASTSS tile_betaF32(AX), Z31")
	t.p("MOVQ tile_rounded(AX), BX; MOVQ tile_ldrounded(AX), R13; SHLQ $1, R13; MOVBLZX tile_read(AX), CX")
	t.p("MOVQ BX, %s; TESTQ BX, BX; JNZ rounded", to)
	t.p("MOVQ tile_out(AX), BX; MOVQ BX, %s; MOVQ tile_ldout(AX), R13; SHLQ $2, R13", to)
	t.p("TESTL CX, CX; JNZ add_panel; MOVBLZX tile_stream(AX), CX; TESTL CX, CX; JNZ stream_panel; JMP set_panel")
	t.label("rounded")
	t.p("TESTL CX, CX; JNZ roundadd_panel; JMP round_panel")
	for _, v := range []variant{
		{name: "set", tiles: t}, {name: "add", tiles: t, adds: true}, {name: "stream", tiles: t, streams: true},
		{name: "round", tiles: t, rounds: true}, {name: "roundadd", tiles: t, adds: true, rounds: true},
	} {
		v.print(lower, left, ldin, ahead, to, panel)
	}
}

// peak prints a loop of products of tiles.
func (t tiles) peak() {
	t.text("peak", "n int, x float32", 0, 12)
	t.p("MOVQ n+0(FP), CX; LEAQ configs<>+%d(SB), BX", 64*31)
	t.p("%s", ldtilecfg("BX"))
	t.label("loop")
	for c := range 4 {
		t.p("%s", tdpbf16ps(6+c%2, 4+c/2, c))
	}
	t.p("DECQ CX; JNZ loop")
	t.p("%s", tilerelease())
	t.p("RET")
}

// variant is a body of the kernel: whether C has an addend, whether it is rounded, and whether it
// is written past the caches.
type variant struct {
	name string
	tiles
	adds, rounds, streams bool
}

func (v variant) labelOf(name string) string { return v.name + "_" + name }

func (v variant) print(lower, left, ldin, ahead, to, panel string) {
	size := 4 // of an element of C
	if v.rounds {
		size = 2
	}
	v.label(v.labelOf("panel"))
	v.p("MOVQ %[1]s, BX; MOVQ tile_bpanel(AX), CX; SHLQ $2, CX; ADDQ CX, %[1]s", panel)
	for i := range 4 {
		v.p("%s", tilezero(i))
	}
	v.p("MOVQ %s, R10; MOVQ tile_a(AX), SI; MOVQ %s, R8; ADDQ SI, R8", ahead, lower)
	v.p("MOVQ tile_k(AX), CX; SHRQ $4, CX; JZ %s", v.labelOf("drain"))
	v.p("CMPQ DX, $4; JLT %s", v.labelOf("plain"))
	v.label(v.labelOf("both"))
	v.step(func() { v.row(ldin, size) })
	v.p("SUBQ $4, DX; DECQ CX; JZ %s", v.labelOf("drain"))
	v.p("CMPQ DX, $4; JGE %s", v.labelOf("both"))
	v.p("PCALIGN $32")
	v.label(v.labelOf("plain"))
	v.step(nil)
	v.p("DECQ CX; JNZ %s", v.labelOf("plain"))
	v.label(v.labelOf("drain"))
	v.p("TESTQ DX, DX; JZ %s", v.labelOf("store"))
	v.label(v.labelOf("rest"))
	v.row(ldin, size)
	v.p("DECQ DX; JNZ %s", v.labelOf("rest"))
	v.label(v.labelOf("store"))
	v.p("MOVQ tile_scratch(AX), R12")
	for i := range 4 {
		v.p("%s", tilestored(i, "R12", "R11", i/2*2048+i%2*64))
	}
	v.p("MOVQ %[1]s, DI; ADDQ $%[2]d, %[1]s", to, 32*size)
	if v.adds {
		v.p("MOVQ tile_cols(AX), R15; SUBQ %s, R15; SHLQ $2, R15; ADDQ tile_in(AX), R15", left)
	}
	v.p("MOVQ %s, SI; MOVQ $32, CX; CMPQ SI, CX; CMOVQLT SI, CX; MOVQ $1, SI; SHLQ CX, SI; DECQ SI", left)
	v.p("KMOVD SI, K3; KMOVW SI, K1; SHRQ $16, SI; KMOVW SI, K2")
	v.p("MOVQ tile_rows(AX), DX; MOVQ tile_aheadPanel(AX), SI; ADDQ SI, %s", ahead)
	v.p("SUBQ $32, %s; JG %s", left, v.labelOf("panel"))
	v.label(v.labelOf("last"))
	v.row(ldin, size)
	v.p("DECQ DX; JNZ %s", v.labelOf("last"))
	if v.streams {
		v.p("SFENCE")
	}
	v.p("%s", tilerelease())
	v.p("VZEROUPPER")
	v.p("RET")
}

// step prints the products of 32 elements of k. Between these products it calls the function
// meanwhile, four times.
func (v variant) step(meanwhile func()) {
	if meanwhile == nil {
		meanwhile = func() {}
	}
	v.p("%s", tileloaddt1("BX", "R11", 0, 6))
	v.p("%s", tileloadd("SI", "R9", 0, 4))
	meanwhile()
	v.p("%s", tdpbf16ps(6, 4, 0))
	v.p("%s", tileloaddt1("BX", "R11", 64, 7))
	meanwhile()
	v.p("%s", tdpbf16ps(7, 4, 1))
	v.p("%s", tileloadd("R8", "R9", 0, 5))
	meanwhile()
	v.p("%s", tdpbf16ps(6, 5, 2))
	meanwhile()
	v.p("%s", tdpbf16ps(7, 5, 3))
	v.p("PREFETCHT1 (R10); PREFETCHT1 (R10)(R14*1); PREFETCHT1 (R10)(R14*2)")
	v.p("ADDQ $64, SI; ADDQ $64, R8; ADDQ tile_aheadStep(AX), R10; ADDQ $2048, BX")
}

// row prints the store of a row of sums to C, and a request for the same row of the next columns,
// unless the store bypasses the caches. A line of bfloat16 has only one store, so the columns after
// the next ones are requested for L2.
func (v variant) row(ldin string, size int) {
	v.p("VMULPS (R12), Z30, Z18; VMULPS 64(R12), Z30, Z19; SUBQ $-128, R12")
	if v.adds {
		v.p("VFMADD231PS (R15), Z31, K1, Z18; VFMADD231PS 64(R15), Z31, K2, Z19; ADDQ %s, R15", ldin)
	}
	switch {
	case v.streams:
		v.p("VMOVNTPS Z18, (DI); VMOVNTPS Z19, 64(DI); ADDQ R13, DI")
		return
	case v.rounds:
		v.p("%s; VMOVDQU16 Z20, K3, (DI); PREFETCHT1 %d(DI)", vcvtne2ps2bf16(19, 18, 20), 64*size)
	default:
		v.p("VMOVUPS Z18, K1, (DI); VMOVUPS Z19, K2, 64(DI); %s", prefetchw("DI", 192))
	}
	v.p("%s; ADDQ R13, DI", prefetchw("DI", 32*size))
}

// registers are the general registers by their numbers in an instruction.
var registers = map[string]int{"AX": 0, "CX": 1, "DX": 2, "BX": 3, "SP": 4, "BP": 5, "SI": 6, "DI": 7,
	"R8": 8, "R9": 9, "R10": 10, "R11": 11, "R12": 12, "R13": 13, "R14": 14, "R15": 15}

// The field pp of VEX.
const (
	none = iota
	pp66
	ppF3
	ppF2
)

// encoded returns an instruction as bytes for Go's assembler, which does not know it.
func encoded(text string, code ...int) string {
	var list []string
	for _, b := range code {
		list = append(list, fmt.Sprintf("BYTE $0x%02x", b&0xff))
	}
	return strings.Join(list, "; ") + " /* " + text + " */"
}

// vex returns VEX.128.pp.0F38.W0 opcode /r for a tile and memory at base + index + displacement,
// see Intel's manual, volume 2, section 2.3. An empty index means none.
func vex(text string, pp, opcode, reg int, base, index string, displacement int) string {
	b, x := registers[base], registers["SP"] // SP as an index means none
	if index != "" {
		x = registers[index]
	}
	code := []int{0xc4, 1<<7 | (^x>>3&1)<<6 | (^b>>3&1)<<5 | 2, 15<<3 | pp, opcode, 2<<6 | reg<<3 | 4, x&7<<3 | b&7}
	for i := range 4 {
		code = append(code, displacement>>(8*i))
	}
	return encoded(text, code...)
}

// vexTiles returns VEX.128.pp.0F38.W0 opcode /r for the tiles in ModRM:reg, VEX.vvvv and ModRM:r/m.
func vexTiles(text string, pp, opcode, reg, vvvv, rm int) string {
	return encoded(text, 0xc4, 0xe2, (^vvvv&15)<<3|pp, opcode, 3<<6|reg<<3|rm)
}

func ldtilecfg(base string) string {
	return vex(fmt.Sprintf("LDTILECFG 0(%s)", base), none, 0x49, 0, base, "", 0)
}

func tilerelease() string { return vexTiles("TILERELEASE", none, 0x49, 0, 0, 0) }

func tilezero(t int) string {
	return vexTiles(fmt.Sprintf("TILEZERO TMM%d", t), ppF2, 0x49, t, 0, 0)
}

func tileloadd(base, index string, at, t int) string {
	return vex(fmt.Sprintf("TILELOADD %d(%s)(%s*1), TMM%d", at, base, index, t), ppF2, 0x4b, t, base, index, at)
}

func tileloaddt1(base, index string, at, t int) string {
	return vex(fmt.Sprintf("TILELOADDT1 %d(%s)(%s*1), TMM%d", at, base, index, t), pp66, 0x4b, t, base, index, at)
}

func tilestored(t int, base, index string, at int) string {
	return vex(fmt.Sprintf("TILESTORED TMM%d, %d(%s)(%s*1)", t, at, base, index), ppF3, 0x4b, t, base, index, at)
}

// tdpbf16ps returns the instruction that adds the product of tiles a and b to tile c.
func tdpbf16ps(b, a, c int) string {
	return vexTiles(fmt.Sprintf("TDPBF16PS TMM%d, TMM%d, TMM%d", b, a, c), ppF3, 0x5c, c, b, a)
}

// prefetchw returns the request of a line for writing.
func prefetchw(base string, at int) string {
	code := []int{0x0f, 0x0d, 2<<6 | 1<<3 | registers[base]&7}
	for i := range 4 {
		code = append(code, at>>(8*i))
	}
	return encoded(fmt.Sprintf("PREFETCHW %d(%s)", at, base), code...)
}
