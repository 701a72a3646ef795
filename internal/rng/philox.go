package rng

import "math/bits"

// These are the constants of Philox4x32 (table 2 of the paper): two odd multipliers, and the Weyl
// increments of the key schedule (the golden ratio and √3-1 in 32 bits).
const (
	mul0, mul1   = 0xD2511F53, 0xCD9E8D57
	weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85
	rounds       = 10
)

// philox encrypts one counter block.
func philox(c [4]uint32, k [2]uint32) [4]uint32 {
	for range rounds {
		hi0, lo0 := bits.Mul32(mul0, c[0])
		hi1, lo1 := bits.Mul32(mul1, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0}
		k[0] += weyl0
		k[1] += weyl1
	}
	return c
}
