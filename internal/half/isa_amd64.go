//go:build amd64 && !purego

package half

import "golang.org/x/sys/cpu"

// supported lists the instruction sets of this machine, best first.
func supported() []isa {
	p := portable()
	if !cpu.X86.HasAVX2 || !cpu.X86.HasF16C {
		return []isa{p}
	}
	avx2 := isa{
		name:           "avx2",
		widenBFloat16:  widenWithRest(widenBFloat16AVX2, p.widenBFloat16),
		narrowBFloat16: narrowWithRest(narrowBFloat16AVX2, p.narrowBFloat16),
		widenFloat16:   widenWithRest(widenFloat16AVX2, p.widenFloat16),
		narrowFloat16:  narrowWithRest(narrowFloat16AVX2, p.narrowFloat16),
	}
	if !cpu.X86.HasBMI2 || !cpu.X86.HasAVX512F || !cpu.X86.HasAVX512DQ || !cpu.X86.HasAVX512BW || !cpu.X86.HasAVX512VL || !cpu.X86.HasAVX512BF16 {
		return []isa{avx2, p}
	}
	bf16 := avx2
	bf16.name = "avx512bf16"
	bf16.widenBFloat16, bf16.narrowBFloat16 = widenBFloat16AVX512, narrowBFloat16AVX512
	return []isa{bf16, avx2, p}
}

// step is the number of elements that the AVX2 assembly converts in one iteration.
const step = 16

// widenWithRest and narrowWithRest are kernels for any number of elements, from one for multiples
// of step and one for the rest.
func widenWithRest[T Float](steps, rest widening[T]) widening[T] {
	return func(dst []float32, src []T) {
		whole := len(src) &^ (step - 1)
		steps(dst[:whole], src[:whole])
		rest(dst[whole:], src[whole:])
	}
}

func narrowWithRest[T Float](steps, rest narrowing[T]) narrowing[T] {
	return func(dst []T, src []float32, c float32) {
		whole := len(src) &^ (step - 1)
		steps(dst[:whole], src[:whole], c)
		rest(dst[whole:], src[whole:], c)
	}
}

//go:noescape
func widenBFloat16AVX2(dst []float32, src []BFloat16)

//go:noescape
func narrowBFloat16AVX2(dst []BFloat16, src []float32, c float32)

//go:noescape
func widenBFloat16AVX512(dst []float32, src []BFloat16)

//go:noescape
func narrowBFloat16AVX512(dst []BFloat16, src []float32, c float32)

//go:noescape
func widenFloat16AVX2(dst []float32, src []Float16)

//go:noescape
func narrowFloat16AVX2(dst []Float16, src []float32, c float32)
