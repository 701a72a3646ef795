//go:build !linux && !purego

package gemm

// hasBF16 reports whether the processor has FEAT_BF16. It is false, since only Linux has a way to
// find out.
func hasBF16() bool { return false }
