package ranks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peerError stands for another rank's failure.
type peerError struct {
	rank    int
	message string
}

func (e *peerError) Error() string { return fmt.Sprintf("rank %d: %s", e.rank, e.message) }

func newPeerError(rank int, message string) error { return &peerError{rank, message} }

// TestWatchLaterGroups makes groups after a team is watched, as Freeze does: their collectives are
// told of, too.
func TestWatchLaterGroups(t *testing.T) {
	require.NoError(t, comm.Run(t.Context(), 4, func(ctx context.Context, g comm.Group) error {
		own, err := g.Split(ctx, g.Rank()%2, 0)
		require.NoError(t, err)
		team := NewTeam(g, newPeerError)
		var mu sync.Mutex
		told := make(map[string]int)
		require.NoError(t, team.Watch(func(f transport.Flight) {
			mu.Lock()
			defer mu.Unlock()
			told[f.Call]++
		}))
		mesh, err := team.Mesh(ctx, nil, 2, 2)
		require.NoError(t, err)
		_, err = team.Meet(ctx, own)
		require.NoError(t, err)
		labels := []string{"all", "shard", "replica", "own"}
		for i, in := range []comm.Group{g, mesh.Shard, mesh.Replica, own} {
			require.NoError(t, in.AllReduce(comm.Of([]int64{1}).Named(labels[i]), comm.Sum).Wait(ctx))
		}
		require.NoError(t, errors.Join(team.Close(), own.Close()))
		for _, label := range labels {
			require.Equal(t, 1, told[fmt.Sprintf("all-reduce int64[1] sum %q", label)], "%s: %v", label, told)
		}
		return nil
	}))
}

// each runs f as every rank of n and returns their errors.
func each(n int, f func(a *Agreement, rank int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for r, g := range comm.Local(n) {
		all.Go(func() {
			errs[r] = f(NewAgreement(g, newPeerError), r)
		})
	}
	all.Wait()
	return errs
}

// TestAgree draws what ranks ask for and compares with a definition that sees all of it.
func TestAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "ranks")
		asks := make([]Ask, n)
		fails := make([]error, n)
		round, first := rapid.Bool().Draw(t, "round"), rapid.IntRange(0, n-1).Draw(t, "first")
		for r := range asks {
			asks[r] = Ask{
				Call: rapid.SampledFrom([]string{"Forward", "Forward", "Forward", "Eval"}).Draw(t, "call"), Number: 7,
				Schedule: rapid.SampledFrom([]uint64{5, 5, 5, 6}).Draw(t, "schedule"), Absent: rapid.IntRange(0, 3).Draw(t, "absent") == 0,
				Value: float64(rapid.IntRange(0, 9).Draw(t, "value")), Round: round, First: first,
			}
			if rapid.IntRange(0, 9).Draw(t, "fails") == 0 {
				fails[r] = fmt.Errorf("rank %d cannot", r)
			}
		}
		answers := make([]Answer, n)
		errs := each(n, func(a *Agreement, r int) (err error) {
			answers[r], err = a.Agree(context.Background(), &asks[r], fails[r])
			return err
		})
		want, wantErr := define(asks, fails)
		for r := range n {
			if wantErr == "" {
				require.NoError(t, errs[r])
				require.Equal(t, want, answers[r])
				continue
			}
			require.ErrorContains(t, errs[r], wantErr)
			if fails[r] != nil {
				require.ErrorIs(t, errs[r], fails[r])
			}
		}
	})
}

// define says what all ranks get, or what their errors contain.
func define(asks []Ask, fails []error) (ans Answer, text string) {
	for _, err := range fails {
		if err != nil {
			return ans, err.Error()
		}
	}
	ans = Answer{Leader: -1, Known: true}
	for i := range asks {
		if r := (asks[0].First + i) % len(asks); !asks[r].Absent && ans.Leader < 0 {
			ans.Leader = r
		}
	}
	for _, q := range asks {
		ans.Missing = ans.Missing || q.Absent
		ans.Largest = max(ans.Largest, q.Value)
	}
	for r, q := range asks {
		if q.Call != asks[0].Call {
			return ans, fmt.Sprintf("rank 0 runs %s, rank %d runs %s", &asks[0], r, &q)
		}
		ans.Known = ans.Known && q.Schedule == asks[0].Schedule
	}
	for r, q := range asks {
		if lead := ans.Leader; !q.Round && !q.Absent && q.Schedule != asks[lead].Schedule {
			return ans, fmt.Sprintf("rank %d runs %s by schedule %016x, rank %d runs %s by schedule %016x", lead, &asks[lead], asks[lead].Schedule, r, &q, q.Schedule)
		}
	}
	return ans, ""
}

