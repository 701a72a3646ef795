package session

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/internal/text"
)

// Whether the ranks of a host share memory
//
// A rank may have no shared memory: an old kernel, a sandbox, a limit of addresses (ulimit -v).
// Ranks that disagree would wait for each other for ever. So all ranks of a host vote, at each step
// that may fail, and either all share memory or all use sockets.

// A vote identifies the answer of one rank at one step: why the rank cannot make it, or "".
type vote struct {
	step uint64
	rank int // in the world
}

// maxReason bounds a reason, in bytes.
const maxReason = 8 << 10

const (
	StepCreate = iota + 1 // every rank has a segment
	StepMap               // every rank has mapped the segments of all
)

// NoMemory says that the ranks of a host share no memory. All of them have the same.
type NoMemory struct {
	Ranks  []int // of the host, in the world, ascending
	Rank   int   // the lowest rank that cannot
	Reason string
}

func (e *NoMemory) Error() string {
	return fmt.Sprintf("ranks %v of one host cannot share memory; rank %d: %s", e.Ranks, e.Rank, e.Reason)
}

// hearVote records the vote of a peer.
func (s *Session) hearVote(v vote, reason string) {
	if v.step > StepMap {
		return // no rank of this version sends that
	}
	s.mu.Lock()
	s.votes[v] = reason
	s.mu.Unlock()
	s.ringVotes()
}

// ringVotes makes agree count again.
func (s *Session) ringVotes() {
	select {
	case s.voted <- struct{}{}:
	default:
	}
}

// Agree sends the other given ranks, which are on this host, whether this rank can take a step, and
// collects their votes. It returns nil if all can, a NoMemory if one cannot.
func (s *Session) Agree(ctx context.Context, step uint64, ranks []int, mine error) error {
	reason := ""
	if mine != nil {
		reason = text.Cut(mine.Error(), maxReason)
	}
	s.hearVote(vote{step, s.Config.Rank}, reason)
	for _, r := range ranks {
		if r == s.Config.Rank {
			continue
		}
		if err := s.send(r, newsMemory, step, []byte(reason)); err != nil {
			return err
		}
	}
	for {
		open, err := s.count(step, ranks)
		if err != nil || open < 0 {
			return err
		}
		select {
		case <-s.voted:
		case <-ctx.Done():
			return fmt.Errorf("waiting for rank %d of this host to set up shared memory: %w", open, context.Cause(ctx))
		}
	}
}

// count returns the first of the ranks that has not voted, or -1 and the result if all have.
func (s *Session) count(step uint64, ranks []int) (open int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range ranks {
		switch reason, ok := s.votes[vote{step, r}]; {
		case !ok && s.gone[r] != nil:
			return r, fmt.Errorf("shared memory of rank %d: %w", r, s.gone[r])
		case !ok:
			return r, nil
		case reason != "" && err == nil:
			err = &NoMemory{ranks, r, reason}
		}
	}
	return -1, err
}
