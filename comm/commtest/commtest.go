// Package commtest contains the contract of [comm.Group] as tests, and a wrapper
// that injects faults.
//
// A backend passes the contract with one call:
//
//	func TestContract(t *testing.T) {
//		commtest.TestGroup(t, func(t testing.TB, n int) []comm.Group { return comm.Local(n) })
//	}
//
// A backend whose ranks are processes started elsewhere passes it with [TestRank],
// called by every process.
//
// The kit checks values bit for bit against naive references, in every element type,
// operator and in-place variant. For every way in which ranks can disagree or
// disappear, it checks that every rank gets an error that names the culprit. Groups
// that sum floats in another order than the canonical one, as on GPUs, declare it by
// a [Contract].
//
// It uses only the interface, so the ranks it drives may be anywhere.
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

// patience is how long the kit lets an operation wait. It is not part of the
// contract: it turns a backend that hangs into one that fails.
const patience = 4 * time.Minute

// Contract selects the rules that groups must keep. The zero value is all of them.
type Contract struct {
	// Sizes are the numbers of ranks that [Contract.Test] tries; nil means 1 to 8.
	Sizes []int
	// Rounded allows sums and averages of floats that follow another order than the
	// canonical one, or are rounded at every step. They must be within the error
	// bound of any order. Max and Min may be anything if a rank has NaN.
	Rounded bool
}

// Test is [TestGroup] for this contract.
func (c Contract) Test(t *testing.T, open func(t testing.TB, n int) []comm.Group, then ...func()) {
	before := goleak.IgnoreCurrent()
	sizes := c.Sizes
	if sizes == nil {
		sizes = []int{1, 2, 3, 4, 5, 6, 7, 8}
	}
	for _, n := range sizes {
		meeting := comm.Local(n)
		meet := func(ctx context.Context, rank int) error { return meeting[rank].Barrier(ctx) }
		k := kit{n, c.Rounded, open, meet}
		t.Run(fmt.Sprintf("n=%d", n), k.run)
	}
	for _, f := range then {
		f()
	}
	goleak.VerifyNone(t, before)
}

// TestRank is the function [TestRank] for this contract.
func (c Contract) TestRank(t *testing.T, world comm.Group) {
	open := func(t testing.TB, _ int) []comm.Group {
		ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errOutOfPatience)
		defer cancel()
		g, err := world.Split(ctx, 0, world.Rank())
		require.NoError(t, err)
		return []comm.Group{g}
	}
	k := kit{world.Size(), c.Rounded, open, func(ctx context.Context, _ int) error { return world.Barrier(ctx) }}
	t.Run(fmt.Sprintf("n=%d/rank %d", k.n, world.Rank()), k.run)
}

// TestGroup checks groups of 1 to 8 ranks. open returns the handles of a fresh group
// of n ranks, element r for rank r, and the kit closes them. In the end it calls the
// functions in then and checks for leaked goroutines, so tests that call TestGroup
// must not run in parallel with others.
func TestGroup(t *testing.T, open func(t testing.TB, n int) []comm.Group, then ...func()) {
	Contract{}.Test(t, open, then...)
}

// TestRank checks groups of as many ranks as world has, each of which calls
// TestRank with its own handle, in its own process. The groups are split from
// world, which is still good to use when TestRank returns, unless a test failed.
// Property tests must draw the same cases in all processes: set RAPID_SEED.
func TestRank(t *testing.T, world comm.Group) { Contract{}.TestRank(t, world) }

// kit is the contract for groups of n ranks.
type kit struct {
	n       int
	rounded bool
	// open returns the handles of a fresh group that live in this process, in
	// the order of their ranks.
	open func(t testing.TB, n int) []comm.Group
	// meet returns when all ranks have called it. It uses no group under test.
	meet func(ctx context.Context, rank int) error
}

func (k kit) run(t *testing.T) {
	t.Run("Handles", k.testHandles)
	t.Run("Collectives", k.testCollectives)
	t.Run("InFlight", k.testInFlight)
	t.Run("Watch", k.testWatch)
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
}

// group opens a group that is closed when the test ends.
func (k kit) group(t testing.TB) []comm.Group {
	gs := k.open(t, k.n)
	require.NotEmpty(t, gs)
	t.Cleanup(func() { closeAll(t, gs) })
	return gs
}

var errOutOfPatience = errors.New("commtest: timed out")

// tester is the common part of testing.TB and rapid.T.
type tester interface {
	require.TestingT
	Helper()
}

func closeAll(t tester, gs []comm.Group) {
	t.Helper()
	must(t, gs, func(_ context.Context, g comm.Group) error { return g.Close() })
}

// each calls f as every rank of this process at once and returns the errors in
// the order of gs.
func each(gs []comm.Group, f func(context.Context, comm.Group) error) []error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errOutOfPatience)
	defer cancel()
	errs := make([]error, len(gs))
	var ranks sync.WaitGroup
	for i, g := range gs {
		ranks.Go(func() { errs[i] = f(ctx, g) })
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

// blamed requires that all of gs failed with cause because of the given rank. On that rank,
// errors.Is must find cause itself. On other ranks it must find the package's own errors, and the
// text must contain the text of cause.
func blamed(t testing.TB, gs []comm.Group, errs []error, rank int, cause error) {
	t.Helper()
	for i, err := range errs {
		var re *comm.RankError
		require.ErrorAsf(t, err, &re, "rank %d", gs[i].Rank())
		require.Equalf(t, rank, re.Rank, "rank %d: %v", gs[i].Rank(), err)
		if gs[i].Rank() == rank || cause == comm.ErrClosed || cause == comm.ErrInvalid {
			require.ErrorIsf(t, err, cause, "rank %d", gs[i].Rank())
		}
		require.Containsf(t, err.Error(), cause.Error(), "rank %d", gs[i].Rank())
		require.Containsf(t, err.Error(), fmt.Sprintf("rank %d", rank), "rank %d", gs[i].Rank())
	}
}

// onRank calls f with the handle of rank, if it is in this process.
func onRank(gs []comm.Group, rank int, f func(comm.Group)) {
	for _, g := range gs {
		if g.Rank() == rank {
			f(g)
		}
	}
}

// sum is an ordinary collective, for tests that only check whether it works.
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
	gs := k.group(t)
	for i, g := range gs {
		require.Equal(t, k.n, g.Size())
		if len(gs) == k.n {
			require.Equal(t, i, g.Rank())
		}
	}
}
