package faults_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// What fails or is refused leaves nothing behind: no collective that still writes to memory which
// is given back, no rank that waits for another, and no value that has changed on some ranks.

// TestCloseAfterTheGroup pulls the cable while gathers for a backward are in flight, and lets every
// kind of method find out. Close then waits for all of them.
func TestCloseAfterTheGroup(t *testing.T) {
	pulled := errors.New("cable pulled")
	discard := func(ctx context.Context, m *fsdp.Sharded) error {
		err := m.Hold().Discard(ctx)
		if err == nil && !kit.GroupsCarryPasses { // it has not waited for the gathers
			return m.SyncGrads(ctx)
		}
		return err
	}
	for name, find := range map[string]func(ctx context.Context, m *fsdp.Sharded, batch []fsdp.Tensor) error{
		"Forward": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error {
			_, err := m.Forward(ctx, b...)
			return err
		},
		"Backward": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error { return m.Backward(ctx) },
		"Backward of a held pass": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error {
			return m.Hold().Backward(ctx)
		},
		"Discard": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error { return discard(ctx, m) },
		"Eval after Discard": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error {
			require.ErrorIs(t, discard(ctx, m), pulled)
			_, err := m.Eval(ctx, b...)
			return err
		},
		"Discard after Eval": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error {
			held := m.Hold()
			_, err := m.Eval(ctx, b...)
			require.NoError(t, held.Discard(ctx), "there is nobody to tell any more")
			return err
		},
		"LoadStateDict": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error { return m.LoadStateDict(ctx, 0, nil) },
		"Freeze": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error {
			_, err := m.Freeze(ctx, nil, nil)
			return err
		},
		"SyncGrads": func(ctx context.Context, m *fsdp.Sharded, b []fsdp.Tensor) error { return m.SyncGrads(ctx) },
		"Close":     func(context.Context, *fsdp.Sharded, []fsdp.Tensor) error { return pulled },
	} {
		for _, dir := range kit.Memories(t) {
			t.Run(fmt.Sprintf("%s/files %t", name, dir != ""), func(t *testing.T) {
				kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
					strict := kit.NewStrictGroup(g)
					m := kit.Wrap(t, kit.TinyGPT(6), fsdp.Config{Group: strict, WrapPolicy: kit.Blocks, Prefetch: 4, Offload: fsdp.Offload{Dir: dir}})
					batch := kit.TinyBatch(0, g.Rank(), 2, 5)
					_, err := m.Forward(ctx, batch...)
					require.NoError(t, err)
					if kit.GroupsCarryPasses {
						require.Greater(t, strict.Book.Open, 1, "gathers for the backward")
					}
					require.NoError(t, g.Barrier(ctx))
					strict.Book.Fault = pulled // also of those that have arrived in time
					g.Abort(pulled)
					require.ErrorIs(t, find(ctx, m, batch), pulled)
					err = m.Close()
					if !kit.GroupsCarryPasses && err != nil { // the end of a gather that no call has returned
						require.ErrorIs(t, err, pulled)
						err = nil
					}
					require.NoError(t, err)
					strict.Book.Require(t)
				})
			})
		}
	}
}

// TestCloseInsideAPass fails one rank after every operation of a pass in turn, while others are
// held. Every rank that closes its model then has waited for what it began, reductions included.
func TestCloseInsideAPass(t *testing.T) {
	cfg := fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, WrapPolicy: fsdp.WrapEach(), Prefetch: 2, Precision: kit.Float64s}
	plan, err := kit.Wrap(t, kit.Shapes["chain"], fsdp.Config{WrapPolicy: fsdp.WrapEach(), Prefetch: 2, Precision: kit.Float64s}).Plan(kit.ShapeBatch(0)...)
	require.NoError(t, err)
	waited := 0 // works in flight on the rank that fails
	for stop := range 2 * len(plan.Schedule) {
		for _, err := range kit.ErrorsOf(t, 4, func(ctx context.Context, g comm.Group) error {
			strict := kit.NewStrictGroup(g)
			cfg := cfg
			cfg.Group = strict
			left := stop
			if g.Rank() == 3 {
				cfg.Observers = append(cfg.Observers, fsdp.TraceFunc(func(fsdp.Event) {
					if left--; left < 0 {
						panic("no more")
					}
				}))
			}
			m := kit.Wrap(t, kit.Shapes["chain"], cfg)
			var err error
			for err == nil {
				if _, err = m.Forward(ctx, kit.ShapeBatch(g.Rank())...); err == nil {
					m.Hold()
					_, err = m.Forward(ctx, kit.ShapeBatch(g.Rank())...)
				}
				if err == nil {
					err = m.Backward(ctx)
				}
			}
			if g.Rank() == 3 {
				waited += strict.Book.Open
			}
			require.NoError(t, m.Close())
			strict.Book.Require(t)
			return err
		}) {
			require.ErrorContains(t, err, "no more")
		}
	}
	if kit.GroupsCarryPasses {
		require.Positive(t, waited)
	}
}

