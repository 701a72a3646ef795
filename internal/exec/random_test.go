package exec_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// noise multiplies x by two drawings of each of Gorgonia's distributions. They have shapes of their own,
// since Gorgonia takes random nodes of one shape for one node, whatever their distributions.
func noise(b *exec.Builder, x []*G.Node) (*G.Node, error) {
	y, shape := x[0], x[0].Shape().Clone()
	for p := 0.5; p < 0.7; p += 0.1 {
		for _, f := range []func(g *G.ExprGraph, dt tensor.Dtype, a, b float64, shape ...int) *G.Node{
			G.UniformRandomNode, G.GaussianRandomNode, G.BinomialRandomNode,
		} {
			y = G.Must(G.HadamardProd(y, G.Must(G.Reshape(f(b.Graph(), b.DType(), 5, p, shape...), x[0].Shape().Clone()))))
			shape = append(shape.Clone(), 1)
		}
	}
	return y, nil
}

// TestRandomAgain draws other numbers for another seed, and the same ones in forward, in backward,
// whether they are kept or drawn again, on several threads and in evaluation.
func TestRandomAgain(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{41})
	trial := exectest.New(t, &exec.Spec{Build: returning(noise)}, sig)
	trial.CheckGradients(t)
	want := trial.Run(t)
	for _, p := range policies {
		other := *sig
		other.Save = p
		exectest.RequireClose(t, want, trial.With(t, &other).Run(t), 0)
	}
	exectest.RequireClose(t, want, trial.On(t, 3).Run(t), 0)
	exectest.RequireClose(t, want, trial.As(t, tensor.Float32).Run(t), 1e-5)
	trial.Seed++
	require.NotEqual(t, want.Out, trial.Run(t).Out)
	trial.Seed, trial.Eval = trial.Seed-1, true
	exectest.RequireClose(t, want, trial.Run(t), 0)
}

// TestRandomMoments compares mean and variance of many numbers with those of the distributions, and
// finds no correlation between two drawings, or with a dropout's.
func TestRandomMoments(t *testing.T) {
	const n = 1 << 16
	for name, c := range map[string]struct {
		f              func(g *G.ExprGraph, dt tensor.Dtype, a, b float64, shape ...int) *G.Node
		a, b           float64
		mean, variance float64
	}{
		"uniform":   {G.UniformRandomNode, -1, 3, 1, 16. / 12},
		"gaussian":  {G.GaussianRandomNode, 2, 0.5, 2, 0.25},
		"binomial":  {G.BinomialRandomNode, 7, 0.3, 2.1, 1.47},
		"bernoulli": {G.BinomialRandomNode, 1, 0.9, 0.9, 0.09},
		"always":    {G.BinomialRandomNode, 3, 1, 3, 0},
		"never":     {G.BinomialRandomNode, 3.9, 0, 0, 0},
	} {
		sig := exectest.Signature(tensor.Float32, []int{n})
		sig.Inputs[0].Grad, sig.GradOut = false, nil
		tr := exectest.New(t, &exec.Spec{Build: func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
			zero := G.Must(G.Sub(x[0], x[0]))
			dropped, err := exec.Dropout(G.Must(G.Exp(zero)), 0.5, 0)
			draw := func(shape ...int) *G.Node {
				return G.Must(G.Add(zero, G.Must(G.Reshape(c.f(b.Graph(), b.DType(), c.a, c.b, shape...), tensor.Shape{n}))))
			}
			return G.Nodes{draw(n), draw(n, 1), dropped}, err
		}}, sig)
		out := tr.Run(t).Out
		tolerance := 5 * math.Sqrt(c.variance/n)
		correlated := func(x, y []float64, mean float64) (sum float64) {
			for i := range x {
				sum += (x[i] - c.mean) * (y[i] - mean) / n
			}
			return sum
		}
		for _, x := range out[:2] {
			mean := 0.0
			for _, v := range x {
				mean += v / n
			}
			require.InDelta(t, c.mean, mean, tolerance+1e-6, name)
			require.InEpsilon(t, 1+c.variance, 1+correlated(x, x, c.mean), 0.02, name)
		}
		require.InDelta(t, 0, correlated(out[0], out[1], c.mean), c.variance*5/math.Sqrt(n)+1e-9, name)
		require.InDelta(t, 0, correlated(out[0], out[2], 1), math.Sqrt(c.variance)*5/math.Sqrt(n)+1e-9, name)
	}
}

// TestUniformEnds draws from an interval of few numbers, whose end is where many are rounded to.
func TestUniformEnds(t *testing.T) {
	const lo, hi, n = 1 << 24, 1<<24 + 8, 1000
	sig := exectest.Signature(tensor.Float32, []int{n})
	sig.Inputs[0].Grad, sig.GradOut = false, nil
	tr := exectest.New(t, &exec.Spec{Build: func(b *exec.Builder, x []*G.Node) (G.Nodes, error) {
		zero := G.Must(G.Sub(x[0], x[0]))
		return G.Nodes{
			G.Must(G.Add(zero, G.UniformRandomNode(b.Graph(), b.DType(), lo, hi, n))),
			G.Must(G.Add(zero, G.Must(G.Reshape(G.UniformRandomNode(b.Graph(), b.DType(), lo, lo, n, 1), tensor.Shape{n})))),
		}, nil
	}}, sig)
	out := tr.Run(t).Out
	require.Equal(t, float64(lo), slices.Min(out[0]))
	require.Equal(t, float64(hi-2), slices.Max(out[0]), "the largest number below the end")
	require.Equal(t, []float64{lo, lo}, []float64{slices.Min(out[1]), slices.Max(out[1])})
}
