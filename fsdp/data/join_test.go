package data_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/optim"
)

// TestSameTraining trains on a finite source, whose last step is short, with any number of ranks
// and micro batches, in one go and interrupted: by Share it is the same training.
func TestSameTraining(t *testing.T) {
	windows := data.Shuffle(data.Windows([]byte(strings.Repeat("all happy families are alike; ", 5)), 7, 6), 1, 2)
	require.Equal(t, 48, windows.Len())
	train := func(t *testing.T, ranks int, c data.Config, dir string, resume bool) (weights map[string][]float64) {
		var lock sync.Mutex
		require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
			m, err := fsdp.Wrap(&nn.GPT{Vocab: 128, Context: 6, Layers: 1, Dim: 8, Heads: 2},
				fsdp.Config{Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64}, Seed: 3})
			require.NoError(t, err)
			defer m.Close()
			opt, err := optim.SGD{Momentum: 0.9}.New(m.Params())
			require.NoError(t, err)
			c := c
			c.Group = g
			loader, err := data.NewLoader(windows, data.TokensAndTargets[byte](6), c)
			require.NoError(t, err)
			if resume {
				saved, err := m.Load(ctx, dir, opt, nil)
				require.NoError(t, err)
				var p data.Position
				require.NoError(t, saved.Extra("data", &p))
				require.Equal(t, 10, p.Samples)
				require.NoError(t, loader.Resume(p))
			}
			for batch, err := range m.Join(ctx, loader.Batches(ctx)) {
				require.NoError(t, err)
				_, err = m.Forward(ctx, batch...)
				require.NoError(t, err)
				require.NoError(t, m.Backward(ctx, loader.Share()))
				if !loader.StepEnds() {
					continue
				}
				require.NoError(t, opt.Step(0.5))
				m.ZeroGrad()
				if loader.Position().Samples == 10 {
					require.NoError(t, m.Save(ctx, dir, opt, &fsdp.SaveOptions{Extra: map[string]any{"data": loader.Position()}}))
				}
			}
			state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
			require.NoError(t, err)
			lock.Lock()
			defer lock.Unlock()
			if len(state) > 0 { // on rank 0
				weights = make(map[string][]float64)
			}
			for name, w := range state {
				weights[name] = w.Data().([]float64)
			}
			return nil
		}))
		return weights
	}
	want := train(t, 1, data.Config{Batch: 10}, t.TempDir(), false)
	require.NotEmpty(t, want)
	dir := t.TempDir()
	for i, ranks := range []int{3, 2, 4, 12} {
		for _, micro := range []int{0, 2} {
			t.Run(fmt.Sprint(ranks, micro), func(t *testing.T) {
				got := train(t, ranks, data.Config{Batch: 10, Micro: micro, Workers: 2}, dir, i > 0)
				for name := range want {
					require.InDeltaSlice(t, want[name], got[name], 1e-10, name)
				}
			})
		}
	}
}

// TestPositionAfterError checks that the position in the loop body is that of the steps done, where
// another rank's source ends the loop.
func TestPositionAfterError(t *testing.T) {
	src := data.Func(100, func(i int) ([]int, error) {
		if i == 28 {
			return nil, fmt.Errorf("torn")
		}
		return []int{1, 2, 3}, nil
	})
	require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
		m, err := fsdp.Wrap(&nn.GPT{Vocab: 8, Context: 2, Layers: 1, Dim: 8, Heads: 2}, fsdp.Config{Group: g})
		require.NoError(t, err)
		defer m.Close()
		loader, err := data.NewLoader(src, data.TokensAndTargets[int](2), data.Config{Group: g, Batch: 10})
		require.NoError(t, err)
		var last data.Position
		for _, err = range m.Join(ctx, loader.Batches(ctx)) {
			if err == nil {
				last = loader.Position()
			}
		}
		require.ErrorContains(t, err, "sample 28: torn")
		require.Equal(t, 20, last.Samples)
		require.Equal(t, 30-10*g.Rank(), loader.Position().Samples, "rank 0 has asked for the batch that rank 1 lacks")
		return nil
	}))
}

