package main

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	lines "github.com/gofsdp/gofsdp/internal/text"
	"github.com/gofsdp/gofsdp/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun adapts a model that has hardly learned anything; run itself checks that what is frozen
// stays. Then it compares what the last lines say of memory.
func TestRun(t *testing.T) {
	code, prose, err := texts()
	require.NoError(t, err)
	var out bytes.Buffer
	dir := t.TempDir()
	require.NoError(t, comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
		return (&rank{g, &out, dir, code, prose}).run(ctx, 10)
	}))
	require.Empty(t, lines.Wider(out.String(), 76), "80 with what fsdprun puts before a line")
	loss := figures(t, out.String(), `loss (?:before|after) +code ([0-9.]+)`)
	require.Len(t, loss, 5, out.String())
	require.Less(t, loss[1], loss[0], "pretraining")
	require.InDelta(t, loss[1], loss[2], 0.0015, "adapters start out as nothing")
	require.InDelta(t, loss[3], loss[4], 0.0015, "merging changes rounding only")

	require.Regexp(t, `(?s)checkpoint   4\.7\d MB\n.*checkpoint   0\.47 MB\n`, out.String())

	held, most := figures(t, out.String(), `holds ([0-9.]+) MB`), figures(t, out.String(), `([0-9.]+) MB in a step`)
	require.Len(t, most, 3, out.String())
	require.Equal(t, held[0], held[1])
	require.Less(t, 3*held[0], held[2], "gradients and optimizer state")
	const block = 3.2 // MB
	require.InDelta(t, held[0]+2*block, most[0], block, "one unit that computes and one that is gathered")
	require.InDelta(t, held[1]+float64(wide.Layers)*block, most[1], block, "all units")
	require.Greater(t, most[2], most[1])
}

// TestResumeAdapters saves adapters with and without the model under them. A training continues
// from both with the same bits, on other numbers of ranks, too, if the model comes from elsewhere.
// On another model the smaller one is refused.
func TestResumeAdapters(t *testing.T) {
	_, prose, err := texts()
	require.NoError(t, err)
	full, part := t.TempDir(), t.TempDir()
	// resume trains from a checkpoint, if there is one, to step last, and returns all tensors.
	resume := func(ranks int, seed uint64, dir string, last int, then func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error) (state map[string]*tensor.Dense, err error) {
		err = comm.Run(t.Context(), ranks, func(ctx context.Context, g comm.Group) error {
			m, err := fsdp.Wrap(gpt(adapter), fsdp.Config{Group: g, WrapPolicy: fsdp.WrapTypes(&nn.Block{}), Frozen: pretrained, Seed: seed})
			require.NoError(t, err)
			defer m.Close()
			opt, err := optim.AdamW{}.New(m.Params())
			require.NoError(t, err)
			if dir != "" {
				if _, err := m.Load(ctx, dir, opt, nil); err != nil {
					return err
				}
			}
			batches, err := (&rank{group: g}).windows(prose, false)
			require.NoError(t, err)
			for batch, err := range batches.Batches(ctx) {
				require.NoError(t, err)
				if opt.Steps() == last {
					break
				}
				_, err = m.Forward(ctx, batch...)
				require.NoError(t, err)
				require.NoError(t, m.Backward(ctx, batches.Share()))
				require.NoError(t, opt.Step(1e-2))
				m.ZeroGrad()
			}
			if then != nil {
				return then(ctx, m, opt)
			}
			all, err := m.StateDict(ctx, nil)
			if g.Rank() == 0 {
				state = all
			}
			return err
		})
		return state, err
	}
	_, err = resume(2, 7, "", 2, func(ctx context.Context, m *fsdp.Sharded, opt optim.Optimizer) error {
		return errors.Join(m.Save(ctx, full, opt, nil), m.Save(ctx, part, opt, &fsdp.SaveOptions{TrainedOnly: true}))
	})
	require.NoError(t, err)
	for _, ranks := range []int{1, 2, 4} {
		want, err := resume(ranks, 7, full, 4, nil)
		require.NoError(t, err)
		got, err := resume(ranks, 7, part, 4, nil)
		require.NoError(t, err)
		for name, w := range want {
			require.Equal(t, w.Float32s(), got[name].Float32s(), name)
		}
		_, err = resume(ranks, 8, part, 4, nil)
		var unfit *fsdp.StateError
		require.ErrorAs(t, err, &unfit)
		require.NotEmpty(t, unfit.Changed)
	}
}

// figures returns the numbers in out that a pattern has in parentheses.
func figures(t *testing.T, out, pattern string) (list []float64) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(match[1], 64)
		require.NoError(t, err)
		list = append(list, v)
	}
	return list
}
