package transport

import (
	"errors"
	"fmt"
	"strings"
)

// ErrClosed is wrapped by the error of an operation that needs a rank that has
// closed its handle.
var ErrClosed = errors.New("group closed")

// ErrInvalid is wrapped by the error of an operation with bad arguments.
var ErrInvalid = errors.New("invalid call")

// ErrTimeout is wrapped by the error of an operation that made no progress within
// the time limit of the group.
var ErrTimeout = errors.New("no progress")

// ErrLost is wrapped by the error of an operation that needs a rank whose process
// has ended, or can no longer be reached, without closing its handle.
var ErrLost = errors.New("process lost")

// ErrDamaged is wrapped by the error of an operation if a checksum has detected a
// change of its data between two ranks. See Checksums in package comm.
var ErrDamaged = errors.New("damaged on the way")

// ErrEnded is returned by [Confirmer].Confirm, and wrapped by the error of a [Backend], if another rank
// has ended its connection in good order. That is no reason by itself: the rank reports the reason elsewhere.
var ErrEnded = errors.New("ended by the other rank")

// RankError says that a group failed because of one rank: it aborted, closed,
// gave up waiting, made an invalid call, or died. All ranks of the group get the
// same error, including that rank.
type RankError struct {
	Group string // name of the group, "world" for the first one
	Rank  int    // in the group
	Err   error  // the failure of the rank
}

func (e *RankError) Error() string {
	return fmt.Sprintf("comm: rank %d of group %q: %v", e.Rank, e.Group, e.Err)
}

// Unwrap returns e.Err.
func (e *RankError) Unwrap() error { return e.Err }

// MismatchError says that two ranks made different calls where the same call was
// due. All ranks of the group get the same error.
type MismatchError struct {
	Group string    // name of the group
	Seq   uint64    // number of the collective in the group, from 1
	Ranks [2]int    // two ranks that disagree, in ascending order
	Calls [2]string // the call of each of them
}

func (e *MismatchError) Error() string {
	a, first, named := strings.Cut(e.Calls[0], ` "`)
	b, second, _ := strings.Cut(e.Calls[1], ` "`)
	if named && a == b && second != "" { // the names alone differ
		return fmt.Sprintf("comm: collective #%d of group %q, %s: rank %d gave \"%s, rank %d gave \"%s",
			e.Seq, e.Group, a, e.Ranks[0], first, e.Ranks[1], second)
	}
	return fmt.Sprintf("comm: collective #%d of group %q: rank %d calls %s, rank %d calls %s: all ranks must make the same calls in the same order",
		e.Seq, e.Group, e.Ranks[0], e.Calls[0], e.Ranks[1], e.Calls[1])
}
