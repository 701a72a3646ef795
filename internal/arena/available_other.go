//go:build !linux

package arena

// Limits returns nil: memory limits are not known on this system.
func Limits(int) []Limit { return nil }