// TestBatchesOutliveTheLoop has loops that ask for the next batch while a pass needs the last one:
// the gradients have the bits of the usual loop.
func TestBatchesOutliveTheLoop(t *testing.T) {
	windows := data.Windows([]byte(strings.Repeat("all happy families are alike; ", 20)), 7, 3)
	ways := map[string]func(context.Context, *fsdp.Sharded, iter.Seq2[[]fsdp.Tensor, error]){
		"usual": func(ctx context.Context, m *fsdp.Sharded, batches iter.Seq2[[]fsdp.Tensor, error]) {
			for b, err := range batches {
				require.NoError(t, err)
				_, err = m.Forward(ctx, b...)
				require.NoError(t, err)
				require.NoError(t, m.Backward(ctx))
			}
		},
		"collected": func(ctx context.Context, m *fsdp.Sharded, batches iter.Seq2[[]fsdp.Tensor, error]) {
			var all [][]fsdp.Tensor
			for b, err := range batches {
				require.NoError(t, err)
				all = append(all, b)
			}
			for _, b := range all {
				_, err := m.Forward(ctx, b...)
				require.NoError(t, err)
				require.NoError(t, m.Backward(ctx))
			}
		},
		"one ahead": func(ctx context.Context, m *fsdp.Sharded, batches iter.Seq2[[]fsdp.Tensor, error]) {
			next, stop := iter.Pull2(batches)
			defer stop()
			for b, err, more := next(); more; {
				require.NoError(t, err)
				_, err = m.Forward(ctx, b...)
				require.NoError(t, err)
				b, err, more = next()
				require.NoError(t, errors.Join(err, m.Backward(ctx)))
			}
		},
		"held": func(ctx context.Context, m *fsdp.Sharded, batches iter.Seq2[[]fsdp.Tensor, error]) {
			var last *fsdp.Pass
			for b, err := range batches {
				require.NoError(t, err)
				_, err = m.Forward(ctx, b...)
				require.NoError(t, err)
				held := m.Hold()
				if last != nil {
					require.NoError(t, last.Backward(ctx))
				}
				last = held
			}
			require.NoError(t, last.Backward(ctx))
		},
	}
	grads := make(map[string]map[string]*tensor.Dense)
	for name, way := range ways {
		m, err := fsdp.Wrap(&nn.GPT{Vocab: 128, Context: 6, Layers: 1, Dim: 8, Heads: 2}, fsdp.Config{Poison: true})
		require.NoError(t, err)
		loader, err := data.NewLoader(windows, data.TokensAndTargets[byte](6), data.Config{Batch: 3, Prefetch: 1})
		require.NoError(t, err)
		way(t.Context(), m, loader.Batches(t.Context()))
		grads[name], err = m.FullGrads(t.Context())
		require.NoError(t, errors.Join(err, m.Close()))
	}
	for name := range ways {
		for param, want := range grads["usual"] {
			require.Equal(t, want.Float32s(), grads[name][param].Float32s(), "%s: %s", name, param)
		}
	}
}

// TestShareCountsTargets trains on answers of different lengths, some of them empty. For every
// number of ranks and micro-batches, the gradients of a step equal the gradients on one rank.
func TestShareCountsTargets(t *testing.T) {
	type row struct{ x, y []int }
	var rows []row
	for i, answer := range []int{1, 11, 3, 0, 7, 2, 12, 5, 9} {
		var r row
		for k := range 12 {
			r.x = append(r.x, (i*5+k*k)%29)
			r.y = append(r.y, (i*3+k)%29)
			if k < 12-answer {
				r.y[k] = nn.IgnoreTarget
			}
		}
		rows = append(rows, r)
	}
	collate := func(b *data.Batch, samples []row) error {
		return errors.Join(data.Stack(b, samples, func(r row) []int { return r.x }), data.Stack(b, samples, func(r row) []int { return r.y }))
	}
	var want map[string]*tensor.Dense
	for _, c := range []data.Config{{}, {Micro: 2}, {Micro: 4, Prefetch: 1}, {VirtualRanks: 4}, {VirtualRanks: 8, NoSync: true}} {
		for _, ranks := range []int{1, 2, 4} {
			require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
				m, err := fsdp.Wrap(&nn.GPT{Vocab: 29, Context: 12, Layers: 1, Dim: 16, Heads: 2},
					fsdp.Config{Group: g, Precision: fsdp.Precision{Compute: fsdp.Float64}, VirtualRanks: c.VirtualRanks})
				require.NoError(t, err)
				defer m.Close()
				c := c
				c.Group, c.Batch = g, len(rows)
				l, err := data.NewLoader(data.Of(rows), collate, c)
				require.NoError(t, err)
				for b, err := range m.Join(ctx, l.Batches(ctx)) {
					require.NoError(t, err)
					pass := func() error {
						_, err := m.Forward(ctx, b...)
						return errors.Join(err, m.Backward(ctx, l.Share()))
					}
					if c.NoSync && !l.StepEnds() {
						require.NoError(t, m.NoSync(pass))
					} else {
						require.NoError(t, pass())
					}
				}
				got, err := m.FullGrads(ctx)
				require.NoError(t, err)
				if want == nil {
					want = got
				}
				for name := range got {
					require.InDeltaSlice(t, want[name].Float64s(), got[name].Float64s(), 1e-12, "%s on %d ranks, %+v", name, ranks, c)
				}
				return nil
			}))
		}
	}
}

