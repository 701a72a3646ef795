package parity_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/internal/mapped"
)

// A deal is what the ranks of a workload do in JoinCalls, under a set of knobs.
type deal struct {
	workload
	Knobs knobSet
	Calls [][]string // by rank
}

func drawDeal(t *rapid.T, dir string) *deal {
	d := &deal{workload: drawWorkload(t)}
	if rapid.Bool().Draw(t, "statistics") {
		d.ParityModel = kit.ParityModel{Name: "statistics", Model: kit.Statistics, Typed: fsdp.WrapEach(), Batch: kit.ParityModels[2].Batch}
	}
	d.divide = rapid.SampledFrom([]fsdp.GradAverage{fsdp.ByRanks, fsdp.ByOne}).Draw(t, "divide evenly")
	d.Knobs = d.drawKnobs(t, "", dir)
	for range d.world {
		d.Calls = append(d.Calls, rapid.SliceOfN(rapid.SampledFrom([]string{"eval", "train", "train", "quiet", "drop"}), 0, 4).Draw(t, "calls"))
	}
	return d
}

// wrap wraps the model on a rank.
func (d *deal) wrap(t require.TestingT, g comm.Group) *fsdp.Sharded {
	cfg := d.Knobs.config
	cfg.Group = g
	if d.Knobs.allocate {
		cfg.Group = kit.NewMemoryGroup(g)
	}
	p := d.precision
	cfg.Precision = fsdp.Precision{Compute: p.Compute, Gather: p.Gather, Reduce: p.Reduce, Full: travelsFull}
	cfg.GradAverage, cfg.Frozen, cfg.Seed = d.divide, d.frozen, uint64(d.seed)
	return kit.Wrap(t, d.Model, cfg)
}

// do makes one call and returns what it sees.
func do(ctx context.Context, m *fsdp.Sharded, call string, batch []fsdp.Tensor) (seen []float64, err error) {
	if call == "eval" {
		out, err := m.Eval(ctx, batch...)
		for _, v := range out {
			seen = append(seen, kit.Elements(v)...)
		}
		return seen, err
	}
	step := func() error {
		loss, err := m.Forward(ctx, batch...)
		seen = []float64{loss}
		if err == nil && call != "drop" {
			err = m.Backward(ctx, fsdp.Scale(0.5))
		}
		return err
	}
	if call == "quiet" {
		err = m.NoSync(step)
	} else {
		err = step()
	}
	return seen, err
}

func (d *deal) batchOf(rank, i int) []fsdp.Tensor {
	return kit.InType(d.Batch(2*(10*i+rank), 1+kit.U24(i, rank)%3), d.precision.Compute)
}

// end returns the gradients and this rank's buffers.
func (d *deal) end(t require.TestingT, ctx context.Context, m *fsdp.Sharded) (kit.Record, kit.Bits) {
	require.NoError(t, m.SyncGrads(ctx))
	kit.RequireIdle(t, ctx, m, kit.InType(d.Batch(0, 1), d.precision.Compute))
	grads, err := m.FullGrads(ctx)
	require.NoError(t, err)
	rec := kit.Record{}
	for name, g := range grads {
		rec[name] = kit.Elements(g)
	}
	own, err := kit.OwnState(ctx, m)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	return rec, kit.BitsOf(own)
}

func (d *deal) check(t require.TestingT) {
	kit.OnRanks(t, d.world, func(ctx context.Context, g comm.Group) {
		m := d.wrap(t, g)
		var got [][]float64
		require.NoError(t, m.JoinCalls(ctx, func() error {
			for i, call := range d.Calls[g.Rank()] {
				seen, err := do(ctx, m, call, d.batchOf(g.Rank(), i))
				if err != nil {
					return err
				}
				got = append(got, seen)
			}
			return nil
		}))
		grads, own := d.end(t, ctx, m)

		sum, want := kit.Record{}, [][]float64(nil)
		for r, calls := range d.Calls {
			one, i := d.wrap(t, g), 0
			var seen [][]float64
			for batch, err := range one.Join(ctx, func(yield func([]fsdp.Tensor, error) bool) {
				for i := range calls {
					if r != g.Rank() || !yield(d.batchOf(r, i), nil) {
						return
					}
				}
			}) {
				require.NoError(t, err)
				what, err := do(ctx, one, calls[i], batch)
				require.NoError(t, err)
				seen = append(seen, what)
				i++
			}
			part, ownAlone := d.end(t, ctx, one)
			kit.AddTo(sum, part, 1)
			if r == g.Rank() {
				want = seen
				kit.RequireSameBits(t, ownAlone, own)
			}
		}
		require.Equal(t, want, got)
		require.Len(t, grads, len(sum))
		if d.precision.Tolerance == 0 {
			return
		}
		for name, w := range sum {
			most := 0.0
			for _, x := range w {
				most = max(most, math.Abs(x))
			}
			for i, x := range w {
				require.InDelta(t, x, grads[name][i], 20*d.precision.Tolerance*max(most, 1e-3), "%s", name)
			}
		}
	})
}

// TestJoinCallsLikeAlone compares the calls of all ranks in JoinCalls with those of one rank after the
// other, over Join in a model of its own: what each rank sees, with dropout, and its statistics have
// the same bits, and gradients the same sums. Precision, strategy, files, what is frozen and what is
// computed again are drawn.
func TestJoinCallsLikeAlone(t *testing.T) {
	dir := t.TempDir()
	if files, err := mapped.Open(dir); errors.Is(err, mapped.ErrUnsupported) {
		dir = ""
	} else {
		require.NoError(t, err)
		require.NoError(t, files.Close())
	}
	rapid.Check(t, func(t *rapid.T) { drawDeal(t, dir).check(t) })
}
