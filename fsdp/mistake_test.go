package fsdp_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/data"
	"github.com/gofsdp/gofsdp/optim"
)

// captureDefault makes slog.Default write to a buffer until the test ends. It is read when the ranks
// have returned: handlers write one after the other, but nothing guards reading.
func captureDefault(t *testing.T) (written func() string) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return log.String
}

// TestWithoutGroup: ranks that forget to say so each train, and read, everything.
func TestWithoutGroup(t *testing.T) {
	log := captureDefault(t)
	alone := func(g comm.Group) error {
		cfg := fsdp.Config{Wrap: blocks}
		if g != nil {
			cfg.Group = g
		}
		m, err := fsdp.Wrap(tinyGPT(1), cfg)
		if err != nil {
			return err
		}
		of := data.Config{Batch: 1}
		if g != nil {
			of.Group = g
		}
		collate := func(*data.Batch, []int) error { return nil }
		_, err = data.NewLoader(data.Of([]int{1}), collate, of)
		m.Close()
		return err
	}
	require.NoError(t, alone(nil))
	require.NoError(t, comm.Run(t.Context(), 2, func(_ context.Context, g comm.Group) error { return alone(g) }))
	require.Empty(t, log())
	require.NoError(t, comm.Run(t.Context(), 2, func(context.Context, comm.Group) error { return alone(nil) }))
	require.Equal(t, 2, strings.Count(log(), `fsdp: Config.Group is nil, so this rank trains a whole model by itself: `+
		`give it the group of the ranks, or comm.Local(1)[0] if that is meant" but="comm.Run has 2 ranks in this process"`), log())
	require.Equal(t, 2, strings.Count(log(), "data: Config.Group is nil"), log())

	t.Setenv("RANK", "1")
	t.Setenv("WORLD_SIZE", "4")
	require.NoError(t, alone(nil))
	require.Equal(t, 2, strings.Count(log(), `but="this process is rank 1 of 4, says torchrun"`), log())
}

// TestStepWithoutGradients: ZeroGrad before Step trains nothing.
func TestStepWithoutGradients(t *testing.T) {
	log := captureDefault(t)
	m := wrap(t, tinyGPT(1), fsdp.Config{Wrap: blocks})
	defer m.Close()
	opt, err := optim.SGD{}.New(m.Shards())
	require.NoError(t, err)
	step := func(between func()) {
		_, err := m.Forward(t.Context(), tinyBatch(0, 0, 1, 4)...)
		require.NoError(t, err)
		require.NoError(t, m.Backward(t.Context()))
		between()
		require.NoError(t, opt.Step(0.1))
	}
	step(func() {})
	m.ZeroGrad()
	step(func() {})
	require.Empty(t, log())
	for range 2 {
		step(m.ZeroGrad)
	}
	require.Equal(t, 1, strings.Count(log(), "fsdp: an optimizer steps without any gradient"), log())
}

// TestJoinDataPanics: the error names the line of the data, not one of the library.
func TestJoinDataPanics(t *testing.T) {
	m := wrap(t, tinyGPT(1), fsdp.Config{})
	defer m.Close()
	said := false
	for batch, err := range m.Join(t.Context(), func(yield func([]fsdp.Tensor, error) bool) {
		yield(tinyBatch(0, 0, 1, 4), nil)
		panic("out of paper")
	}) {
		if batch == nil {
			require.Regexp(t, `the data panicked at \S+/mistake_test\.go:\d+: out of paper`, err.Error())
			said = true
		}
	}
	require.True(t, said)
	defer func() {
		err, _ := recover().(error)
		require.ErrorContains(t, err, "cleanup", "what nobody would hear of otherwise")
	}()
	func() {
		for range m.Join(t.Context(), func(yield func([]fsdp.Tensor, error) bool) {
			if !yield(tinyBatch(0, 0, 1, 4), nil) {
				panic("cleanup")
			}
		}) {
			break
		}
	}()
}
