package quorum

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEnterAndEnd has a process ask a rank that does not propose, and end, before another process
// asks. All ranks that are left and the second process are in the next membership.
func TestEnterAndEnd(t *testing.T) {
	nodes, m := open(t, 4, time.Minute)
	ended, later := process(t, 0, 0), process(t, 0, 0)
	require.NoError(t, nodes[0].Close())
	next := make([]Membership, 5)
	errs := make([]error, 5)
	var all sync.WaitGroup
	begin := func(rank int) {
		all.Go(func() { next[rank], errs[rank] = nodes[rank].Next(t.Context(), 1) })
	}
	begin(1)
	begin(2)
	enter := func(n *Node, at int) {
		all.Go(func() { next[at], errs[at] = n.Enter(t.Context(), Membership{Members: m.Members[2:3]}) })
		known := func(o Member) bool { return o == n.Self() }
		require.Eventually(t, func() bool {
			nodes[1].mu.Lock()
			p := nodes[1].proposal
			nodes[1].mu.Unlock()
			if p == nil {
				return false
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			return slices.ContainsFunc(p.joining[2], known)
		}, time.Minute, time.Millisecond)
	}
	enter(ended, 4)
	require.NoError(t, ended.Close())
	enter(later, 0)
	begin(3)
	all.Wait()
	want := append([]Member{later.Self()}, m.Members[1:]...)
	for rank := range 4 {
		require.NoError(t, errs[rank])
		require.Equal(t, want, next[rank].Members)
	}
	for _, n := range append(nodes[1:], later) {
		require.NoError(t, n.Close())
	}
}

// TestDepartLate closes two of three ranks before their reports that they have left arrive. The
// third rank still counts them as dead, though no end of a process is certain, and does not wait
// for processes in their places.
func TestDepartLate(t *testing.T) {
	nodes, m := open(t, 3, time.Hour)
	last := nodes[1]
	last.cfg.Apart = true
	for _, gone := range []int{0, 2} {
		require.NoError(t, nodes[gone].Close())
	}
	var all sync.WaitGroup
	all.Go(func() {
		next, err := last.Next(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, m.Members[1:2], next.Members)
	})
	require.Eventually(t, func() bool {
		last.mu.Lock()
		p := last.proposal
		last.mu.Unlock()
		if p == nil {
			return false
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.members[0].lost && p.members[2].lost
	}, time.Minute, time.Millisecond)
	for _, gone := range []int{0, 2} {
		last.Depart(m.Members[gone].ID)
	}
	all.Wait()
	require.NoError(t, last.Close())
}
