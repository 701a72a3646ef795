//go:build !amd64 || purego

package peak

// Kernels returns none.
func Kernels() map[bool]Kernel { return nil }
