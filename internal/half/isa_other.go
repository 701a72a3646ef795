//go:build !amd64 || purego

package half

// supported lists the instruction sets of this machine, best first.
func supported() []isa { return []isa{portable()} }
