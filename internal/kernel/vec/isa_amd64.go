//go:build amd64 && !purego

package vec

import "golang.org/x/sys/cpu"

//go:generate go run ./asm

// supported lists the instruction sets of this machine, best first.
func supported() []isa {
	var sets []isa
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW && cpu.X86.HasBMI2 {
		sets = append(sets, avx512())
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		sets = append(sets, avx2())
	}
	return append(sets, portable())
}
