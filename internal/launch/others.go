package launch

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Goroutines is how many ranks this process runs as goroutines of comm.Run.
var Goroutines atomic.Int64

// Others says which ranks there are beside the caller's, or "" if it is alone as far as anybody has
// told. It is for those who have been given no group: without one, each of several ranks would work
// for itself, and nobody would notice.
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