// TestCloseUnmapsAtLast closes the model of one rank, whose shards lie in files, while another has
// not noticed the failure and may be reading them.
func TestCloseUnmapsAtLast(t *testing.T) {
	for _, dir := range kit.Memories(t) {
		gone := make(chan struct{})
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(3), fsdp.Config{Group: g, WrapPolicy: kit.Blocks, Prefetch: 2, Offload: fsdp.Offload{Dir: dir}})
			_, err := m.Forward(ctx, kit.TinyBatch(0, g.Rank(), 2, 5)...)
			require.NoError(t, err)
			require.NoError(t, g.Barrier(ctx))
			if g.Rank() == 0 {
				defer close(gone)
				g.Abort(errors.New("cable pulled"))
				require.ErrorContains(t, m.Backward(ctx), "cable pulled")
			} else {
				<-gone
			}
			require.NoError(t, m.Close())
		})
	}
}

// TestTwoLayersOfUnitGroups gives units groups along the rows and the columns of a grid of ranks,
// one of which is closed on one rank. A rank that fails to meet its row must not let its column
// wait.
func TestTwoLayersOfUnitGroups(t *testing.T) {
	for _, broken := range []string{"rows", "columns"} {
		var done sync.WaitGroup
		done.Add(4)
		for _, err := range kit.ErrorsOf(t, 4, func(ctx context.Context, g comm.Group) error {
			rows, err := g.Split(ctx, g.Rank()/2, g.Rank())
			require.NoError(t, err)
			columns, err := g.Split(ctx, g.Rank()%2, g.Rank())
			require.NoError(t, err)
			if g.Rank() == 0 {
				require.NoError(t, map[string]comm.Group{"rows": rows, "columns": columns}[broken].Close())
			}
			_, err = fsdp.WrapContext(ctx, kit.Shapes["chain"], fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Unit: kit.GroupOf(func(u fsdp.UnitConfig) comm.Group {
				if u.Name == "l0" {
					return rows
				}
				return columns
			})})
			done.Done()
			done.Wait() // a rank that leaves would tell the others
			return err
		}) {
			require.ErrorContains(t, err, "exchanging ranks in a group of Config.Unit", broken)
			require.ErrorContains(t, err, comm.ErrClosed.Error())
		}
	}
}

// TestFreezeWithSomeOptimizers lets one rank bring an optimizer and another none: its pieces of the
// state would be lost.
func TestFreezeWithSomeOptimizers(t *testing.T) {
	kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
		m := kit.Chain64(t, g)
		opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
		require.NoError(t, err)
		kit.ForwardBackward(t, ctx, m, kit.ShapeBatch(g.Rank()))
		require.NoError(t, opt.Step(0.1))
		state, live := kit.StateBits(t, ctx, m), m.Memory().Live
		given := opt
		if g.Rank() == 1 {
			given = nil
		}
		entries, err := m.Freeze(ctx, nil, given)
		require.ErrorContains(t, err, "ranks disagree")
		require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: Freeze", g.Rank()))
		require.Empty(t, entries)
		kit.RequireSameBits(t, state, kit.StateBits(t, ctx, m))
		require.Equal(t, live, m.Memory().Live)
		require.NotEmpty(t, kit.GradsOf(t, ctx, m), "nothing was dropped")
		kit.Refreeze(t, ctx, m, nil, opt, optim.SGD{Momentum: 0.9}.New)
	})
}

// TestScaleOverflows refuses a scale that is a number, but none of the type of the computation.
func TestScaleOverflows(t *testing.T) {
	for _, scale := range []float64{1e300, -1e39, math.MaxFloat64} {
		kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) {
			m := kit.Wrap(t, kit.TinyGPT(1), fsdp.Config{Group: g})
			kit.ForwardBackward(t, ctx, m, kit.GoodBatch(g.Rank()))
			want := kit.GradBits(t, ctx, m)
			_, err := m.Forward(ctx, kit.GoodBatch(g.Rank())...)
			require.NoError(t, err)
			require.ErrorContains(t, m.Backward(ctx, fsdp.Scale(scale)), fmt.Sprintf("Scale is %v", scale))
			kit.RequireSameBits(t, want, kit.GradBits(t, ctx, m))
			_, err = m.Forward(ctx, kit.GoodBatch(g.Rank())...)
			require.NoError(t, err)
			require.NoError(t, m.Backward(ctx, fsdp.Scale(1e300), fsdp.Scale(1e-300)), "the product counts")

			wide := kit.Chain64(t, g)
			_, err = wide.Forward(ctx, kit.ShapeBatch(g.Rank())...)
			require.NoError(t, err)
			require.NoError(t, wide.Backward(ctx, fsdp.Scale(scale/1e10)), "float64 has it")
		})
	}
}

