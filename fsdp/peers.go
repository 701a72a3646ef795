package fsdp

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/gofsdp/gofsdp/fsdp/internal/ranks"
)

// A PeerError is the failure of another rank before a pass, reported on this one, so that no rank waits for a rank that
// will not come.
type PeerError struct {
	Rank    int
	Message string
}

// Error implements error.
func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Message) }

func newPeerError(rank int, message string) error { return &PeerError{rank, message} }

// ask agrees with the other ranks to run a collective method. err is why this rank cannot, or nil.
func (s *Sharded) ask(ctx context.Context, q *ranks.Ask, err error) (ranks.Answer, error) {
	if s.err == errClosed { // the others need not know, and may have left
		return ranks.Answer{}, fmt.Errorf("fsdp: rank %d: %s: %w", s.cfg.Group.Rank(), q.Call, s.err)
	}
	s.requests++
	q.Number = s.requests
	if err == nil {
		err = context.Cause(ctx)
	}
	ans, err := s.team.Agree(ctx, q, err)
	var lost *ranks.LostError
	switch {
	case err == nil:
		return ans, nil
	case errors.As(err, &lost) && s.err == nil:
		return ans, s.broken(fmt.Errorf("%s: %w", q.Call, err))
	default:
		return ans, fmt.Errorf("fsdp: rank %d: %s: %w", s.cfg.Group.Rank(), q.Call, err)
	}
}

// agree is ask where nothing but agreement matters.
func (s *Sharded) agree(ctx context.Context, q ranks.Ask, err error) error {
	_, err = s.ask(ctx, &q, err)
	return err
}

// What else than the name of a method ranks must have alike.
func fromRank(root int) string { return fmt.Sprintf(" from rank %d", root) }

func onlyOn(root int) string {
	if root == everywhere {
		return ""
	}
	return fmt.Sprintf(" with OnlyOn(%d)", root)
}

func writeBack(root int) string {
	if root == everywhere {
		return ""
	}
	return fmt.Sprintf(" with WriteBack(%d)", root)
}

// textHash returns a number of 63 bits that is the same for the same words.
func textHash(words []string) uint64 {
	h := fnv.New64a()
	for _, w := range words {
		fmt.Fprintf(h, "%q", w)
	}
	return h.Sum64() >> 1
}
