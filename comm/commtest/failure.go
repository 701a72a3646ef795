package commtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
)

func f32(n int) comm.Buffer { return comm.Of(make([]float32, n)).Named("h.3") }

// eights are counts for a gather of n shards of 8 elements each.
func eights(n int) []int { return slices.Repeat([]int{8}, n) }

// withCount returns counts with another one for rank r.
func withCount(counts []int, r, count int) []int {
	counts[r] = count
	return counts
}

// testInvalid makes a bad call on one rank: it fails there and everywhere.
func (k kit) testInvalid(t *testing.T) {
	n, whole := k.n, f32(8*k.n)
	calls := map[string]func(comm.Group) comm.Work{
		"gather length":      func(g comm.Group) comm.Work { return g.AllGather(f32(8*n+1), f32(8)) },
		"gather types":       func(g comm.Group) comm.Work { return g.AllGather(whole, comm.Of(make([]int32, 8))) },
		"gather overlap":     func(g comm.Group) comm.Work { return g.AllGather(whole, whole.Slice(1, 9)) },
		"scatter length":     func(g comm.Group) comm.Work { return g.ReduceScatter(f32(9), f32(8*n), comm.Sum) },
		"scatter overlap":    func(g comm.Group) comm.Work { return g.ReduceScatter(whole.Slice(1, 9), whole, comm.Sum) },
		"all-to-all length":  func(g comm.Group) comm.Work { return g.AllToAll(f32(8*n+8), f32(8*n)) },
		"all-to-all overlap": func(g comm.Group) comm.Work { return g.AllToAll(whole, whole) },
		"operator":           func(g comm.Group) comm.Work { return g.AllReduce(f32(8), comm.Op(200)) },
		"integer average":    func(g comm.Group) comm.Work { return g.AllReduce(comm.Of(make([]int64, 8)), comm.Avg) },
		"no buffer":          func(g comm.Group) comm.Work { return g.AllReduce(comm.Buffer{}, comm.Sum) },
		"slice bounds":       func(g comm.Group) comm.Work { return g.AllReduce(f32(8).Slice(4, 9), comm.Sum) },
		"root too high":      func(g comm.Group) comm.Work { return g.Broadcast(f32(8), n) },
		"root negative":      func(g comm.Group) comm.Work { return g.Broadcast(f32(8), -1) },

		"gather to root":    func(g comm.Group) comm.Work { return g.Gather(whole, f32(8), eights(n), n) },
		"gather to length":  func(g comm.Group) comm.Work { return g.Gather(f32(8*n+1), f32(8), eights(n), 0) },
		"gather to source":  func(g comm.Group) comm.Work { return g.Gather(whole, f32(7), eights(n), 0) },
		"gather to overlap": func(g comm.Group) comm.Work { return g.Gather(whole, whole.Slice(1, 9), eights(n), 0) },
		"gather to nothing": func(g comm.Group) comm.Work { return g.Gather(comm.Buffer{}, f32(8), eights(n), 0) },
		"gather of counts": func(g comm.Group) comm.Work {
			return g.Gather(whole, f32(8), withCount(eights(n), n-1, math.MaxInt), 0)
		},
		"gather of no count": func(g comm.Group) comm.Work { return g.Gather(whole, f32(8), nil, 0) },
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) { // the same order in all processes
		bad := calls[name]
		t.Run(name, func(t *testing.T) {
			gs := k.group(t)
			call := func(ctx context.Context, g comm.Group) error {
				if g.Rank() == 0 {
					return bad(g).Wait(ctx)
				}
				return g.AllReduce(f32(8), comm.Sum).Wait(ctx)
			}
			blamed(t, gs, each(gs, call), 0, comm.ErrInvalid)
			blamed(t, gs, each(gs, sum), 0, comm.ErrInvalid)
		})
	}
}

