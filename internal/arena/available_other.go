//go:build !linux

package arena

// Limits returns what bounds the memory that this process can still have, which is not known here.
func Limits() []Limit { return nil }
