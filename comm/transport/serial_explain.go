package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

// Grace is how long Close waits for operations that this rank has issued and others may not have,
// and how long a broken connection waits for its cause to become known.
const Grace = time.Second

// looks is how often a rank checks for the cause meanwhile. A rank that was suspended, or has had
// no processor, finds its time over and has read nothing yet: between two checks it reads.
const looks = 20

// explain turns the error of Run for collective seq into the failure of the group. Called with mu
// held; gives mu up.
func (s *Serial) explain(ctx context.Context, seq uint64, err error) error {
	var mismatch *MismatchError
	var blame *RankError
	switch {
	case s.fault(seq) != nil:
		return s.fault(seq)
	case errors.As(err, &mismatch):
		return mismatch
	case ctx.Err() != nil:
		return s.gaveUp(seq, context.Cause(ctx))
	case errors.Is(err, ErrTimeout):
		return s.timedOut(ctx, seq, err)
	case errors.Is(err, ErrDamaged) && errors.As(err, &blame): // nothing else can be the cause
		return blame
	}
	if other := errors.As(err, &blame) && blame.Rank != s.rank; other || errors.Is(err, ErrLost) {
		// A rank that fails reports why, and then its connections end. Its news travels on another
		// connection: give it time to arrive.
		patience := Grace
		if errors.Is(err, ErrEnded) {
			patience = s.patience()
		}
		if why := s.hear(ctx, seq, patience); why != nil {
			return why
		}
	}
	if errors.As(err, &blame) {
		return blame
	}
	return s.Blame(err)
}

// hear waits for news of why collective seq has failed, and returns the reason, or nil. Called with
// mu held; gives mu up.
func (s *Serial) hear(ctx context.Context, seq uint64, patience time.Duration) error {
	for range looks {
		late, cancel := context.WithTimeout(ctx, patience/looks)
		for s.fault(seq) == nil && s.park(late, ^uint64(0)) {
		}
		cancel()
		if s.fault(seq) != nil {
			break
		}
	}
	return s.fault(seq)
}

// patience is how long a rank waits for the reason why another one has ended a connection in good
// order, because such an end is not a reason itself. There are three cases. The other rank has
// failed, may still wait for its own reason, and then reports it. Or its process has ended, which its
// control connections show. Or one of the two ranks has been cut off since, which is known when a
// silent host counts as lost. The limit bounds this wait, but not below 2*Grace.
func (s *Serial) patience() time.Duration {
	most := mesh.Unanswered + Grace
	if limit := s.Timeout(); limit > 0 {
		most = min(most, limit)
	}
	return max(most, 2*Grace)
}

// gaveUp is the failure of a rank that stopped waiting in collective seq. Called with mu held.
func (s *Serial) gaveUp(seq uint64, cause error) error {
	return s.Blame(fmt.Errorf("waiting for ranks %v in %s: %w", s.backend.Missing(), s.doing(seq), cause))
}

// doing names collective seq. Called with mu held.
func (s *Serial) doing(seq uint64) string {
	if seq == 0 {
		return "making the group"
	}
	return s.task(seq).Numbered(seq)
}

// timedOut is the failure of a group that has made no progress in collective seq, unless another
// rank reports one. The ranks that this one waits for may wait themselves, so all must be asked for
// their state. One rank does that: a rank that was asked just now waits for the result. Called with
// mu held; gives mu up.
func (s *Serial) timedOut(ctx context.Context, seq uint64, err error) error {
	if time.Since(s.asked) < patience {
		if why := s.hear(ctx, seq, 2*patience); why != nil {
			return why
		}
	}
	waited := s.backend.Missing()
	var blame *RankError
	if errors.As(err, &blame) { // of a part of the group
		waited, err = []int{blame.Rank}, blame.Err
	}
	err = fmt.Errorf("rank %d waited for ranks %v in %s: %w", s.rank, waited, s.doing(seq), err)
	others := slices.Clone(waited)
	for r := range s.size {
		if r != s.rank {
			others = append(others, r)
		}
	}
	if len(others) == 0 {
		return s.Blame(err)
	}
	rank := 0
	s.unlocked(func() { rank, err = Straggler(s.Report, others, seq, err) })
	if s.fault(seq) != nil {
		return s.fault(seq)
	}
	return &RankError{Group: s.name, Rank: rank, Err: err}
}
