//go:build !linux

package arena

// hugePages does nothing.
func hugePages([]byte) {}