// TestTurns has the ranks of rounds lead in turn: the lowest first, and then the next after the
// last one that has a call. Of the words, the largest count.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		calls []int // that each rank has
		order []int // the leaders, if a round runs the call of its leader only
	}{
		{[]int{2}, []int{0, 0}},
		{[]int{0, 0}, nil},
		{[]int{1, 1, 1}, []int{0, 1, 2}},
		{[]int{3, 1, 2}, []int{0, 1, 2, 0, 2, 0}},
		{[]int{0, 2, 0, 1}, []int{1, 3, 1}},
		{[]int{0, 0, 4}, []int{2, 2, 2, 2}},
		{[]int{1, 0, 0, 3}, []int{0, 3, 3, 3}},
	} {
		var order []int
		n := len(c.calls)
		for first := 0; ; {
			var all [words]int64
			for r, left := range c.calls {
				for i, w := range fill(&Ask{Call: "JoinCalls", Round: true, First: first, Absent: left == 0, Schedule: uint64(r)}, r, n, false) {
					all[i] = max(all[i], w)
				}
			}
			ans := answer(&Ask{First: first}, &all, n)
			require.Equal(t, n == 1, ans.Known)
			if ans.Leader < 0 {
				require.True(t, ans.Missing)
				break
			}
			order = append(order, ans.Leader)
			c.calls[ans.Leader]--
			first = (ans.Leader + 1) % n
		}
		require.Equal(t, c.order, order)
	}
}

