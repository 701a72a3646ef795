package observe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/commtest"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/fsdp/plan"
	"github.com/gofsdp/gofsdp/fsdp/profile"
	"github.com/gofsdp/gofsdp/internal/perfetto/perfettotest"
	"github.com/gofsdp/gofsdp/optim"
)

// burn is y = x, which takes as many milliseconds as an argument says, and twice that backward.
var burn = &op.Custom{
	Name: "burn", Shapes: "x [... d], ms [1] -> y [... d]", Reads: []string{"ms"},
	Forward: op.Kernel{F64: func(a op.Args[float64]) error {
		burning(1e6 * a.In(1)[0])
		copy(a.Out(0), a.In(0))
		return nil
	}},
	Backward: op.Kernel{F64: func(a op.Args[float64]) error {
		burning(2e6 * a.In(1)[0])
		copy(a.Grad(0), a.DOut())
		clear(a.Grad(1))
		return nil
	}},
}

// burning lets so many nanoseconds pass.
var burning func(ns float64)

// burningModel is a model of layers with calls between that take the time which the batch says.
func burningModel(calls int) kit.Model {
	return func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		burns := &kit.Module{Parameters: nil, Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
			y, err := burn.Apply(in[0], in[1])
			return gorgonia.Nodes{y}, err
		}}
		x := t.Call("in", &nn.Linear{In: 7, Out: 64, Std: 0.4}, in[0])
		for i := range calls {
			x = t.Call("burn."+string(rune('0'+i)), burns, x, in[2+i])
			x = t.Call("linear."+string(rune('0'+i)), &nn.Linear{In: 64, Out: 64, Std: 0.1}, x)
		}
		return kit.Regress(t, in, t.Call("out", &nn.Linear{In: 64, Out: 3, Std: 0.4}, x)), nil
	}
}

// burningBatch is a batch of it.
func burningBatch(seed int, ms ...float64) []fsdp.Tensor {
	batch := kit.ParityModels[0].Batch(seed, 4)
	for _, m := range ms {
		batch = append(batch, tensor.New(tensor.WithShape(1), tensor.WithBacking([]float64{m})))
	}
	return batch
}

// TestStragglers trains where a call, a link, all links or batches are slow, in a time that passes
// only there.
func TestStragglers(t *testing.T) {
	kit.Needs(t, kit.GroupCollectives)
	const ranks, passes = 4, 4
	burning = func(ns float64) { time.Sleep(time.Duration(ns)) }
	for name, c := range map[string]struct {
		ms       func(rank int) []float64
		rest     func(rank int) time.Duration // between passes
		link     func(rank int) float64       // bytes a second
		culprits []int
		cause    profile.Cause
		op       string
	}{
		"even":        {},
		"one call":    {ms: func(r int) []float64 { return map[bool][]float64{true: {8, 12.1}, false: {8, 8}}[r == 3] }, culprits: []int{3}, cause: profile.ThisCall, op: "backward burn.1"},
		"every call":  {ms: func(r int) []float64 { return map[bool][]float64{true: {12, 12}, false: {8, 8}}[r == 1] }, culprits: []int{1}, cause: profile.EveryCall},
		"one link":    {link: func(r int) float64 { return map[bool]float64{true: 1e6, false: 0}[r == 2] }, culprits: []int{2}, cause: profile.SlowLink},
		"every link":  {link: func(int) float64 { return 1e6 }},
		"the batches": {rest: func(r int) time.Duration { return time.Duration(r/3) * 20 * time.Millisecond }, culprits: []int{3}, cause: profile.Elsewhere},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reports := make([]*profile.Report, ranks)
				kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
					if c.link != nil {
						g = commtest.Slow(g, c.link(g.Rank()), 0)
					}
					ms := []float64{8, 8}
					if c.ms != nil {
						ms = c.ms(g.Rank())
					}
					prof := profile.New()
					m := kit.Wrap(t, burningModel(2), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: kit.Float64s, Observers: []fsdp.Observer{fsdp.Profile(prof)}, Strategy: fsdp.FullShard})
					for pass := range passes {
						if c.rest != nil {
							time.Sleep(c.rest(g.Rank()))
						}
						kit.ForwardBackward(t, ctx, m, burningBatch(pass, ms...))
					}
					var err error
					reports[g.Rank()], err = prof.Stragglers(ctx)
					require.NoError(t, err)
					require.NoError(t, m.Close())
				})
				r := reports[0]
				require.Equal(t, c.culprits, r.Culprits, r)
				require.Equal(t, c.cause, r.Cause, r)
				if c.op != "" {
					require.Equal(t, c.op, r.Op)
					require.InDelta(t, 2*12.1e-3, r.Seconds, 1e-6)
					require.InDelta(t, 2*8e-3, r.Median, 1e-6)
				}
				for _, other := range reports {
					require.Equal(t, r, other, "the same on every rank")
				}
				if name == "every link" {
					require.Greater(t, r.Transfers, 0.2, r)
				}
				t.Log(r)
			})
		})
	}
}

