package parity_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/optim"
)

// goldenPair is a training of the golden GPT by PyTorch on two processes, with DDP or FSDP, every
// batch whole on one of them.
type goldenPair struct {
	Losses   [2][]float64          `json:"losses"` // of each rank
	GradNorm []float64             `json:"grad_norm"`
	Params   map[string][2]float64 `json:"params"` // l2, sum
	EvalLoss float64               `json:"eval_loss_batch0"`
	Units    map[string]int        `json:"units"` // elements
}

// TestGoldenStrategies compares every strategy with PyTorch's training on two processes: losses of
// both ranks, the norm of the mean gradient before clipping, checksums of the parameters, and an
// evaluation.
func TestGoldenStrategies(t *testing.T) {
	b, err := os.ReadFile("testdata/golden_w2.json")
	require.NoError(t, err)
	var cases map[string]goldenPair
	require.NoError(t, json.Unmarshal(b, &cases))
	require.Len(t, cases, 9)
	for name, want := range cases {
		for _, l := range placements() {
			if l.world == 2 {
				t.Run(fmt.Sprintf("%s/%v %d", name, l.strategy, l.ranks), func(t *testing.T) {
					kit.OnRanks(t, 2, func(ctx context.Context, g comm.Group) { want.train(t, ctx, g, name, l) })
				})
			}
		}
	}
}

// train trains one rank under a strategy.
func (want goldenPair) train(t *testing.T, ctx context.Context, g comm.Group, name string, l placement) {
	o, prec := goldenSetting(t, name)
	m := wrapGolden(t, "gpt_untied_erf", g, prec.typ, fsdp.Config{Strategy: l.strategy, ShardRanks: l.ranks})
	opt, err := o.build(m.Params())
	require.NoError(t, err)
	want.requireUnits(t, m)
	each := len(want.Losses[0]) / len(want.GradNorm) // backwards for an update
	for i, loss := range want.Losses[g.Rank()] {
		last := (i+1)%each == 0
		require.InDelta(t, loss, goldenBackward(t, ctx, m, 2*i+g.Rank(), each, strings.Contains(name, "no_sync") && !last), prec.tol*loss)
		if !last {
			continue
		}
		norm, err := m.ClipGradNorm(ctx, orInf(o.clip))
		require.NoError(t, err)
		require.InDelta(t, want.GradNorm[i/each], norm, prec.tol*norm)
		require.NoError(t, opt.Step(o.lr))
		m.ZeroGrad()
	}
	if want.Params != nil {
		got, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		requireStats(t, want.Params, got, prec.tol, func(p string) bool { // see trainGolden
			return prec.typ == fsdp.Float32 && strings.Contains(name, "adam") && strings.HasSuffix(p, "qkv.bias")
		})
	}
	if want.EvalLoss != 0 {
		tokens, targets := goldenBatch(0, 0, goldenB)
		out, err := m.Eval(ctx, tokens, targets)
		require.NoError(t, err)
		require.InDelta(t, want.EvalLoss, kit.Elements(out[0])[0], prec.tol*want.EvalLoss)
	}
	require.NoError(t, m.Close())
}

// goldenSetting reads optimizer and precision from the name of a case: accum3_no_sync_f64 leaves
// the optimizer out.
func goldenSetting(t require.TestingT, name string) (goldenOptimizer, precision) {
	o := goldenOptimizer{3e-3, 0.5, adamW(0.1)}
	if strings.Contains(name, "sgd") {
		o = goldenOptimizer{0.1, 0, optim.SGD{}.New}
	}
	for _, p := range precisions {
		if strings.HasSuffix(name, p.name) {
			return o, p
		}
	}
	require.Fail(t, "no precision", name)
	return o, precision{}
}

// goldenBackward runs forward and backward of a batch, one of each that make an update, and returns
// the loss.
func goldenBackward(t *testing.T, ctx context.Context, m *fsdp.Sharded, batch, each int, noSync bool) (loss float64) {
	tokens, targets := goldenBatch(batch, 0, goldenB)
	run := func() (err error) {
		if loss, err = m.Forward(ctx, tokens, targets); err != nil {
			return err
		}
		return m.Backward(ctx, fsdp.Scale(1/float64(each)))
	}
	if noSync {
		require.NoError(t, m.NoSync(run))
	} else {
		require.NoError(t, run())
	}
	return loss
}

// requireUnits compares the units with PyTorch's, where those are known.
func (want goldenPair) requireUnits(t require.TestingT, m *fsdp.Sharded) {
	if want.Units == nil {
		return
	}
	tokens, targets := goldenBatch(0, 0, goldenB)
	plan, err := m.Plan(tokens, targets)
	require.NoError(t, err)
	got := make(map[string]int)
	for _, g := range plan.Groups {
		got[g.Name] = g.Len
	}
	require.Equal(t, want.Units, got)
}
