// Package half is the two 16-bit floating-point formats of training, as types that are stored and
// moved but not calculated with: arithmetic is float32, on values that were widened first and are
// rounded once at the end.
//
//	            sign  exponent  fraction   largest      smallest normal   smallest
//	BFloat16      1       8         7      3.39e38      2^-126            2^-133
//	Float16       1       5        10      65504        2^-14             2^-24
//	float32       1       8        23      3.40e38      2^-126            2^-149
//
// [BFloat16] is the upper half of a float32: the same range, 8 bits of precision. [Float16] is
// binary16 of IEEE 754, with 11 bits of precision and so small a range that gradients need loss
// scaling.
//
//	wide := make([]float32, len(x))
//	half.Widen(wide, x)  // exact
//	...
//	half.Narrow(x, wide) // rounds to nearest, ties to even
//
// Widening is exact for every value, subnormals included. Narrowing rounds to nearest, ties to
// even, as the processor does in float32: a magnitude that rounds beyond the largest value becomes
// infinity, a tiny one a subnormal or a zero of the same sign. NaN stays NaN with its sign and as
// much of its payload as there is room for, and comes out of narrowing quiet.
//
// # In place
//
// [Widen], [Narrow] and [NarrowScaled] also convert n elements within the memory of n float32, if
// the 16-bit ones are its second half before widening and become its first half by narrowing:
//
//	bytes of the float32   0       2n      4n
//	Widen                  ├ dst ──┼─ src ─┤    dst over all of it
//	Narrow                 ├─ dst ─┼─ src ─┤    src over all of it
//
// Both go through the elements in ascending order, so that what is written lies behind what is
// still to be read. Other overlaps give undefined values.
//
// On amd64 slices are converted in assembly (AVX2 and F16C, AVX512_BF16), to the same bits as their
// elements one by one, which is what happens elsewhere and under the build tag purego.
//
// For the tricks behind branch-free conversion see Fabian Giesen, "Float->half variants",
// https://fgiesen.wordpress.com/2012/03/28/half-to-float-done-quic/.
package half