// TestProfileFile has a directory for totals, where each rank leaves a file that says what another
// profile says that counts the same passes. A profile is of one model.
func TestProfileFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("FSDP_STRAGGLERS", dir)
	var all []*profile.Totals
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks})
		for pass := range 3 {
			kit.ForwardBackward(t, ctx, m, kit.TinyBatch(pass, g.Rank(), 2, 4))
		}
		require.NoError(t, m.Close())
	})
	files, err := filepath.Glob(filepath.Join(dir, "rank-0.*.json"))
	require.NoError(t, err)
	require.Len(t, files, 2, "both ranks are of this process")
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		totals := new(profile.Totals)
		require.NoError(t, json.Unmarshal(text, totals))
		require.Equal(t, 2, totals.Passes)
		all = append(all, totals)
	}
	r, err := profile.Find(all)
	require.NoError(t, err)
	require.Len(t, r.Ranks, 2)

	prof := profile.New()
	m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Observers: []fsdp.Observer{fsdp.Profile(prof)}})
	_, err = fsdp.Wrap(kit.TinyGPT(1), fsdp.Config{Observers: []fsdp.Observer{fsdp.Profile(prof)}})
	require.ErrorContains(t, err, "Profile of Config.Observers: the profile belongs to another model")
	require.NoError(t, m.Close())
}

// TestBeside trains beside a prediction whose products are a million times too slow: the call with most
// of them is furthest off, and memory is as planned. The predicted pass lies in the trace of the ranks
// where the last one begins.
func TestBeside(t *testing.T) {
	dir := t.TempDir()
	cluster := plan.Clusters()["h100"]
	cluster.Software.Product = 1e-9
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		prof := profile.New()
		m := kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Observers: []fsdp.Observer{fsdp.TraceDir(dir), fsdp.Profile(prof)}, Strategy: fsdp.FullShard})
		opt, err := optim.AdamW{}.New(m.Params())
		require.NoError(t, err)
		batch := kit.TinyBatch(0, g.Rank(), 2, 4)
		for range 4 {
			kit.ForwardBackward(t, ctx, m, batch)
			require.NoError(t, opt.Step(0.1))
			m.ZeroGrad()
		}
		p, err := m.Plan(batch...)
		require.NoError(t, err)
		b, err := prof.Beside(p.Pass, cluster)
		require.NoError(t, err)
		slowest, line := plan.Event{}, p.Pass.Time(cluster, 1)
		for _, e := range line.Events {
			if e.Op >= 0 && e.End-e.Begin > slowest.End-slowest.Begin {
				slowest = e
			}
		}
		require.InDelta(t, slowest.End-slowest.Begin, b.Ops[0].Predicted, 1, b) // it is one of equal blocks
		require.Contains(t, b.Ops[0].Op, "backward ")
		require.Equal(t, b.Memory.Predicted, b.Memory.Measured, "to the byte")
		require.Positive(t, b.Calls.Measured)
		require.Equal(t, 3, b.Passes)
		if g.Rank() == 0 {
			path, err := prof.AddTrace(p.Pass, cluster)
			require.NoError(t, err)
			require.Contains(t, path, ".predicted.pftrace")
		}
		require.NoError(t, m.Close())
	})
	files, err := filepath.Glob(filepath.Join(dir, "rank-*.pftrace"))
	require.NoError(t, err)
	require.Len(t, files, 3)
	var all bytes.Buffer
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		all.Write(text)
	}
	joined := filepath.Join(dir, "joined")
	require.NoError(t, os.WriteFile(joined, all.Bytes(), 0o666))
	rows := make(map[string]*perfettotest.Row)
	for _, row := range perfettotest.Read(t, joined) {
		process, _, _ := strings.Cut(row.Process, ", model") // which is numbered in this process
		rows[process+"/"+row.Name] = row
	}
	real, predicted := rows["rank 0/passes"], rows["rank 0, predicted for h100/compute"]
	require.NotNil(t, rows["rank 1/passes"])
	require.NotNil(t, rows["rank 0, predicted for h100/memory"])
	require.Equal(t, "forward 4", real.Slices[6].Name)
	begin := min(predicted.Slices[0].Begin, rows["rank 0, predicted for h100/communication"].Slices[0].Begin)
	require.Equal(t, real.Slices[6].Begin, begin)
}
