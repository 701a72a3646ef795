//go:build !linux

package tcp

// newPoller makes the portable pump.
func newPoller() (pump, error) { return newStreams(), nil }

// delivered reports whether the other side's kernel is known to have all that
// was sent.
func delivered(int) bool { return false }

// unanswered reports whether the other side's kernel is known not to answer.
func unanswered(int) bool { return false }
