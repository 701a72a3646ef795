//go:build !purego

package checksum

import (
	"hash/crc32"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// Folding
//
// Bits are the coefficients of a polynomial. The first bit in memory belongs to the highest power
// of x. The checksum is the remainder modulo the polynomial P of the CRC. So bytes may be replaced
// by later bytes with the same remainder: the halves of each 16 bytes are multiplied by x^(D+64)
// and x^D modulo P, by carry-less products, and added by exclusive or to the bytes D bits further
// on. Four such folds of 64 bytes run in parallel until 16 bytes are left, whose remainder is the
// result. See Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction, Intel 2009. The powers here are 32 less, as the constants have 32 bits of 64 and
// bits are reflected.

// stride is the number of bytes that the loop folds at once.
const stride = 256

// powers are the factors that fold by a stride, by three, two and one register of 64 bytes, and by
// three, two and one quarter of a register.
var powers = func() (k [7][2]uint64) {
	for i, bytes := range []int{stride, 192, 128, 64, 48, 32, 16} {
		k[i] = [2]uint64{power(8*bytes + 32), power(8*bytes - 32)}
	}
	return k
}()

// power returns x^n modulo P, reversed as in hash/crc32, as a factor.
func power(n int) uint64 {
	r := uint32(1 << 31)
	for range n {
		r = r>>1 ^ crc32.IEEE*(r&1)
	}
	return uint64(r) << 1
}

var wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512VPCLMULQDQ

func update(sum uint32, p []byte) uint32 {
	if !wide || len(p) < 2*stride {
		return updateGo(sum, p)
	}
	n := len(p) / stride * stride
	var rest [16]byte
	fold(&rest, &p[0], n, ^sum, &powers)
	return updateGo(finish(&rest), p[n:])
}

// past is the number of bytes from which on it pays to copy past the caches.
const past = 128 << 10

func copyUpdate(sum uint32, dst, src []byte) uint32 {
	if !wide || len(src) < past || uintptr(unsafe.Pointer(&dst[0]))%64 != 0 {
		return copyUpdateGo(sum, dst, src)
	}
	n := len(src) / stride * stride
	var rest [16]byte
	foldCopy(&rest, &dst[0], &src[0], n, ^sum, &powers)
	copy(dst[n:], src[n:])
	return updateGo(finish(&rest), src[n:])
}

// finish returns the checksum of the bytes folded into rest.
func finish(rest *[16]byte) (sum uint32) {
	for _, b := range rest { // in a call of updateGo they would escape
		sum = sum>>8 ^ crc32.IEEETable[byte(sum)^b]
	}
	return ^sum
}

// fold folds n bytes, a positive multiple of stride, into rest. state is the remainder of the bytes
// before.
//
//go:noescape
func fold(rest *[16]byte, p *byte, n int, state uint32, powers *[7][2]uint64)

// foldCopy is fold of src. It also copies src to dst, which is aligned to 64 bytes.
//
//go:noescape
func foldCopy(rest *[16]byte, dst, src *byte, n int, state uint32, powers *[7][2]uint64)
