package parity_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// goldenJoin is a training by PyTorch's DDP and Join on two processes, of which the first has fewer
// batches. The state is that of the process that has more.
type goldenJoin struct {
	Losses   [2][]float64          `json:"losses"`    // of each rank, as long as it has batches
	GradNorm []float64             `json:"grad_norm"` // by step
	L2       []float64             `json:"l2"`        // of all parameters together, after each step
	Sum      []float64             `json:"sum"`
	Params   map[string][2]float64 `json:"params"` // l2, sum, at the end
}

// goldenMLP is 6-8-8-3 with rectifiers.
var goldenMLP kit.Model = func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
	rectify := &kit.Module{Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		y, err := gorgonia.Rectify(in[0])
		return gorgonia.Nodes{y}, err
	}}
	x := t.Call("layers.0", &nn.Linear{In: 6, Out: 8}, in[0])
	x = t.Call("relu.0", rectify, x)
	x = t.Call("layers.1", &nn.Linear{In: 8, Out: 8}, x)
	x = t.Call("relu.1", rectify, x)
	x = t.Call("head", &nn.Linear{In: 8, Out: 3}, x)
	return []fsdp.Ref{t.Call("loss", &nn.CrossEntropy{}, x, in[1])}, nil
}

var goldenMLPOrder = []string{"layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "head.weight", "head.bias"}

// goldenMLPBatch returns batch number n: x [4, 6] and the classes [4].
func goldenMLPBatch(n int) []fsdp.Tensor {
	y := make([]int, 4)
	for b := range y {
		y[b] = kit.U24(b, 5000+n) % 3
	}
	return []fsdp.Tensor{kit.Floats(4000+n, 4, 6), tensor.New(tensor.WithShape(4), tensor.WithBacking(y))}
}

// TestGoldenJoin compares uneven training with PyTorch's under every strategy: for both optimizers
// and both of its divisors, the number of ranks and the number of those that have a batch.
func TestGoldenJoin(t *testing.T) {
	b, err := os.ReadFile("testdata/golden_join.json")
	require.NoError(t, err)
	var cases map[string]goldenJoin
	require.NoError(t, json.Unmarshal(b, &cases))
	require.Len(t, cases, 8)
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

// wrap wraps the model of a case, and returns its batches by number.
func (want goldenJoin) wrap(t *testing.T, g comm.Group, name string, cfg fsdp.Config) (*fsdp.Sharded, func(n int) []fsdp.Tensor) {
	cfg.GradAverage = fsdp.ByRanks
	if strings.Contains(name, "effective") {
		cfg.GradAverage = fsdp.ByActive
	}
	if strings.Contains(name, "gpt") {
		return wrapGolden(t, "gpt_untied_erf", g, fsdp.Float64, cfg), func(n int) []fsdp.Tensor {
			tokens, targets := goldenBatch(n, 0, goldenB)
			return []fsdp.Tensor{tokens, targets}
		}
	}
	cfg.Group, cfg.Precision, cfg.WrapPolicy, cfg.Poison = g, kit.Float64s, fsdp.WrapEach(), true
	m := kit.Wrap(t, goldenMLP, cfg)
	goldenInit(t, goldenMLPOrder, m.Params())
	return m, goldenMLPBatch
}

// train trains one rank under a strategy.
func (want goldenJoin) train(t *testing.T, ctx context.Context, g comm.Group, name string, l placement) {
	const tol = 1e-10
	m, batch := want.wrap(t, g, name, fsdp.Config{Strategy: l.strategy, ShardRanks: l.ranks})
	o := goldenOptimizers["sgd_lr0.1"]
	if strings.Contains(name, "adamw") {
		o = goldenOptimizers["adamw_wd0.1"]
	}
	opt, err := o.build(m.Params())
	require.NoError(t, err)
	losses := want.Losses[g.Rank()]
	step := 0
	for batch, err := range m.Join(ctx, kit.Batches(len(losses), func(i int) []fsdp.Tensor { return batch(2*i + g.Rank()) })) {
		require.NoError(t, err)
		loss, err := m.Forward(ctx, batch...)
		require.NoError(t, err)
		if step < len(losses) {
			require.InDelta(t, losses[step], loss, tol*loss)
		}
		require.NoError(t, m.Backward(ctx))
		norm, err := m.ClipGradNorm(ctx, math.Inf(1))
		require.NoError(t, err)
		require.InDelta(t, want.GradNorm[step], norm, tol*norm)
		require.NoError(t, opt.Step(o.lr))
		m.ZeroGrad()
		state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
		require.NoError(t, err)
		squares, sum := 0.0, 0.0
		for _, v := range state {
			l2, s := stats(v)
			squares, sum = squares+l2*l2, sum+s
		}
		require.InDelta(t, want.L2[step], math.Sqrt(squares), tol*(1+want.L2[step]), "step %d", step)
		require.InDelta(t, want.Sum[step], sum, tol*(1+want.L2[step]), "step %d", step)
		step++
	}
	require.Len(t, want.GradNorm, step)
	state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	requireStats(t, want.Params, state, tol, nil)
}
