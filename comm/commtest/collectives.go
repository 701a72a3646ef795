package commtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/comm"
)

var (
	floats = []comm.DType{comm.Float32, comm.Float64, comm.BFloat16, comm.Float16} // have averages
	dtypes = append([]comm.DType{comm.Int32, comm.Int64, comm.Uint8}, floats...)
	ops    = []comm.Op{comm.Sum, comm.Avg, comm.Max, comm.Min}
)

// variants lists every form of every collective with n ranks and shards of size elements. Each form
// has one root. The roots take turns: there are more types and sizes than ranks, so every rank is a
// root.
func variants(n, size int, dtypes []comm.DType, ops []comm.Op) (steps []step) {
	add := func(s step) {
		s.seed = uint64(len(steps)) + uint64(size)<<16
		steps = append(steps, s)
	}
	for i, d := range dtypes {
		add(step{kind: AllToAll, dtype: d, len: size})
		for _, inPlace := range []bool{false, true} {
			add(step{kind: AllGather, dtype: d, len: size, inPlace: inPlace})
			for _, op := range ops {
				if op == comm.Avg && !slices.Contains(floats, d) {
					continue
				}
				add(step{kind: ReduceScatter, dtype: d, op: op, len: size, inPlace: inPlace})
				if inPlace { // its only form
					add(step{kind: AllReduce, dtype: d, op: op, len: size})
				}
			}
		}
		root := (i + size) % n
		add(step{kind: Broadcast, dtype: d, root: root, len: size})
		for _, inPlace := range []bool{false, true} {
			add(step{kind: Gather, dtype: d, root: root, len: size, inPlace: inPlace})
		}
	}
	return steps
}

// variants lists every form for the groups of k.
func (k kit) variants(size int, dtypes []comm.DType, ops []comm.Op) []step {
	steps := variants(k.n, size, dtypes, ops)
	for i := range steps {
		steps[i].rounded = k.rounded
	}
	return steps
}

// testCollectives checks the values of every variant, bit for bit unless k says otherwise.
func (k kit) testCollectives(t *testing.T) {
	var steps []step
	for _, size := range []int{0, 1, 2, 17, 127} {
		steps = append(steps, k.variants(size, dtypes, ops)...)
	}
	// Large enough for backends to cut into pieces, the last one short.
	steps = append(steps, k.variants(1<<16+3, []comm.DType{comm.Float32, comm.Uint8}, ops[:1])...)
	if k.n == 3 {
		steps = append(steps, k.variants(1<<18+3, floats[:1], ops[:1])...)
		steps = append(steps, k.variants(1<<16+3, []comm.DType{comm.BFloat16}, ops[:1])...)
	}
	must(t, k.group(t), func(ctx context.Context, g comm.Group) error {
		for _, s := range steps {
			w, check := s.issue(g)
			if err := w.Wait(ctx); err != nil {
				return fmt.Errorf("%v: %w", s, err)
			}
			if err := check(); err != nil {
				return err
			}
		}
		return nil
	})
}

// testInFlight has many operations in progress, waited for in another order on every rank, and
// twice.
func (k kit) testInFlight(t *testing.T) {
	steps := append(k.variants(3, dtypes, ops), k.variants(4099, floats[:1], ops)...)
	must(t, k.group(t), func(ctx context.Context, g comm.Group) error {
		order := rand.New(rand.NewPCG(1, uint64(g.Rank()))).Perm(len(steps))
		return runSteps(ctx, g, steps, order)
	})
}

// runSteps issues steps, waits for them in the given order, and checks them.
func runSteps(ctx context.Context, g comm.Group, steps []step, order []int) error {
	works, checks := make([]comm.Work, len(steps)), make([]func() error, len(steps))
	for i, s := range steps {
		works[i], checks[i] = s.issue(g)
	}
	for _, i := range order {
		if err := works[i].Wait(ctx); err != nil {
			return fmt.Errorf("%v: %w", steps[i], err)
		}
		if err := checks[i](); err != nil {
			return err
		}
	}
	for i, w := range works {
		if err := w.Wait(ctx); err != nil {
			return fmt.Errorf("second wait for %v: %w", steps[i], err)
		}
	}
	return nil
}

// testBarrier checks that no rank leaves a barrier before every rank has come. A rank writes its
// cell before and reads all others after: the race detector checks the rest.
func (k kit) testBarrier(t *testing.T) {
	const rounds = 50
	cells, here := make([]int, k.n), make([]bool, k.n)
	gs := k.group(t)
	for _, g := range gs {
		here[g.Rank()] = true
	}
	must(t, gs, func(ctx context.Context, g comm.Group) error {
		for round := range rounds {
			cells[g.Rank()] = round
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			for r, c := range cells {
				if here[r] && c != round {
					return fmt.Errorf("round %d: rank %d is in round %d", round, r, c)
				}
			}
			if err := g.Barrier(ctx); err != nil { // before any rank writes again
				return err
			}
		}
		return nil
	})
}
