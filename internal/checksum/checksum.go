package checksum

import "hash/crc32"

// piece is the largest number of bytes that assembly, which cannot be preempted, is given at once:
// a few µs.
const piece = 256 << 10

// Update returns the checksum of some bytes followed by p. sum is the checksum of these bytes, 0
// for none. It does not allocate.
func Update(sum uint32, p []byte) uint32 {
	for len(p) > piece {
		sum = update(sum, p[:piece])
		p = p[piece:]
	}
	return update(sum, p)
}

// Copy copies src to dst and returns Update(sum, src). The slices must have the same length and
// must not overlap. If memory bandwidth is the limit, it takes only the time of the copy.
func Copy(sum uint32, dst, src []byte) uint32 {
	for len(src) > piece {
		sum = copyUpdate(sum, dst[:piece], src[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	return copyUpdate(sum, dst[:len(src)], src)
}

func updateGo(sum uint32, p []byte) uint32 { return crc32.Update(sum, crc32.IEEETable, p) }

// copyUpdateGo computes the checksum of data that the copy has left in the inner caches.
func copyUpdateGo(sum uint32, dst, src []byte) uint32 {
	const inner = 16 << 10
	for len(src) > 0 {
		n := copy(dst, src[:min(len(src), inner)])
		sum = update(sum, src[:n])
		dst, src = dst[n:], src[n:]
	}
	return sum
}

// Join returns the checksum of some bytes followed by n others. sum is the checksum of the first
// bytes, and next of the others. It takes a few hundred multiplications for any n.
func Join(sum, next uint32, n int) uint32 {
	// A byte of zeros multiplies the polynomial before it by x⁸. power is x to the 8, 16, 32, …
	// modulo the polynomial of the checksum, whose bits are reflected: x⁰ is the highest.
	for power := uint32(1) << (31 - 8); n > 0; n >>= 1 {
		if n&1 == 1 {
			sum = multiply(sum, power)
		}
		power = multiply(power, power)
	}
	return sum ^ next
}

// multiply returns the product of two polynomials modulo the polynomial of the checksum.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 == 1 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}
