package checksum

import "hash/crc32"

// piece is the most bytes that assembly, which cannot be preempted, is given at once: some µs.
const piece = 256 << 10

// Update returns the checksum of some bytes followed by p; sum is that of those bytes, 0 for none.
// It does not allocate.
func Update(sum uint32, p []byte) uint32 {
	for len(p) > piece {
		sum = update(sum, p[:piece])
		p = p[piece:]
	}
	return update(sum, p)
}

// Copy copies src to dst, which has the same length and no byte in common with it, and returns
// Update(sum, src), in the time of the copy where memory is what it takes.
func Copy(sum uint32, dst, src []byte) uint32 {
	for len(src) > piece {
		sum = copyUpdate(sum, dst[:piece], src[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	return copyUpdate(sum, dst[:len(src)], src)
}

func updateGo(sum uint32, p []byte) uint32 { return crc32.Update(sum, crc32.IEEETable, p) }

// copyUpdateGo sums what is still in the inner caches from the copy.
func copyUpdateGo(sum uint32, dst, src []byte) uint32 {
	const inner = 16 << 10
	for len(src) > 0 {
		n := copy(dst, src[:min(len(src), inner)])
		sum = update(sum, src[:n])
		dst, src = dst[n:], src[n:]
	}
	return sum
}

// Join returns the checksum of some bytes followed by n others, whose checksum is next; sum is that
// of the first. It takes some hundred multiplications, whatever n.
func Join(sum, next uint32, n int) uint32 {
	// A byte of zeros multiplies the polynomial of what came before by x⁸; power is x to the 8, 16,
	// 32, … modulo the polynomial of the checksum, whose bits are reflected: x⁰ is the highest.
	for power := uint32(1) << (31 - 8); n > 0; n >>= 1 {
		if n&1 == 1 {
			sum = multiply(sum, power)
		}
		power = multiply(power, power)
	}
	return sum ^ next
}

// multiply returns the product of two polynomials modulo that of the checksum.
func multiply(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 == 1 {
			product ^= b
		}
		b = b>>1 ^ crc32.IEEE&-(b&1)
	}
	return product
}
