package graph_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/graph"
)

// noisy is two layers whose input has noise, which the second one sees too, and whose hidden units
// are dropped. If given, the random numbers of the ranks are inputs.
func noisy(dt tensor.Dtype, given [][]fsdp.Tensor) (m *net, random G.Nodes) {
	m = newNet(dt)
	x, y := m.input("x", 4, 6), m.input("y", 4, 3)
	random = (G.Nodes{G.GaussianRandomNode(m.g, dt, 0, 0.5, 4, 6), G.BinomialRandomNode(m.g, dt, 1, 0.5, 4, 5)})
	if given != nil {
		random = G.Nodes{m.input("noise", 4, 6), m.input("kept", 4, 5)}
		m.inputShapes, m.given = m.inputShapes[:2], given
	}
	noise, kept := random[0], random[1]
	h := G.Must(G.Tanh(addBias(G.Must(G.Mul(G.Must(G.Add(x, noise)), m.weight("w0", 6, 5))), m.weight("b0", 1, 5))))
	h = G.Must(G.Tanh(G.Must(G.Mul(G.Must(G.HadamardProd(h, kept)), m.weight("w1", 5, 3)))))
	m.squares(G.Must(G.Add(h, G.Must(G.Mul(noise, m.weight("w2", 6, 3))))), y)
	return m, random
}

// TestRandomNodes takes a step as Gorgonia's machine does with the same random numbers. Every
// evaluation draws the numbers of the first pass. All calls of a rank see the same numbers, and
// ranks see different ones.
func TestRandomNodes(t *testing.T) {
	for dt, tolerance := range map[tensor.Dtype]float64{tensor.Float64: 1e-10, tensor.Float32: 1e-5} {
		for ranks := 1; ranks <= 3; ranks++ {
			m, random := noisy(dt, nil)
			model, err := graph.Model(m.cost, m.inputs, m.learn, graph.Results(random...))
			require.NoError(t, err)
			cfg := fsdp.Config{WrapPolicy: fsdp.WrapEach(), Seed: 7, Poison: true}
			drawn := make([][]fsdp.Tensor, ranks)
			onRanks(t, ranks, func(ctx context.Context, g comm.Group) {
				cfg := cfg
				cfg.Group = g
				if dt == tensor.Float64 {
					cfg.Precision.Compute = fsdp.Float64
				}
				s := wrap(t, model, cfg)
				for range 2 {
					out, err := s.Eval(ctx, m.batch(0, g.Rank())...)
					require.NoError(t, err)
					if before := drawn[g.Rank()]; before != nil {
						require.Equal(t, floats(before[0]), floats(out[1]))
					}
					drawn[g.Rank()] = []fsdp.Tensor{out[1].Clone().(*tensor.Dense), out[2].Clone().(*tensor.Dense)}
				}
				require.NoError(t, s.Close())
			})
			if ranks > 1 {
				require.NotEqual(t, floats(drawn[0][0]), floats(drawn[1][0]))
			}
			got := train(t, m, model, ranks, 2, 0, cfg)
			require.NotEqual(t, got[0].losses, got[1].losses, "the second batch, and other numbers")
			given, _ := noisy(dt, drawn)
			want := tapeMachine(t, given, ranks, 1, 0)[0]
			requireClose(t, want.losses, got[0].losses, tolerance, "losses")
			for full, g := range got[0].grads {
				requireClose(t, want.grads[full[strings.LastIndex(full, ".")+1:]], g, tolerance, full)
			}
		}
	}
}

// TestRandomNodesOfUnevenRanks: a rank draws the same numbers in a pass whether or not other ranks
// have a batch. A rank without a batch draws nothing, and continues like the others.
func TestRandomNodesOfUnevenRanks(t *testing.T) {
	const ranks, passes = 2, 3
	m, _ := noisy(tensor.Float64, nil)
	model := m.model(t)
	losses := func(batches [ranks]int) (losses [ranks][]float64) {
		onRanks(t, ranks, func(ctx context.Context, g comm.Group) {
			s := wrap(t, model, fsdp.Config{Group: g, WrapPolicy: fsdp.WrapEach(), Precision: fsdp.Precision{Compute: fsdp.Float64}})
			pass := func(batch []fsdp.Tensor) {
				loss, err := s.Forward(ctx, batch...)
				require.NoError(t, err)
				require.NoError(t, s.Backward(ctx))
				s.ZeroGrad()
				losses[g.Rank()] = append(losses[g.Rank()], loss)
			}
			mine := func(yield func([]fsdp.Tensor, error) bool) {
				for i := 0; i < batches[g.Rank()] && yield(m.batch(0, g.Rank()), nil); i++ {
				}
			}
			for batch, err := range s.Join(ctx, mine) {
				require.NoError(t, err)
				pass(batch)
			}
			pass(m.batch(0, g.Rank()))
			require.NoError(t, s.Close())
		})
		return losses
	}
	even, uneven := losses([ranks]int{passes, passes}), losses([ranks]int{passes, 1})
	require.Equal(t, even[0], uneven[0])
	require.Equal(t, []float64{even[1][0], 0, 0, even[1][passes]}, uneven[1])
	require.NotEqual(t, even[0][0], even[0][1], "numbers of another pass")
}
