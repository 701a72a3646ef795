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

// TestSameTraining trains on a finite source, whose last step is short, with any number of ranks and
// micro batches, in one go and interrupted: by Share and ByOne it is the same training.
func TestSameTraining(t *testing.T) {
	windows := data.Shuffle(data.Windows([]byte(strings.Repeat("all happy families are alike; ", 5)), 7, 6), 1, 2)
	require.Equal(t, 48, windows.Len())
	train := func(t *testing.T, ranks int, c data.Config, dir string, resume bool) (weights map[string][]float64) {
		var lock sync.Mutex
		require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
			m, err := fsdp.Wrap(&nn.GPT{Vocab: 128, Context: 6, Layers: 1, Dim: 8, Heads: 2},
				fsdp.Config{Group: g, Divide: fsdp.ByOne, Precision: fsdp.Precision{Compute: fsdp.Float64}, Seed: 3})
			require.NoError(t, err)
			defer m.Close()
			opt, err := optim.SGD{Momentum: 0.9}.New(m.Shards())
			require.NoError(t, err)
			c := c
			c.Group = g
			loader, err := data.NewLoader(windows, data.TokensAndTargets[byte](6), c)
			require.NoError(t, err)
			if resume {
				saved, err := m.Load(ctx, dir, opt)
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
				require.NoError(t, m.Backward(ctx, fsdp.Scale(loader.Share())))
				if !loader.StepEnds() {
					continue
				}
				require.NoError(t, opt.Step(0.5))
				m.ZeroGrad()
				if loader.Position().Samples == 10 {
					require.NoError(t, m.Save(ctx, dir, opt, fsdp.Extra("data", loader.Position())))
				}
			}
			state, err := m.FullState(ctx)
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

// TestBatchesOutliveTheLoop has loops that ask for the next batch while a pass needs the last one: the
// gradients have the bits of the usual loop.
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