// TestExplain has two ranks ask for different things, and reads what both are told.
func TestExplain(t *testing.T) {
	const alike = ": all ranks must make the same calls in the same order, with the same arguments"
	ask := func(call string, loops ...int) Ask { return Ask{Call: call, Number: 8, Loops: loops} }
	round := func(loops ...int) Ask { return Ask{Call: "JoinCalls", Number: 8, Loops: loops, Round: true} }
	backward := ask("Backward")
	backward.Argument, backward.NoSync, backward.Schedule = 3, true, 7
	other := backward
	other.Schedule = 8
	for _, c := range []struct {
		asks [2]Ask
		want string
	}{
		{[2]Ask{ask("Forward"), backward}, "rank 0 runs Forward as call 8, rank 1 runs Backward as call 8 with 3 inside NoSync" + alike},
		{[2]Ask{backward, other}, "rank 0 runs Backward as call 8 with 3 inside NoSync by schedule 0000000000000007, " +
			"rank 1 runs Backward as call 8 with 3 inside NoSync by schedule 0000000000000008" + alike},
		{[2]Ask{ask("Join", 1), ask("Forward")}, "rank 0 runs Join as call 8, rank 1 runs Forward as call 8" + alike},
		{[2]Ask{ask("Join", 1), ask("Join with RefuseUneven", 1)}, "rank 0 runs Join as call 8, rank 1 runs Join with RefuseUneven as call 8" + alike},
		{[2]Ask{ask("Forward", 4), ask("Join", 5)}, "rank 0 runs Forward as call 8, and rank 1 has gone on to the next iteration of Join without it: " +
			"the loop body must make the same calls on every rank: call Forward with the empty batch, too"},
		{[2]Ask{ask("Join", 5), ask("Backward", 4)}, "rank 1 runs Backward as call 8, and rank 0 has gone on to the next iteration of Join without it: " +
			"the loop body must make the same calls on every rank: call Backward there, too"},
		{[2]Ask{ask("Join", 5), ask("Join", 4, 1)}, "rank 1 runs Join as call 8, and rank 0 has gone on to the next iteration of Join without it: " +
			"the loop body must make the same calls on every rank: call Join there, too"},
		{[2]Ask{ask("Join", 5, 3), ask("Eval", 5, 2)}, "rank 1 runs Eval as call 8, and rank 0 has gone on to the next iteration of Join without it: " +
			"the loop body must make the same calls on every rank: call Eval with the empty batch, too"},
		{[2]Ask{ask("Join", 5), round(4)}, "rank 1 runs JoinCalls as call 8, and rank 0 has gone on to the next iteration of Join without it: " +
			"the loop body must make the same calls on every rank: call JoinCalls there, too"},
		{[2]Ask{round(), ask("Save")}, "rank 0 runs JoinCalls as call 8, rank 1 runs Save as call 8" + alike},
		{[2]Ask{ask("Forward", 4), ask("Forward")}, "rank 1 has left the loop of Join and runs Forward as call 8, " +
			"but rank 0 runs Forward as call 8 in iteration 4: leave the loop in the same iteration on every rank"},
		{[2]Ask{ask("Save"), ask("Join", 2)}, "rank 0 has left the loop of Join and runs Save as call 8, " +
			"but rank 1 runs Join as call 8 in iteration 2: leave the loop in the same iteration on every rank"},
		{[2]Ask{ask("Save"), ask("Join", 4, 1)}, "rank 0 has left the loop of Join and runs Save as call 8, " +
			"but rank 1 runs Join as call 8 in iteration 4: leave the loop in the same iteration on every rank"},
		{[2]Ask{ask("Join", 1), ask("Eval", 3, 6)}, "rank 0 has left the loop of Join and runs Join as call 8, " +
			"but rank 1 runs Eval as call 8 in iteration 3: leave the loop in the same iteration on every rank"},
		{[2]Ask{ask("Eval", 3), ask("Eval", 3, 6)}, "rank 0 has left the loop of Join and runs Eval as call 8, " +
			"but rank 1 runs Eval as call 8 in iteration 6: leave the loop in the same iteration on every rank"},
		{[2]Ask{ask("Eval", 3), ask("Eval", 5)}, "rank 0 runs Eval as call 8 in iteration [3] of Join, rank 1 runs Eval as call 8 in iteration [5] of Join" + alike},
	} {
		for _, err := range each(2, func(a *Agreement, r int) error {
			_, err := a.Agree(context.Background(), &c.asks[r], nil)
			return err
		}) {
			require.EqualError(t, err, "ranks disagree: "+c.want)
		}
	}
}

// TestFailuresAreCut cuts a message of two-byte characters where a byte count would split one.
func TestFailuresAreCut(t *testing.T) {
	long := errors.New("x" + strings.Repeat("ä", messageSize))
	errs := each(2, func(a *Agreement, r int) error {
		_, err := a.Agree(context.Background(), &Ask{Call: "Save"}, map[int]error{0: long}[r])
		return err
	})
	require.Equal(t, long, errs[0].(interface{ Unwrap() []error }).Unwrap()[0])
	var peer *peerError
	require.ErrorAs(t, errs[1], &peer)
	require.Equal(t, "x"+strings.Repeat("ä", (messageSize-1)/2)+omission, peer.message)
}

// TestSame compares texts, and names where the first and another differ.
func TestSame(t *testing.T) {
	texts := []string{"a\nb\nc\n", "a\nb\nc\n", "a\nB\nc\n", "a\n"}
	errs := each(4, func(a *Agreement, r int) error { return a.Same(context.Background(), "model", texts[r]) })
	for _, err := range errs {
		require.EqualError(t, err, `ranks disagree about the model: rank 0 has "b", rank 2 has "B": give all ranks the same`)
	}
	for _, err := range each(3, func(a *Agreement, r int) error { return a.Same(context.Background(), "model", texts[0]) }) {
		require.NoError(t, err)
	}
}

// TestSum and the ranks that are missing.
func TestSum(t *testing.T) {
	errs := each(3, func(a *Agreement, r int) error {
		sums := []float64{float64(r), 1}
		if err := a.Sum(context.Background(), sums); err != nil {
			return err
		}
		require.Equal(t, []float64{3, 3}, sums)
		ranks, err := a.Missing(context.Background(), r != 1)
		require.Equal(t, []int{0, 2}, ranks)
		return err
	})
	require.NoError(t, errors.Join(errs...))
}
