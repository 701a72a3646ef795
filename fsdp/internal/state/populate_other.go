//go:build !linux

package state

// populate does nothing: only Linux has the call.
func populate([]byte) {}