// testMismatch makes another call on one rank: the error on every rank names the rank and the call.
func (k kit) testMismatch(t *testing.T) {
	if k.n == 1 {
		return // no rank to disagree with
	}
	type calls = func(comm.Group) []comm.Work
	one := func(f func(comm.Group) comm.Work) calls {
		return func(g comm.Group) []comm.Work { return []comm.Work{f(g)} }
	}
	n := k.n
	gather := func(g comm.Group) comm.Work { return g.AllGather(f32(8*n), f32(8)) }
	scatter := func(g comm.Group) comm.Work { return g.ReduceScatter(f32(8), f32(8*n), comm.Sum) }
	reduce := one(func(g comm.Group) comm.Work { return g.AllReduce(f32(8), comm.Sum) })
	to := func(counts []int, root int, label string) func(comm.Group) comm.Work {
		return func(g comm.Group) comm.Work {
			return g.Gather(f32(total(counts)), f32(counts[g.Rank()]).Named(label), counts, root)
		}
	}
	cases := map[string][2]calls{ // most ranks, the odd one
		"kind":   {one(gather), one(scatter)},
		"type":   {reduce, one(func(g comm.Group) comm.Work { return g.AllReduce(comm.Of(make([]int32, 8)).Named("h.3"), comm.Sum) })},
		"length": {reduce, one(func(g comm.Group) comm.Work { return g.AllReduce(f32(9), comm.Sum) })},
		"op":     {reduce, one(func(g comm.Group) comm.Work { return g.AllReduce(f32(8), comm.Max) })},
		"label":  {reduce, one(func(g comm.Group) comm.Work { return g.AllReduce(f32(8).Named("h.4"), comm.Sum) })},
		"root": {
			one(func(g comm.Group) comm.Work { return g.Broadcast(f32(8), 0) }),
			one(func(g comm.Group) comm.Work { return g.Broadcast(f32(8), 1) }),
		},
		"gather to another root": {one(to(eights(n), 0, "h.3")), one(to(eights(n), 1, "h.3"))},
		"gather by label":        {one(to(eights(n), 0, "h.3")), one(to(eights(n), 0, "h.4"))},
		"gather of counts":       {one(to(eights(n), n-1, "")), one(to(withCount(withCount(eights(n), 0, 7), n-1, 9), n-1, ""))},
		"gather of large counts": {one(to(withCount(eights(n), 0, 5000), 1, "")), one(to(withCount(eights(n), n-1, 5000), 1, ""))},
		"order": {
			func(g comm.Group) []comm.Work { return []comm.Work{gather(g), scatter(g)} },
			func(g comm.Group) []comm.Work { return []comm.Work{scatter(g), gather(g)} },
		},
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		for _, odd := range []int{0, n - 1} {
			t.Run(fmt.Sprintf("%s/rank %d", name, odd), func(t *testing.T) {
				gs := k.group(t)
				errs := each(gs, func(ctx context.Context, g comm.Group) error {
					which := 0
					if g.Rank() == odd {
						which = 1
					}
					return waitAll(ctx, c[which](g))
				})
				if name == "root" || strings.HasPrefix(name, "gather ") { // senders may be done
					errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
				}
				disagreed(t, odd, errs)
				disagreed(t, odd, each(gs, sum))
			})
		}
	}
}

// waitAll waits for all works and returns the first error in their order.
func waitAll(ctx context.Context, works []comm.Work) (first error) {
	for _, w := range works {
		err := w.Wait(ctx)
		if first == nil {
			first = err
		}
	}
	return first
}

