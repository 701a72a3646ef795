//go:build linux && cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
)

// onGPU implements fsdp.Device.
type onGPU struct{ *nccl.Device }

func (onGPU) Settings() string { return "" }

func (g onGPU) Engine(o engine.DeviceOptions) (engine.Device, error) {
	return New(g.Device, Options{Poison: o.Poison, Offload: o.Offload})
}

// A training is one of a small GPT on several ranks, of which rank 0 has device 0.
type training struct {
	cuda       *gpudouble.Control
	ranks      int
	cfg        fsdp.Config
	train      func(ctx context.Context, m *fsdp.Sharded, rank, step int) (loss float64, err error)
	begin, end [lanes]int // of the second step: waits that streams of device 0 were given before
}

// run returns what comes out of the training, and what was done wrong.
func (x *training) run(t *testing.T) (out []string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	boots, outs, errs := comm.Local(x.ranks), make([][]string, x.ranks), make([]error, x.ranks)
	var all sync.WaitGroup
	for r, g := range boots {
		all.Go(func() {
			if outs[r], errs[r] = x.rank(ctx, g); errs[r] != nil {
				g.Abort(errs[r])
			}
		})
	}
	all.Wait()
	for _, g := range boots {
		require.NoError(t, g.Close())
	}
	for _, wrong := range x.cuda.Reports() {
		errs = append(errs, errors.New(wrong))
	}
	return slices.Concat(outs...), errors.Join(errs...)
}