// TestDifferentData gives ranks different orders, positions and steps: they would train on some
// samples twice and on others never. The first iteration of Join is an error that names both, or
// without Join the first Forward. If a program makes a batch of the tensors, the first Backward
// with Share is. Samples of a rank's own are none, and a rank without a sample has nothing to
// compare.
func TestDifferentData(t *testing.T) {
	windows := data.Windows([]byte(strings.Repeat("all happy families are alike; ", 5)), 7, 6)
	for _, c := range []struct {
		seed  uint64 // of rank 1; rank 0 has 1
		batch int
		own   bool
		at    int
		want  string

		without  bool // Join and Share
		unpacked bool // the batch, without Join
	}{
		{seed: 1, batch: 4},
		{seed: 2, batch: 4, own: true},
		{seed: 1, batch: 1},
		{seed: 2, batch: 4, want: "rank 0 reads Shuffle.*seed 1, 1 epochs. from sample 0 on in steps of 4, rank 1 reads .*seed 2, 1 epochs.*so give all ranks the same files, seed, position and batch size"},
		{seed: 2, batch: 4, without: true, want: "Forward: ranks disagree: rank 0 reads Shuffle.*seed 1, 1 epochs. from sample 0 on in steps of 4, rank 1 reads .*seed 2, 1 epochs.*so give all ranks the same files, seed, position and batch size"},
		{seed: 1, batch: 4, without: true},
		{seed: 2, batch: 4, unpacked: true, want: "rank 0 runs Backward as call 2 with Share of .Shuffle.*seed 1, 1 epochs. from sample 0 on in steps of 4.*seed 2, 1 epochs"},
		{seed: 1, batch: 5, want: "in steps of 4.* in steps of 5"},
		{seed: 1, batch: 4, at: 4, want: "from sample 0 on.*from sample 4 on"},
	} {
		require.NoError(t, comm.Run(t.Context(), 2, func(ctx context.Context, g comm.Group) error {
			m, err := fsdp.Wrap(&nn.GPT{Vocab: 128, Context: 6, Layers: 1, Dim: 8, Heads: 2}, fsdp.Config{Group: g})
			require.NoError(t, err)
			defer m.Close()
			seed, config := uint64(1), data.Config{Group: g, Batch: min(c.batch, 4)}
			if g.Rank() == 1 {
				seed, config.Batch = c.seed, c.batch
			}
			if c.own {
				config.Group = nil
			}
			loader, err := data.NewLoader(data.Shuffle(windows, seed, 1), data.TokensAndTargets[byte](6), config)
			require.NoError(t, err)
			if p := loader.Position(); g.Rank() == 1 {
				p.Samples = c.at
				require.NoError(t, loader.Resume(p))
			}
			batches := loader.Batches(ctx)
			if !c.without && !c.unpacked {
				batches = m.Join(ctx, batches)
			}
			for batch, err := range batches {
				if c.unpacked {
					batch = []fsdp.Tensor{batch[0], batch[1]}
				}
				if err == nil {
					_, err = m.Forward(ctx, batch...)
				}
				if err == nil && c.without {
					err = m.Backward(ctx)
				} else if err == nil {
					err = m.Backward(ctx, loader.Share())
				}
				if err != nil {
					require.NotEmpty(t, c.want)
					require.Regexp(t, c.want, err.Error())
					return nil
				}
				require.Empty(t, c.want)
			}
			require.Empty(t, c.want)
			return nil
		}))
	}
}

// TestShareOfTheNextStep asks for the next batch before Share: that is an error, not another
// gradient.
func TestShareOfTheNextStep(t *testing.T) {
	m, err := fsdp.Wrap(&nn.GPT{Vocab: 128, Context: 6, Layers: 1, Dim: 8, Heads: 2}, fsdp.Config{})
	require.NoError(t, err)
	defer m.Close()
	windows := data.Windows([]byte(strings.Repeat("all happy families are alike; ", 2)), 7, 6)
	loader, err := data.NewLoader(windows, data.TokensAndTargets[byte](6), data.Config{Batch: 5})
	require.NoError(t, err)
	next, stop := iter.Pull2(loader.Batches(t.Context()))
	defer stop()
	b, err, _ := next()
	for _, others := range []int{1, 0} {
		require.NoError(t, err)
		_, err = m.Forward(t.Context(), b...)
		require.NoError(t, err)
		share := loader.Share()
		ahead, err, _ := next()
		require.NoError(t, err)
		require.ErrorContains(t, m.Backward(t.Context(), loader.Share()),
			fmt.Sprintf("the batch of the Forward is not among the %d batches that Share got", others))
		_, err = m.Forward(t.Context(), b...)
		require.NoError(t, err)
		require.NoError(t, m.Backward(t.Context(), share))
		b = ahead
	}
}
