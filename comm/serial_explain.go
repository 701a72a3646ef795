package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// Close waits this long for operations that this rank has issued and others may
	// not have, and a broken connection this long for its cause to become known.
	grace = time.Second
	// Ranks that take longer to tell what they are doing are taken for dead: goroutines
	// that wait for nothing else answer.
	patience = 500 * time.Millisecond
)

// explain turns what Run returned for collective seq into the failure of the
// group. Called with mu held, which it gives up to wait.
func (s *Serial) explain(ctx context.Context, seq uint64, err error) error {
	var mismatch *MismatchError
	var blame *RankError
	switch {
	case s.doomed(seq):
		return s.fault(seq)
	case errors.As(err, &mismatch):
		return mismatch
	case ctx.Err() != nil:
		return s.gaveUp(seq, context.Cause(ctx))
	case errors.Is(err, ErrTimeout):
		return s.accuse(seq, err)
	}
	if hearsay := errors.As(err, &blame) && blame.Rank != s.rank; hearsay || errors.Is(err, ErrLost) {
		// Connections end when a rank fails for another reason, which it has told
		// before, but elsewhere: let that news overtake.
		late, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		for !s.doomed(seq) && s.park(late, ^uint64(0)) {
		}
		if s.doomed(seq) {
			return s.fault(seq)
		}
	}
	if errors.As(err, &blame) {
		return blame
	}
	return s.blame(err)
}

// gaveUp is the failure of a rank that stopped waiting in collective seq. Called
// with mu held.
func (s *Serial) gaveUp(seq uint64, cause error) error {
	return s.blame(fmt.Errorf("waiting for ranks %v in %s: %w", s.backend.Missing(), s.doing(seq), cause))
}

// doing names collective seq. Called with mu held.
func (s *Serial) doing(seq uint64) string {
	if seq == 0 {
		return "making the group"
	}
	return s.task(seq).numbered(seq)
}

// accuse is the failure of a group that has made no progress in collective seq,
// unless another rank tells of one while this one finds out. Those that this rank
// waits for may wait themselves, so every rank is a suspect. Called with mu held,
// which it gives up to ask them.
func (s *Serial) accuse(seq uint64, err error) error {
	waited := s.backend.Missing()
	var blame *RankError
	if errors.As(err, &blame) { // of a part of the group
		waited, err = []int{blame.Rank}, blame.Err
	}
	err = fmt.Errorf("rank %d waited for ranks %v in %s: %w", s.rank, waited, s.doing(seq), err)
	suspects := slices.Clone(waited)
	for r := range s.size {
		if r != s.rank {
			suspects = append(suspects, r)
		}
	}
	if len(suspects) == 0 {
		return s.blame(err)
	}
	s.mu.Unlock()
	rank, err := convict(s.report, suspects, seq, err)
	s.mu.Lock()
	if s.doomed(seq) {
		return s.fault(seq)
	}
	return &RankError{Group: s.name, Rank: rank, Err: err}
}

// convict asks all ranks of a group what they are doing and returns which of the
// suspects, the likeliest first, keeps the others waiting in collective seq. What
// it is doing is added to err.
func convict(report func(context.Context) ([]Status, error), suspects []int, seq uint64, err error) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rank := suspects[0]
	all, failed := report(ctx)
	if failed != nil {
		return rank, err // nobody can be asked
	}
	for _, r := range suspects {
		if all[r].guilt(seq) > all[rank].guilt(seq) {
			rank = r
		}
	}
	return rank, fmt.Errorf("%w; %v", err, all[rank])
}

// guilt is how likely it is that others wait for a rank in collective seq: most of
// all if it is silent, else the less it has issued.
func (s Status) guilt(seq uint64) uint64 {
	switch s.Err {
	case "":
		return seq - min(s.Issued, seq)
	case hasLeft: // having done its part
		return 0
	case notHere:
		return seq + 1
	}
	return ^uint64(0)
}

// unborn is the failure of group name on the given rank when collective seq has
// formed the group of ranks under color, but that could not be made because of err.
// Whoever is to blame there is to blame here.
func unborn(name string, rank int, seq uint64, color int, ranks []int, err error) error {
	var blame *RankError
	if errors.As(err, &blame) {
		if name == blame.Group || strings.HasPrefix(name, blame.Group+"/") {
			return blame // it failed because this group has, or one that this was split from
		}
		if blame.Group == childName(name, color) && blame.Rank >= 0 && blame.Rank < len(ranks) {
			rank, err = ranks[blame.Rank], blame.Err
		}
	}
	return &RankError{Group: name, Rank: rank, Err: fmt.Errorf("making group %d of split #%d: %w", color, seq, err)}
}

// childName is the name of the group that a group forms under color.
func childName(parent string, color int) string { return fmt.Sprintf("%s/%d", parent, color) }
