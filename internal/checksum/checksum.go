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

func updateGo(sum uint32, p []byte) uint32 { return crc32.Update(sum, crc32.IEEETable, p) }
