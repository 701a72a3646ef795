package commtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
)

// trouble is the action of one rank in place of one step of a random program.
type trouble struct {
	kind string // "" for none
	rank int
	at   int // index of the step
}

// testRandom runs random programs, half of them with trouble on the way. Without trouble, every
// value is right. With trouble, every operation from there on fails on every rank, except for
// broadcasts and gathers, which do not need all ranks, and no rank hangs.
func (k kit) testRandom(t *testing.T) {
	kinds := []string{"", "mismatch", "invalid", "abort", "cancel", "close"}
	if k.n == 1 {
		kinds = []string{"", "invalid", "abort", "close"}
	}
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(stepOf(k.n), 1, 12).Draw(rt, "steps")
		for i := range steps {
			steps[i].seed, steps[i].rounded = uint64(i), k.rounded
		}
		index := make([]int, len(steps))
		for i := range index {
			index[i] = i
		}
		orders := make([][]int, k.n)
		for r := range orders {
			orders[r] = rapid.Permutation(index).Draw(rt, "order of waiting")
		}
		x := trouble{
			kind: rapid.OneOf(rapid.Just(""), rapid.SampledFrom(kinds)).Draw(rt, "trouble"),
			rank: rapid.IntRange(0, k.n-1).Draw(rt, "rank"),
			at:   rapid.IntRange(0, len(steps)-1).Draw(rt, "at"),
		}
		gs := k.open(t, k.n)
		must(rt, gs, func(ctx context.Context, g comm.Group) error {
			if x.kind == "" {
				return runSteps(ctx, g, steps, orders[g.Rank()])
			}
			return x.run(ctx, g, steps, orders[g.Rank()])
		})
		closeAll(rt, gs)
	})
}

func stepOf(n int) *rapid.Generator[step] {
	return rapid.Custom(func(t *rapid.T) step {
		s := step{
			kind:    rapid.SampledFrom([]string{AllGather, ReduceScatter, AllReduce, Broadcast, Gather, AllToAll}).Draw(t, "kind"),
			dtype:   rapid.SampledFrom(dtypes).Draw(t, "type"),
			len:     rapid.IntRange(0, 300).Draw(t, "len"),
			inPlace: rapid.Bool().Draw(t, "in place"),
		}
		switch s.kind {
		case Broadcast, Gather:
			s.root = rapid.IntRange(0, n-1).Draw(t, "root")
		case ReduceScatter, AllReduce:
			s.op = rapid.SampledFrom(ops).Draw(t, "op")
			if s.op == comm.Avg && !slices.Contains(floats, s.dtype) {
				s.dtype = comm.Float64
			}
		}
		return s
	})
}

// run is the program of one rank, in which trouble x occurs.
func (x trouble) run(ctx context.Context, g comm.Group, steps []step, order []int) error {
	culprit := g.Rank() == x.rank
	works := make([]comm.Work, len(steps))
	for i, s := range steps {
		if culprit && i == x.at {
			works[i] = x.cause(ctx, g)
			continue
		}
		works[i], _ = s.issue(g)
	}
	for _, i := range order {
		kind := steps[i].kind
		if culprit && i == x.at {
			kind = Broadcast // see cause
		}
		if err := x.consequence(i, works[i].Wait(ctx), kind); err != nil {
			return err
		}
	}
	return x.consequence(len(steps), g.Barrier(ctx), Barrier)
}

// consequence checks the error of step i, of the given kind.
func (x trouble) consequence(i int, err error, kind string) error {
	var re *comm.RankError
	var me *comm.MismatchError
	switch {
	case err == nil && i >= x.at && kind != Broadcast && kind != Gather:
		return fmt.Errorf("step %d succeeded after %s on rank %d at %d", i, x.kind, x.rank, x.at)
	case err == nil:
	case x.kind != "mismatch" && errors.As(err, &re):
	case (x.kind == "mismatch" || x.kind == "cancel") && errors.As(err, &me):
	default:
		return fmt.Errorf("step %d: after %s: %w", i, x.kind, err)
	}
	return nil
}

// cause makes the trouble in place of a step.
func (x trouble) cause(ctx context.Context, g comm.Group) comm.Work {
	odd := comm.Of(make([]float32, 4)).Named("odd one out")
	switch x.kind {
	case "invalid":
		return g.Broadcast(odd, g.Size())
	case "abort":
		g.Abort(errors.New("trouble"))
	case "close":
		g.Close()
	case "cancel":
		given, cancel := context.WithCancel(ctx)
		cancel()
		w := g.Broadcast(odd, 0)
		// On other ranks this step has another label: whether they notice the difference or this
		// rank gives up first, the operation fails.
		w.Wait(given)
		return w
	}
	return g.Broadcast(odd, 0)
}
