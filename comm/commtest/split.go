package commtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

// parents gathers within g the ranks that its members have in the group from which g was split.
func parents(ctx context.Context, g comm.Group, rank int) ([]int64, error) {
	all := make([]int64, g.Size())
	return all, g.AllGather(comm.Of(all), comm.Of([]int64{int64(rank)})).Wait(ctx)
}

// expect splits g and compares the ranks of the new group, in its order.
func expect(ctx context.Context, g comm.Group, color, key int, want []int64) (comm.Group, error) {
	sub, err := g.Split(ctx, color, key)
	if err != nil {
		return nil, err
	}
	got, err := parents(ctx, sub, g.Rank())
	if err != nil {
		return nil, err
	}
	if !slices.Equal(got, want) || got[sub.Rank()] != int64(g.Rank()) {
		return nil, fmt.Errorf("color %d: rank %d of group %v, want group %v", color, sub.Rank(), got, want)
	}
	return sub, nil
}

// testSplit checks membership and order, also of a split group split again.
func (k kit) testSplit(t *testing.T) {
	var even, odd, reversed []int64 // ranks by the order of the keys
	for r := k.n - 1; r >= 0; r-- {
		reversed = append(reversed, int64(r))
	}
	for r := range k.n {
		if r%2 == 0 {
			even = append(even, int64(r))
		} else {
			odd = append(odd, int64(r))
		}
	}
	must(t, k.group(t), func(ctx context.Context, g comm.Group) error {
		parity := [][]int64{even, odd}[g.Rank()%2]
		byParity, err := expect(ctx, g, g.Rank()%2, 0, parity) // equal keys: by rank
		if err != nil {
			return err
		}
		backwards, err := expect(ctx, g, 5, -g.Rank(), reversed)
		if err != nil {
			return err
		}
		alone, err := expect(ctx, byParity, byParity.Rank(), 0, []int64{int64(byParity.Rank())})
		if err != nil {
			return err
		}
		if none, err := g.Split(ctx, -1, 0); none != nil || err != nil {
			return fmt.Errorf("negative color: %v, %w", none, err)
		}
		for _, each := range []comm.Group{backwards, alone, byParity, g} {
			if err := sum(ctx, each); err != nil {
				return err
			}
		}
		return alone.Close()
	})
}

// testSplitLifetime checks which groups failures and closing affect.
func (k kit) testSplitLifetime(t *testing.T) {
	halves := func(t testing.TB, gs []comm.Group) []comm.Group {
		subs := make([]comm.Group, len(gs))
		must(t, gs, func(ctx context.Context, g comm.Group) (err error) {
			subs[slices.Index(gs, g)], err = g.Split(ctx, g.Rank()%2, 0)
			if err != nil {
				return err
			}
			return k.meet(ctx, g.Rank()) // no rank disturbs the parent before all have split it
		})
		return subs
	}
	t.Run("abort of the parent fails the children", func(t *testing.T) {
		gs := k.group(t)
		subs, cause := halves(t, gs), errors.New("parent aborted")
		onRank(gs, 0, func(g comm.Group) { g.Abort(cause) })
		for _, err := range each(gs, sum) { // the news is everywhere when the parent has failed
			require.Error(t, err)
		}
		for i, err := range each(subs, sum) {
			var re *comm.RankError
			require.ErrorAsf(t, err, &re, "rank %d", gs[i].Rank())
			require.Equalf(t, 0, re.Rank, "rank %d", gs[i].Rank())
			require.ErrorContainsf(t, err, cause.Error(), "rank %d", gs[i].Rank())
		}
	})
	t.Run("abort of a parent that a rank has left fails the children", func(t *testing.T) {
		if k.n == 1 {
			return // no rank is left
		}
		gs := k.group(t)
		subs, cause := halves(t, gs), errors.New("deserted parent aborted")
		last, aborter := k.n-1, k.n-2
		onRank(gs, last, func(g comm.Group) { require.NoError(t, g.Close()) })
		for i, err := range each(gs, func(ctx context.Context, g comm.Group) error {
			return errors.Join(sum(ctx, g), k.meet(ctx, g.Rank())) // all ranks have received it
		}) {
			require.ErrorIsf(t, err, comm.ErrClosed, "rank %d", gs[i].Rank())
		}
		onRank(gs, aborter, func(g comm.Group) { g.Abort(cause) })
		for i, err := range each(subs, sum) {
			if gs[i].Rank()%2 == aborter%2 { // the others share a group with the rank that has left
				blamed(t, gs[i:i+1], []error{err}, aborter, cause)
			}
		}
		for i, err := range each(gs, sum) {
			require.ErrorIsf(t, err, comm.ErrClosed, "rank %d: the first error stays", gs[i].Rank())
		}
	})
	t.Run("abort of a child spares the parent", func(t *testing.T) {
		gs := k.group(t)
		subs, cause := halves(t, gs), errors.New("child aborted")
		onRank(gs, 0, func(g comm.Group) {
			sub := subs[slices.Index(gs, g)]
			sub.Abort(cause)
			require.ErrorIs(t, sum(context.Background(), sub), cause)
		})
		must(t, gs, sum)
	})
	t.Run("close of the parent closes this rank's children", func(t *testing.T) {
		gs := k.group(t)
		subs := halves(t, gs)
		onRank(gs, 0, func(g comm.Group) { require.NoError(t, g.Close()) })
		for i, err := range each(subs, sum) {
			if gs[i].Rank()%2 == 0 {
				require.ErrorIsf(t, err, comm.ErrClosed, "rank %d", gs[i].Rank())
			} else {
				require.NoErrorf(t, err, "rank %d shares no group with rank 0", gs[i].Rank())
			}
		}
	})
}
