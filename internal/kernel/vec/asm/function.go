package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// An isa is an instruction set with vector registers.
type isa struct {
	name   string
	letter string // of its registers
	bytes  int    // in a register
	regs   int    // registers for values
	mask   int    // AVX2: the register with the mask of the remainder
	wide   bool   // AVX-512: mask registers, embedded broadcasts
	neon   bool   // of arm64, see neon.go
}

var (
	avx512 = isa{name: "AVX512", letter: "Z", bytes: 64, regs: 32, wide: true}
	avx2   = isa{name: "AVX2", letter: "Y", bytes: 32, regs: 15, mask: 15}
)

// A kernel describes a function of package vec for every instruction set and element type.
type kernel struct {
	name    string            // name of the field of the table; a trailing number is an index into it
	at      string            // the field of the table, if its name differs
	params  string            // Go parameter list, where T is the element type; the first slice has the number of elements
	result  string            // Go type, or empty
	unroll  [2]int            // vectors at a time with the 32 registers of AVX-512 and NEON, and on AVX2
	only32  bool              // the portable kernel does float64
	widened bool              // computes in float64 whatever the element type
	slices  []string          // the slices that the body works on, if not the parameters' slices
	setup   func(f *function) // sets the pointers of slices
	body    func(b *body)
	finish  func(f *function) // after the loop: stores the result
	write   func(f *function) // writes the whole function, in place of a loop over a body
	x86     bool              // NEON has only the portable kernel
	locals  int               // bytes of its stack frame
	low     []string          // the slices of the body that have bfloat16, see [lows]
}

// field returns the expression of the kernel in a table.
func (k kernel) field() string {
	if k.at != "" {
		return k.at
	}
	if last := k.name[len(k.name)-1]; last >= '2' && last <= '8' && strings.HasPrefix(k.name, "treeSum") {
		return k.name[:len(k.name)-1] + "[" + string(last) + "]"
	}
	return k.name
}

// A function is one kernel for one instruction set and element type, while it is written.
//
// Registers: AX is the index of the element, CX is the number of elements left, BX is a temporary,
// and every slice of the body has one of pointerRegs. Vector registers from pin upwards hold values
// for the whole loop; the lower ones belong to the body.
type function struct {
	kernel
	isa     isa
	bits    int    // of an element in memory
	suffix  string // PS or PD: of an element in a register
	widened bool   // loads convert float32 to float64
	counts  bool   // NEON: counts the index of the element
	consts  *constants
	out     strings.Builder
	start   strings.Builder // loads of the pinned registers
	pin     int
	pinned  map[string]*value
}

var pointerRegs = []string{"DI", "SI", "DX", "R8", "R9", "R10", "R11", "R12", "R13"}

func newFunction(isa isa, bits int, k kernel, consts *constants) *function {
	f := &function{kernel: k, isa: isa, bits: bits, suffix: "PS", consts: consts, pin: isa.regs, pinned: map[string]*value{}}
	if bits == 64 || k.widened {
		f.suffix = "PD"
	}
	f.widened = k.widened && bits == 32
	return f
}

func (f *function) symbol() string {
	if f.low != nil {
		return f.name + "BF16" + f.isa.name
	}
	return fmt.Sprintf("%sF%d%s", f.name, f.bits, f.isa.name)
}

func (f *function) declaration() string {
	result := f.result
	if result == "T" {
		result = f.elem()
	}
	return strings.TrimSpace(fmt.Sprintf("func %s(%s) %s", f.symbol(), typed(f.params, f.elem()), result))
}

func (f *function) elem() string { return fmt.Sprint("float", f.bits) }

// typed replaces the type parameter T of a parameter list, and replaces L by bfloat16.
func typed(params, elem string) string {
	words := strings.Fields(params)
	for i, w := range words {
		bare := strings.TrimSuffix(w, ",")
		switch comma := w[len(bare):]; bare {
		case "T", "[]T", "[][]T":
			words[i] = bare[:len(bare)-1] + elem + comma
		case "[]L":
			words[i] = "[]half.BFloat16" + comma
		case "adamStep", "sgdStep":
			words[i] = bare + "[" + elem + "]" + comma
		}
	}
	return strings.Join(words, " ")
}

// lanes returns the number of elements in a register.
func (f *function) lanes() int {
	if f.suffix == "PD" {
		return f.isa.bytes / 8
	}
	return f.isa.bytes / 4
}

func (f *function) width() int {
	if f.isa.wide || f.isa.neon {
		return f.unroll[0]
	}
	return f.unroll[1]
}

func (f *function) line(format string, args ...any) {
	fmt.Fprintf(&f.out, "\t"+format+"\n", args...)
}

// instruction writes one instruction by its x86 name.
func (f *function) instruction(mnemonic string, operands []string) {
	if f.isa.neon {
		f.neonOp(mnemonic, operands)
		return
	}
	f.line("%s %s", mnemonic, strings.Join(operands, ", "))
}

