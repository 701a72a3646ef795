//go:build !linux && !purego

package gemm

// hasBF16 tells whether the processor has FEAT_BF16, of which only Linux is asked.
func hasBF16() bool { return false }
