package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/internal/mesh"
)

// Close waits this long for operations that this rank has issued and others may not
// have, and a broken connection this long for its cause to become known.
const Grace = time.Second

// looks is how often a rank looks for that cause meanwhile. One that was suspended, or has had no
// processor, finds its time over and has read nothing yet: between two looks it reads.
const looks = 20

// explain turns what Run returned for collective seq into the failure of the group.
// Called with mu held; gives mu up.
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
		// A rank that fails tells why, and then its connections end. Its news travels on
		// another connection: give it time to come.
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

// hear waits for news of why collective seq has failed, and returns that, or nil. Called with mu
// held; gives mu up.
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
// order, which is none itself. That one has failed and may still wait for its own reason, and then
// it tells; or its process has ended, which its control connections tell; or else this rank or that
// one is cut off since, which is known when a silent host is taken for lost. The limit bounds it as
// any other wait.
func (s *Serial) patience() time.Duration {
	most := mesh.Unanswered + Grace
	if limit := s.Timeout(); limit > 0 {
		most = min(most, limit)
	}
	return max(most, 2*Grace)
}

// gaveUp is the failure of a rank that stopped waiting in collective seq. Called
// with mu held.
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

// timedOut is the failure of a group that has made no progress in collective seq,
// unless another rank tells of one. Those that this rank waits for may wait themselves,
// so all have to be asked what they do. One rank does that: whoever was asked just now
// waits for what comes of it. Called with mu held; gives mu up.
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
