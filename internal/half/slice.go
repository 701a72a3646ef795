package half

// Widen sets elements of dst to the values of those of src. Like copy it converts as many as both have, and returns how many.
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

// Narrow rounds elements of src to those of dst. Like copy it converts as many as both have, and returns how many.
func Narrow[T Float](dst []T, src []float32) int {
	n := min(len(dst), len(src))
	switch dst := any(dst).(type) {
	case []BFloat16:
		active.narrowBFloat16.run(dst, src[:n])
	case []Float16:
		active.narrowFloat16.run(dst, src[:n])
	}
	return n
}

// piece is the most elements that a kernel is given at once: assembly cannot be preempted, so its longest call bounds how
// long a garbage collection waits for this goroutine.
const piece = 1 << 15

// A kernel sets dst[i] to the converted src[i], for every element of src.
type kernel[D, S any] func(dst []D, src []S)

func (k kernel[D, S]) run(dst []D, src []S) {
	for len(src) > piece {
		k(dst, src[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	k(dst, src)
}

// isa is an instruction set: its name, and its kernels. All give the same bits.
type isa struct {
	name           string
	widenBFloat16  kernel[float32, BFloat16]
	narrowBFloat16 kernel[BFloat16, float32]
	widenFloat16   kernel[float32, Float16]
	narrowFloat16  kernel[Float16, float32]
}

// active is what everything runs on: the best that this machine has. Only tests change it.
var active = supported()[0]

// portable converts one element after the other, as the methods do.
func portable() isa {
	return isa{
		name: "portable",
		widenBFloat16: func(dst []float32, src []BFloat16) {
			for i := range dst[:len(src)] {
				dst[i] = src[i].Float32()
			}
		},
		narrowBFloat16: func(dst []BFloat16, src []float32) {
			for i := range dst[:len(src)] {
				dst[i] = ToBFloat16(src[i])
			}
		},
		widenFloat16: func(dst []float32, src []Float16) {
			for i := range dst[:len(src)] {
				dst[i] = src[i].Float32()
			}
		},
		narrowFloat16: func(dst []Float16, src []float32) {
			for i := range dst[:len(src)] {
				dst[i] = ToFloat16(src[i])
			}
		},
	}
}
