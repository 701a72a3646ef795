package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Meet sets the address of the store in which the ranks of the current membership meet.
func (n *Node) Meet(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.meeting = address
	n.change()
}

// Meeting returns the address that rank 0 of m has given to Meet.
func (n *Node) Meeting(ctx context.Context, m Membership) (string, error) {
	r, err := n.persist(ctx, m.Members[0], request{What: askMeet, Number: m.Number}, time.Now(), func(reply) error { return nil })
	if err == nil && r.Address == "" {
		err = errors.New("it has given up the group")
	}
	if err != nil {
		return "", fmt.Errorf("rank 0 of group %d: %w", m.Number, err)
	}
	return r.Address, nil
}

// ErrEnded is wrapped by the error of Enter if all members that it has asked have ended.
var ErrEnded = errors.New("all of them have ended")

// Enter asks the members of m to let this process in. It returns the first membership that has it,
// or an error when none of the members answers.
func (n *Node) Enter(ctx context.Context, m Membership) (Membership, error) {
	ctx, cancel := n.until(ctx, 0)
	defer cancel()
	errs := make([]error, len(m.Members))
	var all sync.WaitGroup
	for i, member := range m.Members {
		all.Go(func() {
			_, errs[i] = n.persist(ctx, member, request{What: askEnter, Member: &n.self}, time.Now(), func(reply) error { return nil })
		})
	}
	all.Wait()
	if now, _ := n.state(); now.Number >= 0 {
		n.Begin(now)
		return now, nil
	}
	if len(errs) == 0 {
		return Membership{}, fmt.Errorf("group %d has no members", m.Number)
	}
	if !slices.ContainsFunc(errs, func(err error) bool { return !ended(err) }) {
		return Membership{}, fmt.Errorf("%w: %w", ErrEnded, errors.Join(errs...))
	}
	return Membership{}, errors.Join(errs...)
}

// Guard watches the next rank of m and its first rank, until done is called, and calls lost if one
// of them has ended, does not answer, or does not form the group of m any more.
func (n *Node) Guard(ctx context.Context, m Membership, lost func(error)) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	var guards sync.WaitGroup
	self := m.Index(n.self.ID)
	watch := func(rank int) {
		guards.Go(func() {
			_, err := n.persist(ctx, m.Members[rank], request{What: askGuard, Number: m.Number}, time.Now(), func(reply) error { return nil })
			if err == nil {
				err = errors.New("it has given up the group")
			}
			if ctx.Err() == nil {
				lost(fmt.Errorf("rank %d of group %d: %w", rank, m.Number, err))
			}
		})
	}
	next := (self + 1) % len(m.Members)
	if next != self {
		watch(next)
	}
	if self != 0 && next != 0 {
		watch(0)
	}
	return func() { cancel(); guards.Wait() }
}