// disagreed requires a MismatchError about the odd rank everywhere.
func disagreed(t testing.TB, odd int, errs []error) {
	t.Helper()
	for r, err := range errs { // by rank, of the ranks in this process
		var me *comm.MismatchError
		require.ErrorAsf(t, err, &me, "rank %d", r)
		require.Containsf(t, me.Ranks, odd, "rank %d", r)
		require.Lessf(t, me.Ranks[0], me.Ranks[1], "rank %d", r)
		require.NotEqualf(t, me.Calls[0], me.Calls[1], "rank %d", r)
		require.EqualValuesf(t, 1, me.Seq, "rank %d", r)
		for i := range me.Ranks {
			require.Containsf(t, err.Error(), fmt.Sprintf("rank %d ", me.Ranks[i]), "rank %d", r)
			for word := range strings.FieldsSeq(me.Calls[i]) { // the text may have the common words once
				require.Containsf(t, err.Error(), strings.Trim(word, ","), "rank %d", r)
			}
		}
	}
}

// testAbort aborts under operations that one rank never issues.
func (k kit) testAbort(t *testing.T) {
	gs, cause := k.group(t), errors.New("out of coffee")
	last := k.n - 1
	blamed(t, gs, each(gs, func(ctx context.Context, g comm.Group) error {
		if g.Rank() == last {
			g.Abort(cause)
		}
		return sum(ctx, g)
	}), last, cause)
	onRank(gs, 0, func(g comm.Group) { g.Abort(errors.New("too late")) })
	blamed(t, gs, each(gs, sum), last, cause)
	blamed(t, gs, each(gs, func(ctx context.Context, g comm.Group) error { return g.Barrier(ctx) }), last, cause)
	blamed(t, gs, each(gs, func(ctx context.Context, g comm.Group) error {
		_, err := g.Split(ctx, 0, 0)
		return err
	}), last, cause)
}

// testCancel makes rank 0 give up waiting for a rank that does not come.
func (k kit) testCancel(t *testing.T) {
	if k.n == 1 {
		return // no rank to wait for
	}
	gs, cause := k.group(t), errors.New("deadline of the step")
	last := k.n - 1
	errs := each(gs, func(ctx context.Context, g comm.Group) error {
		if g.Rank() == last { // comes when rank 0 has given up
			if err := k.meet(ctx, last); err != nil {
				return err
			}
			return sum(ctx, g)
		}
		given, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		if g.Rank() == 0 {
			cancel(cause)
		}
		err := sum(given, g)
		return errors.Join(err, k.meet(ctx, g.Rank()))
	})
	// Between processes the news may come after the data that the rank has contributed before it
	// gave up: then the operation is complete elsewhere. The next one is not.
	for i, err := range errs {
		if err != nil || gs[i].Rank() == 0 {
			blamed(t, gs[i:i+1], errs[i:i+1], 0, cause)
		}
	}
	blamed(t, gs, each(gs, sum), 0, cause)
}

// testClose checks the effect of a leaving rank on the operations of the others.
func (k kit) testClose(t *testing.T) {
	last := k.n - 1
	t.Run("fails what needs the rank", func(t *testing.T) {
		gs := k.group(t)
		blamed(t, gs, each(gs, func(ctx context.Context, g comm.Group) error {
			if g.Rank() == last {
				if err := errors.Join(g.Close(), g.Close()); err != nil {
					return err
				}
			}
			return sum(ctx, g)
		}), last, comm.ErrClosed)
	})
	t.Run("completes what all have issued", func(t *testing.T) {
		gs := k.group(t)
		must(t, gs, func(ctx context.Context, g comm.Group) error {
			w, check := step{kind: AllReduce, dtype: comm.Float32, len: 1000, rounded: k.rounded}.issue(g)
			if err := k.meet(ctx, g.Rank()); err != nil {
				return err
			}
			if g.Rank() == last {
				if err := g.Close(); err != nil {
					return err
				}
			}
			if err := w.Wait(ctx); err != nil {
				return err
			}
			return check()
		})
	})
}

// testOrderlyEnd closes right after the last operation, which no rank may miss.
func (k kit) testOrderlyEnd(t *testing.T) {
	for range 20 {
		must(t, k.open(t, k.n), func(ctx context.Context, g comm.Group) error {
			return errors.Join(sum(ctx, g), g.Close())
		})
	}
}