// text returns the assembly of the function.
func (f *function) text() string {
	if f.isa.neon {
		return f.neonText()
	}
	if f.write != nil {
		f.write(f)
		loop := f.out.String()
		f.out.Reset()
		f.entry()
		return f.out.String() + loop + "\tVZEROUPPER\n\tRET\n"
	}
	block := &body{function: f, width: f.width()}
	rest := &body{function: f, width: 1, masked: true}
	f.body(block) // both are recorded before either is written, so that all pinned registers are known
	f.body(rest)
	step, lanes := f.width()*f.lanes(), f.lanes()

	f.line("SUBQ $%d, CX", step)
	f.line("JLT  rest")
	f.out.WriteString("\nblock:\n")
	block.schedule()
	f.line("ADDQ $%d, AX", step)
	f.line("SUBQ $%d, CX", step)
	f.line("JGE  block")
	f.out.WriteString("\nrest:\n")
	f.line("ADDQ $%d, CX", step)
	f.line("JEQ  done")
	f.out.WriteString("\ntail:\n")
	f.tailMask()
	rest.schedule()
	f.line("ADDQ $%d, AX", lanes)
	f.line("SUBQ $%d, CX", lanes)
	f.line("JGT  tail")
	f.out.WriteString("\ndone:\n")
	if f.finish != nil {
		f.finish(f)
	}
	f.line("VZEROUPPER")
	f.line("RET")

	loop := f.out.String()
	f.out.Reset()
	f.entry()
	f.prologue()
	return f.out.String() + f.start.String() + loop
}

// entry begins the function.
func (f *function) entry() {
	flags := "NOSPLIT"
	if f.locals > 0 {
		flags = "0"
	}
	fmt.Fprintf(&f.out, "\n// %s\nTEXT ·%s(SB), %s, $%d-%d\n", f.declaration(), f.symbol(), flags, f.locals, f.frame())
}

// prologue loads the pointers and the number of elements.
func (f *function) prologue() {
	first := f.args()[0]
	f.line("MOVQ %s_len+8(FP), CX", first.name)
	if f.setup != nil {
		f.setup(f)
	} else {
		for _, a := range f.args() {
			if a.isSlice() {
				f.line("MOVQ %s_base+%d(FP), %s", a.name, a.offset, f.pointer(a.name))
			}
		}
	}
	f.line("XORL AX, AX")
}

// tailMask selects the CX remaining elements, up to the number that fits one register.
func (f *function) tailMask() {
	if f.isa.wide {
		f.line("MOVQ  $-1, BX")
		f.line("BZHIQ CX, BX, BX") // at most 64 are left, and BZHI by 64 changes nothing
		f.line("KMOVW BX, K1")
		return
	}
	letter, element := f.isa.letter, "D"
	if f.widened {
		letter = "X" // float32 in memory: masked before they are converted
	}
	if f.bits == 64 {
		element = "Q"
	}
	f.line("VMOVQ CX, X%d", f.isa.mask)
	f.line("VPBROADCAST%s X%d, %s%d", element, f.isa.mask, letter, f.isa.mask)
	f.line("VPCMPGT%s %s, %s%d, %s%d", element, f.consts.iota(f.bits, 0), letter, f.isa.mask, letter, f.isa.mask)
}

// sliceNames lists the slices of the body.
func (f *function) sliceNames() (names []string) {
	if f.slices != nil {
		return f.slices
	}
	for _, a := range f.args() {
		if a.isSlice() {
			names = append(names, a.name)
		}
	}
	return names
}

// pointer returns the register for a slice of the body.
func (f *function) pointer(slice string) string {
	i := slices.Index(f.sliceNames(), slice)
	if f.isa.neon {
		return neonPointers[i]
	}
	return pointerRegs[i]
}

// address returns the address of the u-th vector of a slice in the current iteration.
func (f *function) address(slice string, u int) string {
	if f.isa.neon {
		return fmt.Sprintf("%d(%s)", u*f.lanes()*f.bits/8, f.pointer(slice))
	}
	size := f.bits / 8
	if f.isLow(slice) {
		size = 2
	}
	at := fmt.Sprintf("(%s)(AX*%d)", f.pointer(slice), size)
	if u > 0 {
		at = fmt.Sprint(u*f.lanes()*size) + at
	}
	return at
}

// isLow reports whether a slice of the body has bfloat16.
func (f *function) isLow(slice string) bool { return slices.Contains(f.low, slice) }

// hold reserves n registers for the whole function.
func (f *function) hold(key string, n int, load func(v *value)) *value {
	if v := f.pinned[key]; v != nil {
		return v
	}
	v := &value{pinned: true}
	for range n {
		f.pin--
		v.regs = append(v.regs, f.pin)
	}
	f.pinned[key] = v
	load(v)
	return v
}

