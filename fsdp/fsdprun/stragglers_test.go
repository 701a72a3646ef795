//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/profile"
)

// straggle trains as a rank.
func straggle() error {
	passes := 0
	return train(func(*fsdp.Sharded) (bool, error) {
		passes++
		return passes == 11, nil
	})
}

// trainUntilInterrupted trains as a rank, saves to dir and says where.
func trainUntilInterrupted(dir string) error {
	ctx := context.Background()
	interrupt, stop := comm.Interrupt(ctx)
	defer stop()
	passes := 0
	return train(func(m *fsdp.Sharded) (bool, error) {
		if passes++; passes == 1 {
			fmt.Println("ready")
		}
		over, err := m.Any(ctx, interrupt.Err() != nil)
		if !over || err != nil {
			return over, err
		}
		if err := m.Save(ctx, dir, nil, nil); err != nil {
			return true, err
		}
		latest, err := fsdp.LatestCheckpoint(dir)
		fmt.Println("saved", filepath.Base(latest))
		return true, err
	})
}

// train trains as a rank until over returns true, after each pass.
func train(over func(*fsdp.Sharded) (bool, error)) (err error) {
	g, err := comm.FromEnv(context.Background())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	m, err := fsdp.Wrap(&nn.GPT{Vocab: 10, Context: 8, Layers: 2, Dim: 16, Heads: 2}, fsdp.Config{Group: g})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	tokens := tensor.New(tensor.WithShape(1, 8), tensor.WithBacking([]int{0, 1, 2, 3, 4, 5, 6, 7}))
	for done := false; !done; {
		if _, err := m.Forward(context.Background(), tokens, tokens); err != nil {
			return err
		}
		if err := m.Backward(context.Background()); err != nil {
			return err
		}
		if done, err = over(m); err != nil {
			return err
		}
	}
	return nil
}

// TestStragglers starts processes that train; which of them is slow depends on the machine. With a
// failure, and with ranks that train nothing, fsdprun says what there is to say.
func TestStragglers(t *testing.T) {
	status, r := finish(t, "straggle", "-n", "3", "-stragglers")
	require.Zero(t, status, &r.err)
	require.Regexp(t, `(?s)stragglers: 10 passes of 3 ranks\nfsdprun: .*(delays|holds up)`, r.err.String())

	n := runtime.GOMAXPROCS(0) + 1
	status, r = finish(t, "straggle", "-n", strconv.Itoa(n), "-stragglers")
	require.Zero(t, status, &r.err)
	require.Regexp(t, fmt.Sprintf(`fsdprun: %d ranks share %d cores?: they wait for a core`, n, n-1), r.err.String())

	status, r = finish(t, "fail", "-n", "2", "-stragglers")
	require.Equal(t, 7, status)
	require.Contains(t, r.err.String(), "-stragglers: no rank has reported its times")
	require.Contains(t, r.err.String(), "first: rank 1")

	status, r = finish(t, "straggle", "-n", "2")
	require.Zero(t, status)
	require.Empty(t, r.err.String(), "nobody has asked")
}

// TestStragglersOfModels names models, and what cannot be compared.
func TestStragglersOfModels(t *testing.T) {
	totals := func(rank, model int, op string) *profile.Totals {
		return &profile.Totals{Rank: rank, Size: 3, Model: model, Passes: 1, Took: time.Second, Ops: []profile.Op{{Kind: "forward", Name: op, Count: 1, Took: time.Second}}}
	}
	ended := []*ending{
		{Rank: 1, Totals: []*profile.Totals{totals(1, 1, "a"), totals(1, 2, "a"), totals(1, 3, "a")}},
		{Rank: 0, Totals: []*profile.Totals{totals(0, 1, "a"), totals(0, 2, "b"), totals(1, 3, "a")}},
	}
	said := stragglers(ended)
	require.Contains(t, said, "stragglers of model 1: 1 passes of 2 ranks\nNo rank delays the others.")
	require.Contains(t, said, "\n1 of 3 ranks have reported nothing\n")
	require.Contains(t, said, "stragglers of model 2: 1 passes of 2 ranks\n")
	require.Contains(t, said, "stragglers of model 3: several groups of ranks have a model with this number")
}
