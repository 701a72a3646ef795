//go:build !amd64 || purego

package half

// supported lists the instruction sets this machine has, best first.
func supported() []isa { return []isa{portable()} }
