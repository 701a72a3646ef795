// Package checksum has the checksum of what ranks send each other: CRC-32 with the polynomial of
// Ethernet, as [hash/crc32] computes it, at the speed of the caches where the processor has wide
// carry-less products.
//
// It finds every burst of up to 32 flipped bits, any two flipped bits within 512 MiB, and all but
// one in 2³² of other changes. It is no protection against somebody who means to change data.
//
// Of the two polynomials of hash/crc32 that processors help with it is the faster one where they do
// not have those products: 35 GB/s against 20 on the machine of internal/EXPERIMENTS.md.
package checksum
