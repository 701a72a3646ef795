//go:build !linux

package arena

import "math"

// Available returns the bytes of memory that this process can still have, which is not known here.
func Available() (bytes int, limit string) { return math.MaxInt, "" }
