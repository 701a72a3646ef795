package half

// Widen sets the elements of dst to the values of src. Like copy, it converts as many elements as
// both slices have, and returns their number. src may be the second half of the memory of dst,
// which has twice as many bytes.
func Widen[T Float](dst []float32, src []T) int {
	n := min(len(dst), len(src))
	switch src := any(src[:n]).(type) {
	case []BFloat16:
		active.widenBFloat16.run(dst, src)
	case []Float16:
		active.widenFloat16.run(dst, src)
	}
	return n
}

// Narrow rounds elements of src to dst. Like copy, it converts as many elements as both slices
// have, and returns their number. dst may be the first half of the memory of src, which has twice
// as many bytes.
func Narrow[T Float](dst []T, src []float32) int { return NarrowScaled(dst, src, 1) }

// NarrowScaled is [Narrow] of c · src: the products are first rounded to float32.
func NarrowScaled[T Float](dst []T, src []float32, c float32) int {
	n := min(len(dst), len(src))
	switch dst := any(dst).(type) {
	case []BFloat16:
		active.narrowBFloat16.run(dst, src[:n], c)
	case []Float16:
		active.narrowFloat16.run(dst, src[:n], c)
	}
	return n
}

// piece is the largest number of elements that a kernel is given at once: assembly cannot be
// preempted, so its longest call bounds how long a garbage collection waits for this goroutine.
const piece = 1 << 15

// A widening sets dst[i] to the value of src[i], and a narrowing sets it to the rounded c·src[i],
// for every element of src. They visit elements in ascending order, and read one or a few elements
// before they write these or later ones.
type (
	widening[T Float]  func(dst []float32, src []T)
	narrowing[T Float] func(dst []T, src []float32, c float32)
)

func (w widening[T]) run(dst []float32, src []T) {
	for len(src) > piece {
		w(dst, src[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	w(dst, src)
}

func (w narrowing[T]) run(dst []T, src []float32, c float32) {
	for len(src) > piece {
		w(dst, src[:piece], c)
		dst, src = dst[piece:], src[piece:]
	}
	w(dst, src, c)
}

// isa is an instruction set: its name, and its kernels. All give the same bits.
type isa struct {
	name           string
	widenBFloat16  widening[BFloat16]
	narrowBFloat16 narrowing[BFloat16]
	widenFloat16   widening[Float16]
	narrowFloat16  narrowing[Float16]
}

// active is the instruction set in use: the best that this machine has. Only tests change it.
var active = supported()[0]

// portable converts one element after the other, like the methods.
func portable() isa {
	return isa{
		name: "portable",
		widenBFloat16: func(dst []float32, src []BFloat16) {
			for i := range dst[:len(src)] {
				dst[i] = src[i].Float32()
			}
		},
		narrowBFloat16: func(dst []BFloat16, src []float32, c float32) {
			for i := range dst[:len(src)] {
				dst[i] = ToBFloat16(times(c, src[i]))
			}
		},
		widenFloat16: func(dst []float32, src []Float16) {
			for i := range dst[:len(src)] {
				dst[i] = src[i].Float32()
			}
		},
		narrowFloat16: func(dst []Float16, src []float32, c float32) {
			for i := range dst[:len(src)] {
				dst[i] = ToFloat16(times(c, src[i]))
			}
		},
	}
}

// times returns c·f, and f itself if c is 1: some processors do not keep the payload of a NaN
// through a product.
func times(c, f float32) float32 {
	if c == 1 {
		return f
	}
	return float32(c * f)
}
