package comm

import "time"

// limited is implemented by groups, and by backends, that fail an operation which
// makes no progress for a time.
type limited interface{ Timeout() time.Duration }

// Timeout returns how long an operation of g may make no progress before it fails
// with [ErrTimeout], or 0 if g has no limit, or does not say: a rank that works
// for long has to be heard of more often.
func Timeout(g Group) time.Duration {
	if l, ok := g.(limited); ok {
		return l.Timeout()
	}
	return 0
}

// Timeout returns the limit of operations, see the function Timeout.
func (s *shared) Timeout() time.Duration { return s.timeout }

// Timeout returns the limit of the backend's operations, see the function Timeout.
func (s *Serial) Timeout() time.Duration {
	if l, ok := s.backend.(limited); ok {
		return l.Timeout()
	}
	return 0
}

// Timeout implements limited.
func (r *remote) Timeout() time.Duration { return r.timeout }
