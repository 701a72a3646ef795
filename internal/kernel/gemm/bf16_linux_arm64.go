//go:build !purego

package gemm

import "golang.org/x/sys/unix"

// hasBF16 reports whether the processor has FEAT_BF16: bit 14 of the second word of its
// capabilities, which is auxiliary value 26.
func hasBF16() bool {
	values, err := unix.Auxv()
	if err != nil {
		return false
	}
	for _, v := range values {
		if v[0] == 26 {
			return v[1]>>14&1 == 1
		}
	}
	return false
}