// TestHugeShapes refuses, on every rank, parameters whose elements or bytes no int can count and no
// machine has.
func TestHugeShapes(t *testing.T) {
	for _, shape := range [][]int{{1 << 40, 1 << 40}, {1 << 62}, {1 << 61}, {1 << 60}, {1 << 50}, {3, 1 << 58, 1}} {
		for world := 1; world <= 3; world++ {
			huge := kit.Calls(kit.Call("a", kit.Having(kit.Weight("w", shape...))))
			for rank, err := range kit.ErrorsOf(t, world, func(ctx context.Context, g comm.Group) error {
				_, err := fsdp.WrapContext(ctx, huge, fsdp.Config{Group: g, Precision: kit.Float64s})
				return err
			}) {
				require.ErrorContains(t, err, fmt.Sprintf("fsdp: rank %d: group root", rank))
			}
		}
	}
}

// dropped is a slog.Handler that counts the warnings about dropped models.
type dropped struct {
	slog.Handler
	warnings chan string
}

func (d dropped) Enabled(context.Context, slog.Level) bool { return true }

func (d dropped) WithAttrs([]slog.Attr) slog.Handler { return d }

func (d dropped) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "dropped") {
		r.Attrs(func(a slog.Attr) bool {
			d.warnings <- fmt.Sprint(r.Message, " ", a)
			return true
		})
	}
	return nil
}

// collect collects garbage until something has been sent.
func collect[T any](t *testing.T, from <-chan T) (got T) {
	for begin := time.Now(); ; runtime.GC() {
		select {
		case got = <-from:
			return got
		default:
			require.Less(t, time.Since(begin), time.Minute)
		}
	}
}

// TestDropped drops models without Close: their threads end, and their memory and files are freed,
// with a warning for each. A gather may be in flight. Models that are closed warn of nothing.
func TestDropped(t *testing.T) {
	large := &nn.GPT{Vocab: 1000, Context: 8, Layers: 2, Dim: 128, Heads: 2} // 4 MB of parameters
	batch := []fsdp.Tensor{tensor.New(tensor.WithShape(1, 4), tensor.Of(tensor.Int)), tensor.New(tensor.WithShape(1, 4), tensor.Of(tensor.Int))}
	for name, cfg := range map[string]fsdp.Config{
		"threads":           {Threads: 3},
		"files":             {Offload: fsdp.Offload{Dir: t.TempDir()}},
		"threads and files": {Threads: 2, Offload: fsdp.Offload{Dir: t.TempDir()}, Observers: []fsdp.Observer{fsdp.HashDir(t.TempDir()), fsdp.TraceDir(t.TempDir())}},
	} {
		t.Run(name, func(t *testing.T) {
			const models, ranks = 4, 2
			cfg.WrapPolicy, cfg.Prefetch = fsdp.WrapEach(), 2
			before, heap := goleak.IgnoreCurrent(), kit.HeapBytes()
			drop := dropped{slog.DiscardHandler, make(chan string, models*ranks)}
			cfg.Logger = slog.New(drop)
			closed := make(chan int, ranks)
			for i := range models + 1 {
				kit.OnRanks(t, ranks, func(ctx context.Context, g comm.Group) {
					cfg := cfg
					cfg.Group = g
					m, err := fsdp.Wrap(large, cfg)
					require.NoError(t, err)
					kit.ForwardBackward(t, ctx, m, batch)
					_, err = m.Forward(ctx, batch...)
					require.NoError(t, err)
					if i == models {
						require.NoError(t, m.Close())
						runtime.AddCleanup(m, func(r int) { closed <- r }, g.Rank())
					}
				})
			}
			for range ranks {
				collect(t, closed)
			}
			for range models * ranks {
				require.Equal(t, "fsdp: a model was dropped without Close: its threads, files and memory are freed only now, "+
					"when the garbage collector has found it. Call Close when a model is no longer used error=<nil>", collect(t, drop.warnings))
			}
			require.Empty(t, drop.warnings)
			goleak.VerifyNone(t, before)
			require.Less(t, kit.HeapBytes()-heap, 4<<20)
			if cfg.Offload.Dir != "" {
				left, err := filepath.Glob(filepath.Join(cfg.Offload.Dir, "*"))
				require.NoError(t, err)
				require.Empty(t, left)
			}
		})
	}
}
