package transport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// patience is how long ranks may take to report what they are doing. Slower ranks count as dead: a
// goroutine that waits for nothing else answers. The time is counted in looks. Only one look counts
// while this process is stopped or has no processor, so that answers that came meanwhile are read.
const patience = 500 * time.Millisecond

// The answers of a process about a group that it has no handle of.
const (
	NotHere = "has not made the group yet"
	HasLeft = "has left the group"
)

// Straggler asks all ranks of a group for their status and returns which of the given ranks keeps the
// others waiting in collective seq, or the first of them if that is open. ranks has at least one
// rank. report returns one Status per rank of the group, and must return soon after its context
// ends, half a second later. Straggler adds the status of the rank to err, or returns err as it is
// if report fails.
func Straggler(report func(context.Context) ([]Status, error), ranks []int, seq uint64, err error) (int, error) {
	ctx, cancel := context.WithCancel(context.Background())
	var clock sync.WaitGroup
	defer clock.Wait()
	defer cancel()
	clock.Go(func() {
		look := time.NewTicker(patience / looks) // drops looks that were not waited for
		defer look.Stop()
		for range looks {
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
		}
		cancel()
	})
	last := ranks[0]
	all, failed := report(ctx)
	if failed != nil {
		return last, err // no rank can be asked
	}
	for _, r := range ranks {
		if all[r].lag(seq) > all[last].lag(seq) {
			last = r
		}
	}
	return last, fmt.Errorf("%w; %v", err, all[last])
}

// lag returns how many collectives a rank has still to issue until seq. A rank that does not answer
// has the greatest lag.
func (s Status) lag(seq uint64) uint64 {
	switch s.Err {
	case "":
		return seq - min(s.Issued, seq)
	case HasLeft: // having done its part
		return 0
	case NotHere:
		return seq + 1
	}
	return ^uint64(0)
}

// SplitError returns the failure of group name if collective seq has formed the group of ranks under
// color, but making that group has failed with err on the given rank. If err contains a *RankError
// of group name, or of a group that it was split from, SplitError returns that error. If err
// contains one of the new group, SplitError blames the same rank, by its number in group name.
// Otherwise it blames the given rank.
func SplitError(name string, rank int, seq uint64, color int, ranks []int, err error) error {
	var blame *RankError
	if errors.As(err, &blame) {
		if name == blame.Group || strings.HasPrefix(name, blame.Group+"/") {
			return blame // it failed because this group has, or one that this was split from
		}
		if blame.Group == ChildName(name, color) && blame.Rank >= 0 && blame.Rank < len(ranks) {
			rank, err = ranks[blame.Rank], blame.Err
			if errors.Is(err, ErrClosed) { // a rank closes its subgroups before this group
				return &RankError{Group: name, Rank: rank, Err: err}
			}
		}
	}
	return &RankError{Group: name, Rank: rank, Err: fmt.Errorf("making group %d of split #%d: %w", color, seq, err)}
}

// ChildName is the name of the group that a group forms under color.
func ChildName(parent string, color int) string {
	if color == Detached {
		return parent + "/detached"
	}
	return fmt.Sprintf("%s/%d", parent, color)
}

// WhoLeft returns the rank that has left group name, if err says that one has.
func WhoLeft(name string, err error) (rank int, left bool) {
	var blame *RankError
	if errors.As(err, &blame) && blame.Group == name && errors.Is(blame.Err, ErrClosed) {
		return blame.Rank, true
	}
	return 0, false
}
