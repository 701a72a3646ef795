//go:build amd64 && !purego

package half

import "golang.org/x/sys/cpu"

// supported lists the instruction sets this machine has, best first.
func supported() []isa {
	p := portable()
	if !cpu.X86.HasAVX2 || !cpu.X86.HasF16C {
		return []isa{p}
	}
	return []isa{{
		name:           "avx2",
		widenBFloat16:  withRest(widenBFloat16AVX2, p.widenBFloat16),
		narrowBFloat16: withRest(narrowBFloat16AVX2, p.narrowBFloat16),
		widenFloat16:   withRest(widenFloat16AVX2, p.widenFloat16),
		narrowFloat16:  withRest(narrowFloat16AVX2, p.narrowFloat16),
	}, p}
}

// step is how many elements the assembly converts in one turn of its loop.
const step = 16

// withRest is a kernel for any number of elements, from one for multiples of step and one for the rest.
func withRest[D, S any](steps, rest kernel[D, S]) kernel[D, S] {
	return func(dst []D, src []S) {
		whole := len(src) &^ (step - 1)
		steps(dst[:whole], src[:whole])
		rest(dst[whole:], src[whole:])
	}
}

//go:noescape
func widenBFloat16AVX2(dst []float32, src []BFloat16)

//go:noescape
func narrowBFloat16AVX2(dst []BFloat16, src []float32)

//go:noescape
func widenFloat16AVX2(dst []float32, src []Float16)

//go:noescape
func narrowFloat16AVX2(dst []Float16, src []float32)
