package transport

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// questioned is a stage whose ranks can be asked what they are doing.
type questioned struct {
	*stage
	asked func(context.Context) ([]Status, error)
}

func (q questioned) Report(ctx context.Context) ([]Status, error) { return q.asked(ctx) }

// afterTimeout returns what rank 0 of three tells the others when collective #2 has made
// no progress, and what it is told itself.
func afterTimeout(t *testing.T, effect error, asked func(context.Context, *Serial) ([]Status, error)) (told []error, err error) {
	synctest.Test(t, func(t *testing.T) {
		s, b := staged()
		defer s.Close()
		s.backend = questioned{b, func(ctx context.Context) ([]Status, error) { return asked(ctx, s) }}
		first, second := waiting(t.Context(), reduce(s)), waiting(t.Context(), reduce(s))
		b.results <- nil
		require.NoError(t, <-first)
		b.results <- effect
		err = <-second
		told = b.told
	})
	return told, err
}

// TestSerialNamesStraggler asks ranks that answer this and that: in the end one is blamed,
// and its flight record says why.
func TestSerialNamesStraggler(t *testing.T) {
	const waited = `comm: rank %d of group "g": rank 0 waited for ranks [%d] in all-reduce #2 "h.3": no progress`
	all := func(ranks ...Status) []Status { return append([]Status{{Issued: 2}}, ranks...) }
	for name, c := range map[string]struct {
		ranks  []Status
		effect error
		want   string
	}{
		"that one": {all(Status{Rank: 1, Issued: 1, Completed: 1}, Status{Rank: 2, Issued: 2}), ErrTimeout,
			fmt.Sprintf(waited, 1, 1) + "; rank 1: 1 of 1 collectives complete"},
		"another is behind": {all(Status{Rank: 1, Issued: 2}, Status{Rank: 2, Issued: 1}), ErrTimeout,
			fmt.Sprintf(waited, 2, 1) + "; rank 2: 0 of 1 collectives complete"},
		"the last": {all(Status{Rank: 1, Issued: 1}, Status{Rank: 2}), ErrTimeout,
			fmt.Sprintf(waited, 2, 1) + "; rank 2: 0 of 0 collectives complete"},
		"both": {all(Status{Rank: 1}, Status{Rank: 2}), ErrTimeout,
			fmt.Sprintf(waited, 1, 1) + "; rank 1: 0 of 0 collectives complete"},
		"nobody": {all(Status{Rank: 1, Issued: 3}, Status{Rank: 2, Issued: 2}), ErrTimeout,
			fmt.Sprintf(waited, 1, 1) + "; rank 1: 0 of 3 collectives complete"},
		"another is silent": {all(Status{Rank: 1}, Status{Rank: 2, Err: "does not answer"}), ErrTimeout,
			fmt.Sprintf(waited, 2, 1) + "; rank 2: does not answer"},
		"another is not here": {all(Status{Rank: 1}, Status{Rank: 2, Err: NotHere}), ErrTimeout,
			fmt.Sprintf(waited, 2, 1) + "; rank 2: has not made the group yet"},
		"another is silent, one not here": {all(Status{Rank: 1, Err: NotHere}, Status{Rank: 2, Err: "does not answer"}), ErrTimeout,
			fmt.Sprintf(waited, 2, 1) + "; rank 2: does not answer"},
		"one has left": {all(Status{Rank: 1, Err: HasLeft}, Status{Rank: 2, Issued: 1}), ErrTimeout,
			fmt.Sprintf(waited, 2, 1) + "; rank 2: 0 of 1 collectives complete"},
		"of a part": {all(Status{Rank: 1, Issued: 2}, Status{Rank: 2, Issued: 2}), &RankError{"g", 2, ErrTimeout},
			fmt.Sprintf(waited, 2, 2) + "; rank 2: 0 of 2 collectives complete"},
		"who cannot be asked": {nil, ErrTimeout, fmt.Sprintf(waited, 1, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			told, err := afterTimeout(t, c.effect, func(context.Context, *Serial) ([]Status, error) {
				if c.ranks == nil {
					return nil, errors.New("no news")
				}
				return c.ranks, nil
			})
			require.EqualError(t, err, c.want)
			require.ErrorIs(t, err, ErrTimeout)
			require.Equal(t, []error{err}, told)
		})
	}
}

// TestSerialTakesReasonOfOthers has another rank blame one while this one asks.
func TestSerialTakesReasonOfOthers(t *testing.T) {
	verdict := &RankError{"g", 2, ErrTimeout}
	begin := time.Now()
	told, err := afterTimeout(t, ErrTimeout, func(ctx context.Context, s *Serial) ([]Status, error) {
		begin = time.Now()
		s.Failed(verdict)
		<-ctx.Done() // one does not answer
		require.Equal(t, patience, time.Since(begin))
		return []Status{{}, {Rank: 1, Err: "does not answer"}, {Rank: 2}}, nil
	})
	require.Equal(t, verdict, err)
	require.Empty(t, told)
}

// TestSerialLeavesAskingToOne has a rank run out of time that has just been asked what it does: it
// takes what comes of that, and asks only where nothing does.
func TestSerialLeavesAskingToOne(t *testing.T) {
	verdict := &RankError{"g", 2, ErrTimeout}
	for _, comes := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s, b := staged()
			defer s.Close()
			asked, begin := time.Duration(0), time.Now()
			s.backend = questioned{b, func(context.Context) ([]Status, error) {
				asked = time.Since(begin)
				return nil, errors.New("no news")
			}}
			done := waiting(t.Context(), reduce(s))
			s.Status()
			b.results <- ErrTimeout
			if comes {
				time.Sleep(patience)
				s.Failed(verdict)
				require.Equal(t, error(verdict), <-done)
				require.Zero(t, asked)
				return
			}
			require.ErrorContains(t, <-done, "rank 0 waited for ranks [1]")
			require.Equal(t, 2*patience, asked)
		})
	}
}

func TestSplitError(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"of the child": {fmt.Errorf("joining: %w", &RankError{"world/7/1", 1, ErrLost}),
			`comm: rank 4 of group "world/7": making group 1 of split #3: process lost`},
		"closed meanwhile":   {&RankError{"world/7/1", 1, ErrClosed}, `comm: rank 4 of group "world/7": group closed`}, // as others hear from the group
		"of the group":       {&RankError{"world/7", 2, errFull}, `comm: rank 2 of group "world/7": ` + errFull.Error()},
		"of the first group": {&RankError{"world", 5, errFull}, `comm: rank 5 of group "world": ` + errFull.Error()},
		"of no rank":         {errFull, `comm: rank 0 of group "world/7": making group 1 of split #3: ` + errFull.Error()},
		"of nonsense": {&RankError{"world/7/1", 9, errFull},
			`comm: rank 0 of group "world/7": making group 1 of split #3: comm: rank 9 of group "world/7/1": ` + errFull.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			require.EqualError(t, SplitError("world/7", 0, 3, 1, []int{0, 4}, c.err), c.want)
		})
	}
}
