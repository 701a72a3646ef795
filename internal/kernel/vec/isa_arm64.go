//go:build arm64 && !purego

package vec

// supported lists the instruction sets of this machine, best first.
func supported() []isa { return []isa{neon(), portable()} }
