//go:build !(amd64 || arm64) || purego

package gemm

// supported lists the instruction sets of this machine, best first.
func supported() []isa { return []isa{portable()} }
