//go:build !linux

package arena

// HugePages does nothing.
func HugePages([]byte) {}
