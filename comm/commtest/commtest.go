// Package commtest is the contract of [comm.Group] as tests, and a wrapper that
// injects faults.
//
// A backend passes the contract with one call:
//
//	func TestContract(t *testing.T) {
//		commtest.TestGroup(t, func(t testing.TB, n int) []comm.Group { return comm.Local(n) })
//	}
//
// The kit checks values bit for bit against naive references, in every element
// type, operator and in-place variant, and for every way in which ranks can
// disagree or disappear that every rank gets an error that names the culprit.
// It uses nothing but the interface, so the ranks it drives may live anywhere.
package commtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/comm"
)

// patience is how long the kit lets an operation wait. It is no part of the
// contract: it turns a backend that hangs into one that fails.
const patience = time.Minute

// TestGroup checks groups of 1, 2, 3, 4, 5 and 8 ranks. open returns the handles
// of a fresh group of n ranks, element r for rank r; the kit closes them and then
// looks for goroutines left behind, so tests that call TestGroup must not run in
// parallel with others.
func TestGroup(t *testing.T, open func(t testing.TB, n int) []comm.Group) {
	before := goleak.IgnoreCurrent()
	for _, n := range []int{1, 2, 3, 4, 5, 8} {
		k := kit{n, open}
		t.Run(fmt.Sprintf("n=%d", n), func(t *testing.T) {
			t.Run("Handles", k.testHandles)
			t.Run("Collectives", k.testCollectives)
			t.Run("InFlight", k.testInFlight)
			t.Run("Barrier", k.testBarrier)
			t.Run("Split", k.testSplit)
			t.Run("SplitLifetime", k.testSplitLifetime)
			t.Run("Invalid", k.testInvalid)
			t.Run("Mismatch", k.testMismatch)
			t.Run("Abort", k.testAbort)
			t.Run("Cancel", k.testCancel)
			t.Run("Close", k.testClose)
			t.Run("OrderlyEnd", k.testOrderlyEnd)
			t.Run("Random", k.testRandom)
		})
	}
	goleak.VerifyNone(t, before)
}

// kit is the contract for groups of n ranks.
type kit struct {
	n    int
	open func(t testing.TB, n int) []comm.Group
}

// group opens a group that is closed when the test ends.
func (k kit) group(t testing.TB) []comm.Group {
	gs := k.open(t, k.n)
	require.Len(t, gs, k.n)
	t.Cleanup(func() { closeAll(t, gs) })
	return gs
}

// tester is what testing.TB and rapid.T have in common.
type tester interface {
	require.TestingT
	Helper()
}

func closeAll(t tester, gs []comm.Group) {
	t.Helper()
	must(t, gs, func(_ context.Context, g comm.Group) error { return g.Close() })
}

// each calls f as every rank at once and returns the errors by rank.
func each(gs []comm.Group, f func(context.Context, comm.Group) error) []error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("commtest: out of patience"))
	defer cancel()
	errs := make([]error, len(gs))
	var ranks sync.WaitGroup
	for r, g := range gs {
		ranks.Go(func() { errs[r] = f(ctx, g) })
	}
	ranks.Wait()
	return errs
}

// must calls f as every rank at once and fails the test with the first error,
// which ends the context of all ranks.
func must(t tester, gs []comm.Group, f func(context.Context, comm.Group) error) {
	t.Helper()
	stopped, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	each(gs, func(ctx context.Context, g comm.Group) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(stopped, cancel)()
		if err := f(ctx, g); err != nil {
			stop(fmt.Errorf("rank %d: %w", g.Rank(), err))
		}
		return nil
	})
	require.NoError(t, context.Cause(stopped))
}

// blamed requires that every rank failed because of the given one, with cause.
func blamed(t testing.TB, errs []error, rank int, cause error) {
	t.Helper()
	for r, err := range errs {
		var re *comm.RankError
		require.ErrorAsf(t, err, &re, "rank %d", r)
		require.Equalf(t, rank, re.Rank, "rank %d: %v", r, err)
		require.ErrorIsf(t, err, cause, "rank %d", r)
		require.Containsf(t, err.Error(), fmt.Sprintf("rank %d", rank), "rank %d", r)
	}
}

// sum is an ordinary collective, for tests that only care whether it works.
func sum(ctx context.Context, g comm.Group) error {
	x := []float32{float32(g.Rank() + 1)}
	if err := g.AllReduce(comm.Of(x), comm.Sum).Wait(ctx); err != nil {
		return err
	}
	if want := float32(g.Size() * (g.Size() + 1) / 2); x[0] != want {
		return fmt.Errorf("sum of ranks: %v, want %v", x[0], want)
	}
	return nil
}

func (k kit) testHandles(t *testing.T) {
	for r, g := range k.group(t) {
		require.Equal(t, r, g.Rank())
		require.Equal(t, k.n, g.Size())
	}
}