// rank is what a rank does, and gets.
func (x *training) rank(ctx context.Context, g comm.Group) (out []string, err error) {
	dev, err := nccl.OpenDevice(g.Rank())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	cfg := x.cfg
	cfg.Group, cfg.Device, cfg.WrapPolicy = g, onGPU{dev}, fsdp.WrapTypes(&nn.Block{})
	m, err := fsdp.Wrap(&nn.GPT{Vocab: 13, Context: 4, Layers: 3, Dim: 8, Heads: 2}, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	opt, err := optim.AdamW{}.New(m.Params())
	for i := 0; i < 2 && err == nil; i++ {
		if g.Rank() == 0 && i == 1 {
			x.begin = x.waits()
		}
		var loss float64
		if loss, err = x.train(ctx, m, g.Rank(), i); err == nil {
			err = opt.Step(0.1)
		}
		out = append(out, fmt.Sprint(loss))
	}
	if err != nil {
		return nil, err
	}
	if g.Rank() == 0 {
		x.end = x.waits()
	}
	state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	for _, name := range slices.Sorted(maps.Keys(state)) {
		out = append(out, fmt.Sprint(name, state[name].Data()))
	}
	return out, err
}

// onePass is a step of one pass, which drops the gradients of the step before behind its forward.
func onePass(ctx context.Context, m *fsdp.Sharded, rank, step int) (float64, error) {
	loss, err := m.Forward(ctx, tokens(rank, step), tokens(rank, step+1))
	if err != nil {
		return 0, err
	}
	m.ZeroGrad()
	return loss, m.Backward(ctx)
}

// twoPasses is a step of two passes that are open at the same time.
func twoPasses(ctx context.Context, m *fsdp.Sharded, rank, step int) (float64, error) {
	m.ZeroGrad()
	var held [2]*fsdp.Pass
	for i := range held {
		if _, err := m.Forward(ctx, tokens(rank, step+5*i), tokens(rank, step+2*i)); err != nil {
			return 0, err
		}
		held[i] = m.Hold()
	}
	return held[0].Loss() + held[1].Loss(), errors.Join(held[0].Backward(ctx), held[1].Backward(ctx))
}

// virtualRanks is a step of two micro-batches on each rank, which belong to virtual ranks.
func virtualRanks(ctx context.Context, m *fsdp.Sharded, rank, step int) (loss float64, err error) {
	m.ZeroGrad()
	n := m.Group().Size()
	for v := rank; v < 2*n && err == nil; v += n {
		if loss, err = m.Forward(ctx, tokens(v, step), tokens(v, step+1)); err == nil {
			err = m.Backward(ctx)
		}
	}
	return loss, err
}

// tokens returns a sequence that is another one for each rank and step.
func tokens(rank, step int) fsdp.Tensor {
	list := make([]int, 4)
	for k := range list {
		list[k] = (7*step + 3*rank + k*k) % 13
	}
	return tensor.New(tensor.WithShape(1, 4), tensor.WithBacking(list))
}

// waits returns how many waits the streams of rank 0 were given.
func (x *training) waits() (n [lanes]int) {
	for l := range n {
		n[l] = x.cuda.Omit(0, l, -1)
	}
	return n
}

// same runs the training without one wait, and tells whether it comes out as if with it.
func (x *training) same(t *testing.T, s gpudouble.Schedule, l lane, without int, want []string) (same bool) {
	omit := func(nth int) {
		for r := range x.ranks {
			x.cuda.Omit(r, int(l), nth)
		}
	}
	x.cuda.Scheduled(t, s, func() {
		omit(without)
		defer omit(0)
		got, err := x.run(t)
		same = err == nil && slices.Equal(got, want)
	})
	return same
}

// TestLeftOut: every wait of a pass is needed, and they are enough. With all of them the same bits
// come out of a training when collectives run as late as waits allow, and when they run as early.
// Without one wait of the second step, bits differ: a wait of the work if collectives are late, a
// wait of the wire if they are early, and a wait of replicas in one of the two cases. The larger
// training leaves out every third wait, or every one if FSDP_TEST_FAULTS is all.
func TestLeftOut(t *testing.T) {
	cuda, _ := doubles(t)
	require.NoError(t, blaslt.Load(gpudouble.Build(t).CUBLASLT))
	for name, x := range map[string]*training{
		"full":   {ranks: 2, train: onePass},
		"hybrid": {ranks: 4, train: onePass, cfg: fsdp.Config{Strategy: fsdp.HybridShard, ShardRanks: 2, Prefetch: 2, Precision: fsdp.BF16()}},
	} {
		t.Run(name, func(t *testing.T) {
			x.cuda = cuda
			start := x.waits()
			want, err := x.run(t)
			require.NoError(t, err)
			begin, end := x.begin, x.end
			late, early := gpudouble.UrgentLate, gpudouble.UrgentEarly
			for l, schedules := range [lanes][]gpudouble.Schedule{onWork: {late}, onWire: {early}, onReplicas: {late, early}} {
				same := func(without int) bool {
					return !slices.ContainsFunc(schedules, func(s gpudouble.Schedule) bool { return !x.same(t, s, lane(l), without, want) })
				}
				require.True(t, same(0))
				first, n := begin[l]-start[l], end[l]-begin[l]
				if lane(l) == onReplicas && x.cfg.Strategy != fsdp.HybridShard {
					require.Zero(t, n)
					continue
				}
				require.Greater(t, n, 3)
				for i := range n {
					if x.ranks == 2 || i%3 == 0 || os.Getenv("FSDP_TEST_FAULTS") == "all" {
						require.False(t, same(first+i+1), "wait %d of %d on %v", i, n, lane(l))
					}
				}
			}
		})
	}
}

// TestTwoPasses: of two passes that are open at the same time, each comes out as if alone.
func TestTwoPasses(t *testing.T) {
	cuda, _ := doubles(t)
	require.NoError(t, blaslt.Load(gpudouble.Build(t).CUBLASLT))
	for _, prefetch := range []int{1, 3} {
		x := &training{cuda: cuda, ranks: 2, train: twoPasses, cfg: fsdp.Config{Prefetch: prefetch}}
		want, err := x.run(t)
		require.NoError(t, err)
		for _, s := range []gpudouble.Schedule{gpudouble.UrgentLate, gpudouble.UrgentEarly} {
			require.True(t, x.same(t, s, onWork, 0, want), "prefetch %d, schedule %d", prefetch, s)
		}
	}
}

// TestSchedules: trainings come out the same when the wire runs as late as waits allow, and as
// early: on virtual ranks, whose exchanges are there, and on one rank, which writes gradients into
// shards.
func TestSchedules(t *testing.T) {
	cuda, _ := doubles(t)
	require.NoError(t, blaslt.Load(gpudouble.Build(t).CUBLASLT))
	for name, x := range map[string]*training{
		"virtual":           {ranks: 2, train: virtualRanks, cfg: fsdp.Config{VirtualRanks: 4}},
		"virtual, no shard": {ranks: 2, train: virtualRanks, cfg: fsdp.Config{VirtualRanks: 4, Strategy: fsdp.NoShard}},
		"leafwise":          {ranks: 3, train: virtualRanks, cfg: fsdp.Config{VirtualRanks: 6}},
		"one rank":          {ranks: 1, train: onePass, cfg: fsdp.Config{Precision: fsdp.BF16()}},
	} {
		x.cuda = cuda
		want, err := x.run(t)
		require.NoError(t, err)
		for _, s := range []gpudouble.Schedule{gpudouble.UrgentLate, gpudouble.UrgentEarly} {
			require.True(t, x.same(t, s, onWork, 0, want), "%s, schedule %d", name, s)
		}
	}
}
