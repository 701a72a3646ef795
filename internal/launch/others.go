package launch

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Goroutines is the number of ranks that this process runs as goroutines of comm.Run.
var Goroutines atomic.Int64

// Others describes the ranks other than the caller's, or returns "" if none are known. It is for
// callers without a group: without one, each of several ranks would silently work for itself.
func Others(getenv func(string) string) string {
	if n := Goroutines.Load(); n > 1 {
		return fmt.Sprintf("comm.Run has %d ranks in this process", n)
	}
	e, ok, err := Parse(getenv)
	if errors.As(err, new(*ContradictionError)) {
		return err.Error()
	}
	if err == nil && ok && e.Size > 1 {
		return fmt.Sprintf("this process is rank %d of %d, says %s", e.Rank, e.Size, e.Source)
	}
	return ""
}
