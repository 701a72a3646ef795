//go:build !(amd64 || arm64) || purego

package vec

// supported lists the instruction sets of this machine, best first.
func supported() []isa { return []isa{portable()} }
