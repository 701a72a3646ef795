package vec

import "fmt"

// piece is the largest number of elements that a kernel is given at once; [ColSum] gives eight
// whole rows. Assembly cannot be preempted, so the longest kernel call bounds the time that a
// garbage collection waits for this goroutine: at 20 GB/s and 28 bytes an element (Adam), 32 Ki
// elements are 46 µs.
const piece = 1 << 15

// kernels is one instruction set's implementation of every primitive on elements of type T. A
// kernel may assume that its slices have equal lengths.
type kernels[T Float] struct {
	add, sub, mul, div, lesser, greater func(dst, a, b []T)
	less, lessOrEqual, equal, notEqual  func(dst, a, b []T)
	abs, sqrt, square, cube, inverse    func(y, x []T)
	exp, log, tanh, sigmoid             func(y, x []T)
	scaleTo                             func(dst, x []T, alpha T)
	addScaled                           func(dst, x []T, c T) // two roundings
	fill                                func(dst []T, v T)
	colSum8                             func(dst, x []T)                              // dst += the balanced tree over the 8 rows of x
	treeSum                             [9]func(dst []T, srcs [][]T, at int, scale T) // by len(srcs), from 2; reads srcs[k][at:at+len(dst)]

	sum        func(x []T) float64
	sumSquares func(x []T, center float64) float64                    // Σ(x-center)²
	addSquares func(x []T, scale, onHi, both float64) (hi, lo uint64) // the sums of the bits of Squares, modulo 2⁶⁴
	dot        func(a, b []T) float64
	maximum    func(x []T) T
	maxAbs     func(x []T) T // 0 for no elements, NaN if any is NaN

	relu, silu, geluErf, geluTanh                 func(y, x []T)
	reluGrad, siluGrad, geluErfGrad, geluTanhGrad func(dx, x, dy []T)
	tanhGrad, sigmoidGrad                         func(dx, x, dy []T)
	glu                                           [gates]func(y, x, up []T)
	gluGrad                                       [gates]func(dx, dup, x, up, dy []T)
	expSubSum                                     func(y, x []T, scale, m T) float64
	softmaxGrad                                   func(dx, p, dp []T, delta, scale T)
	norm                                          func(y, x, gain, bias []T, mean, rstd T)
	normPlain                                     func(y, x, gain []T, mean, rstd T)
	normGradSums                                  func(dgain, x, gain, dy []T, mean, rstd T) (s1, s2 float64)
	normGrad                                      func(dx, x, gain, dy []T, mean, rstd, c1, c2 T)
	normPlane                                     func(y, x []T, mean, rstd, gain, bias T)
	normPlaneSums                                 func(x, dy []T, mean, rstd T) (s1, s2 float64)
	normPlaneGrad                                 func(dx, x, dy []T, mean, rstd, gain, c1, c2 T)
	rotate                                        func(a, b, x, y, cos, sin []T)
	maxPairs                                      func(y, x []T, cols, ld, rows int)
	maxPairsGrad                                  func(dx, x, dy []T, cols, ld, rows int)

	adam               func(p, g, m, v []T, c adamStep[T])
	sgd                func(p, g []T, c sgdStep[T])
	momentum, nesterov func(p, g, buf []T, c sgdStep[T])
	dropout            func(y, x []T, from, key, threshold uint32, scale T)
	stochastic         func(x []float32, from, key uint32)

	// Kernels of whole blocks sent in 8 bits, which the table of float64 also has. The second one
	// adds.
	encode8             func(dst []byte, src []float32)
	encodeError8        func(dst []byte, src []float32, left []byte)
	decode8, decodeAdd8 func(dst []float32, src []byte)
}

// isa is an instruction set: its name, and its kernels for each element type.
type isa struct {
	name string
	f32  kernels[float32]
	f64  kernels[float64]
	low  lowKernels
}

// active is the instruction set in use: the best that this machine has. Only tests change it.
var active isa

// InstructionSet returns the name of the instruction set of this package: avx512, avx2, neon or portable.
func InstructionSet() string { return active.name }

func init() { active = supported()[0] } // not at the declaration, as some portable kernels use others

func table[T Float]() *kernels[T] {
	if k, ok := any(&active.f32).(*kernels[T]); ok {
		return k
	}
	return any(&active.f64).(*kernels[T])
}

// same panics unless all lengths are equal.
func same(op string, n int, lens ...int) {
	for _, m := range lens {
		if m != n {
			panic(fmt.Sprintf("vec: %s: slices of unequal lengths %d and %d", op, n, m))
		}
	}
}

// each1 calls f on consecutive pieces of a. each2 and each3 call f on the same pieces of several
// slices, after [same].
func each1[T Float](f func(a []T), a []T) {
	for i := 0; i < len(a); i += piece {
		f(a[i:min(i+piece, len(a))])
	}
}

func each2[T Float](op string, f func(a, b []T), a, b []T) {
	same(op, len(a), len(b))
	for i := 0; i < len(a); i += piece {
		j := min(i+piece, len(a))
		f(a[i:j], b[i:j])
	}
}

func each3[T Float](op string, f func(a, b, c []T), a, b, c []T) {
	same(op, len(a), len(b), len(c))
	for i := 0; i < len(a); i += piece {
		j := min(i+piece, len(a))
		f(a[i:j], b[i:j], c[i:j])
	}
}
