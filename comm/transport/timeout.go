package transport

import (
	"fmt"
	"time"
)

// limited is implemented by groups, and by backends, that fail an operation if it
// makes no progress for a time.
type limited interface{ Timeout() time.Duration }

// Timeout returns how long an operation of g may make no progress before it fails with
// [ErrTimeout], or 0 if g does not say. A rank that computes for long must communicate more often.
func Timeout(g Group) time.Duration {
	if l, ok := g.(limited); ok {
		return l.Timeout()
	}
	return 0
}

// NoProgress returns the error of a rank that has waited for the limit. It wraps
// [ErrTimeout].
func NoProgress(limit time.Duration) error {
	return fmt.Errorf("%w for %v (the limit is FSDP_TIMEOUT, or Config.Timeout)", ErrTimeout, limit)
}
