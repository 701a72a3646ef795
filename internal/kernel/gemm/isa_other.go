//go:build !(amd64 || arm64) || purego

package gemm

// supported lists the instruction sets this machine has, best first.
func supported() []isa { return []isa{portable()} }
