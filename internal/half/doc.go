// Package half has the two 16-bit floating-point formats of training, as types for storage and
// transfer. Arithmetic is in float32: values are widened first, and results are rounded once at the
// end.
//
//	            sign  exponent  fraction   largest      smallest normal   smallest
//	BFloat16      1       8         7      3.39e38      2^-126            2^-133
//	Float16       1       5        10      65504        2^-14             2^-24
//	float32       1       8        23      3.40e38      2^-126            2^-149
//
// [BFloat16] is the upper half of a float32: the same range, 8 bits of precision. [Float16] is
// binary16 of IEEE 754, with 11 bits of precision and such a small range that gradients need loss
// scaling.
//
//	wide := make([]float32, len(x))
//	half.Widen(wide, x)  // exact
//	...
//	half.Narrow(x, wide) // rounds to nearest, ties to even
//
// Widening is exact for every value, including subnormals. Narrowing rounds to nearest, ties to
// even, like the processor in float32. A magnitude that rounds beyond the largest value becomes
// infinity. A tiny one becomes a subnormal or a zero of the same sign. A NaN keeps its sign and the
// upper bits of its payload, and narrowing makes it quiet.
//
// # In place
//
// [Widen], [Narrow] and [NarrowScaled] also convert n elements within the memory of n float32. The
// 16-bit elements are the second half of this memory before widening, and its first half after
// narrowing:
//
//	bytes of the float32   0       2n      4n
//	Widen                  ├ dst ──┼─ src ─┤    dst over all of it
//	Narrow                 ├─ dst ─┼─ src ─┤    src over all of it
//
// Both visit the elements in ascending order, so they never overwrite an element that is still to
// be read. Other overlaps give undefined values.
//
// On amd64 slices are converted in assembly (AVX2 and F16C, AVX512_BF16). The bits are the same as
// for single elements in Go, which is the implementation on other processors and with the build tag
// purego.
//
// For the tricks behind branch-free conversion see Fabian Giesen, "Float->half variants",
// https://fgiesen.wordpress.com/2012/03/28/half-to-float-done-quic/.
package half