func (f *function) broadcast(mnemonic, from string, v *value) {
	fmt.Fprintf(&f.start, "\t%s %s, %s%d\n", mnemonic, from, f.isa.letter, v.regs[0])
}

// scalar is a parameter in every lane.
func (f *function) scalar(name string) *value {
	return f.hold(name, 1, func(v *value) {
		for _, a := range f.args() {
			if a.name != name {
				continue
			}
			mnemonic, from := "VBROADCASTSS", fmt.Sprintf("%s+%d(FP)", name, a.offset)
			if a.kind == "float64" || a.kind == "T" && f.bits == 64 {
				mnemonic = "VBROADCASTSD"
			}
			if f.isa.neon {
				f.neonBroadcast(from, 8*f.size(a.kind), v)
			} else {
				f.broadcast(mnemonic, from, v)
			}
		}
	})
}

// constant is a float32 constant in memory, and register is the same in a register.
func (f *function) constant(x float64) *value { return f.word(math.Float32bits(float32(x))) }

func (f *function) register(x float64) *value {
	mem := f.constant(x).mem
	return f.hold(mem, 1, func(v *value) {
		if f.isa.neon {
			fmt.Fprintf(&f.start, "\tFMOVQ %s, F%d\n", mem, v.regs[0])
		} else {
			f.broadcast("VBROADCASTSS", mem, v)
		}
	})
}

// word is a 32-bit constant in memory.
func (f *function) word(bits uint32) *value { return &value{mem: f.consts.word(bits)} }

// zero is 0 in a register.
func (f *function) zero() *value {
	return f.hold("zero", 1, func(v *value) { f.clear(v.regs[0]) })
}

func (f *function) clear(reg int) {
	if f.isa.neon {
		fmt.Fprintf(&f.start, "\tVEOR V%[1]d.B16, V%[1]d.B16, V%[1]d.B16\n", reg)
		return
	}
	fmt.Fprintf(&f.start, "\tVXORPS X%d, X%d, X%d\n", reg, reg, reg)
}

// accumulator is one register for each vector of the loop. It starts as 0, or as initial if that is
// not nil.
func (f *function) accumulator(name string, initial *value) *value {
	return f.hold(name, f.width(), func(v *value) {
		for _, r := range v.regs {
			switch {
			case initial == nil:
				f.clear(r)
			case f.isa.neon:
				fmt.Fprintf(&f.start, "\tVMOV V%d.B16, V%d.B16\n", initial.regs[0], r)
			default:
				fmt.Fprintf(&f.start, "\tVMOVAPS %s%d, %s%d\n", f.isa.letter, initial.regs[0], f.isa.letter, r)
			}
		}
	})
}

// fold combines the registers of an accumulator, and then the halves of the last one, until its
// lowest element holds the result; it returns that register. The order is a balanced tree.
func (f *function) fold(name, mnemonic string, bits int) int {
	return f.foldTo(name, mnemonic, bits, 0)
}

// foldTo is fold with a given temporary register.
func (f *function) foldTo(name, mnemonic string, bits, t int) int {
	regs := f.pinned[name].regs
	for n := len(regs); n > 1; n /= 2 {
		for i := range n / 2 {
			a, b := fmt.Sprint(f.isa.letter, regs[i]), fmt.Sprint(f.isa.letter, regs[i+n/2])
			f.instruction(mnemonic, []string{b, a, a})
		}
	}
	r := regs[0] // the registers of the body are free now
	if f.isa.neon {
		return f.neonFold(mnemonic, r, t, bits)
	}
	half := func(letter string) { f.line("%s %s%d, %s%d, %s%d", mnemonic, letter, t, letter, r, letter, r) }
	if f.isa.wide {
		f.line("VEXTRACTF64X4 $1, Z%d, Y%d", r, t)
		half("Y")
	}
	f.line("%s $1, Y%d, X%d", f.extract128(), r, t)
	half("X")
	f.line("VPSHUFD $0x4E, X%d, X%d", r, t)
	half("X")
	if bits == 32 {
		f.line("VPSHUFD $0xB1, X%d, X%d", r, t)
		half("X")
	}
	return r
}

// returns prints the store of the lowest element of a register as a result.
func (f *function) returns(result string, offset, register, bits int) {
	mnemonic, letter := "VMOVSD", "X"
	switch {
	case f.isa.neon:
		mnemonic, letter = neonMove(bits/8), "F"
	case bits == 32:
		mnemonic = "VMOVSS"
	}
	f.line("%s %s%d, %s+%d(FP)", mnemonic, letter, register, result, offset)
}

// extract128 returns the instruction for the upper half of a Y register: registers above 15 need
// the newer one.
func (f *function) extract128() string {
	if f.isa.wide {
		return "VEXTRACTF32X4"
	}
	return "VEXTRACTF128"
}
