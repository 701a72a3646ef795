package ops_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/ops"
)

func dropout(rate float64, stream uint32) function {
	return unary(func(x *G.Node) (*G.Node, error) { return ops.Dropout(x, rate, stream) })
}

// ones returns a trial of f on n ones.
func ones(t *testing.T, f function, n int) *exectest.Trial {
	tr := trial(t, f, nil, nil, []int{n})
	tr.In[0] = slices.Repeat([]float64{1}, n)
	return tr
}

// TestDropout keeps the expected part of the elements, scaled up, and sends gradients through
// exactly those.
func TestDropout(t *testing.T) {
	const n = 100_000
	for _, rate := range []float64{0, 0.1, 0.5, 0.9} {
		tr := ones(t, dropout(rate, 1), n)
		res := tr.Run(t)
		kept := 0.0
		for i, y := range res.Out[0] {
			require.Equal(t, y*tr.GradOut[0][i], res.GradIn[0][i], "element %d of the gradient has another mask", i)
			if y != 0 {
				kept++
				require.InDelta(t, 1/(1-rate), y, 1e-12)
			}
		}
		require.InDelta(t, 1-rate, kept/n, 5*math.Sqrt(rate*(1-rate)/n)+1e-12, "five standard deviations")
	}
}

// TestDropoutInEvaluation is the identity, and so is its gradient.
func TestDropoutInEvaluation(t *testing.T) {
	tr := ones(t, dropout(0.5, 1), 100)
	tr.Eval = true
	res := tr.Run(t)
	require.Equal(t, tr.In[0], res.Out[0])
	require.Equal(t, tr.GradOut[0], res.GradIn[0])
}

// TestDropoutMasks draws another mask for another seed and for another stream, whatever the element
// type.
func TestDropoutMasks(t *testing.T) {
	tr := ones(t, dropout(0.5, 1), 1000)
	mask := tr.Run(t).Out[0]
	require.Equal(t, mask, tr.Run(t).Out[0])
	require.Equal(t, mask, ones(t, dropout(0.5, 1), 1000).As(t, G.Float32).Run(t).Out[0])
	require.NotEqual(t, mask, ones(t, dropout(0.5, 2), 1000).Run(t).Out[0])
	tr.Seed++
	require.NotEqual(t, mask, tr.Run(t).Out[0])

	both := ones(t, func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		y, err := ops.Dropout(x[0], 0.5, 1)
		if err != nil {
			return nil, err
		}
		return ops.Dropout(y, 0.5, 2)
	}, 100_000)
	kept := 0.0
	for _, y := range both.Run(t).Out[0] {
		if y != 0 {
			kept++
		}
	}
	require.InDelta(t, 0.25, kept/100_000, 0.01, "the masks of two streams are independent")
}

// reads tells which rows of qkv [1, T, 12] an output row depends on: whether it changes when they
// do.
func reads(t *testing.T, tr *exectest.Trial, tokens int) [][]bool {
	before := tr.Run(t).Out[0]
	depends := make([][]bool, tokens)
	for i := range depends {
		depends[i] = make([]bool, tokens)
	}
	for j := range tokens {
		for c := range 12 {
			tr.In[0][j*12+c]++
		}
		after := tr.Run(t).Out[0]
		for i := range tokens {
			depends[i][j] = !slices.Equal(before[i*4:(i+1)*4], after[i*4:(i+1)*4])
		}
		for c := range 12 {
			tr.In[0][j*12+c]--
		}
	}
	return depends
}

// TestAttentionSees lets a query see all keys, only earlier keys, only keys of its document, or
// only keys that the mask does not hide.
func TestAttentionSees(t *testing.T) {
	const o, x = false, true
	shape := []int{1, 3, 12}
	require.Equal(t, [][]bool{{x, x, x}, {x, x, x}, {x, x, x}}, reads(t, trial(t, attention(2, false, false), nil, nil, shape), 3))
	require.Equal(t, [][]bool{{x, o, o}, {x, x, o}, {x, x, x}}, reads(t, trial(t, attention(2, true, false), nil, nil, shape), 3))
	masked := func(causal bool) *exectest.Trial {
		return trial(t, attention(2, causal, true), []float64{0, 1, 1}, []int{1, 3}, shape)
	}
	packed := func(causal bool) *exectest.Trial {
		return trial(t, joined(ops.Attention{Heads: 2, Causal: causal, Packed: true}, false, false), []float64{1, 0, 1}, []int{1, 3}, shape)
	}
	require.Equal(t, [][]bool{{x, o, o}, {o, x, x}, {o, x, x}}, reads(t, packed(false), 3))
	require.Equal(t, [][]bool{{x, o, o}, {o, x, o}, {o, x, x}}, reads(t, packed(true), 3))
	// A hidden key changes nothing, but its own query still asks.
	require.Equal(t, [][]bool{{x, x, x}, {o, x, x}, {o, x, x}}, reads(t, masked(false), 3))
	require.Equal(t, [][]bool{{o, o, o}, {o, x, o}, {o, x, x}}, reads(t, masked(true), 3))
	require.Equal(t, []float64{0, 0, 0, 0}, masked(true).Run(t).Out[0][:4], "a query that sees no key gives zeros")
}

// TestCrossEntropyOfNothing has no target that counts: loss and gradient are zero.
func TestCrossEntropyOfNothing(t *testing.T) {
	res := trial(t, crossEntropy, []float64{-1, -1}, []int{2}, []int{2, 3}).Run(t)
	require.Equal(t, [][]float64{{0}}, res.Out)
	require.Equal(t, make([]float64, 6), res.GradIn[0])
}

// TestCrossEntropyOfLargeLogits stays finite where a softmax would overflow, and is right about
// certainty.
func TestCrossEntropyOfLargeLogits(t *testing.T) {
	tr := trial(t, crossEntropy, []float64{0, 2}, []int{2}, []int{2, 3})
	tr.In[0] = []float64{1000, 0, -1000, 1000, 0, -1000}
	res := tr.Run(t)
	require.InDelta(t, 1000, res.Out[0][0], 1e-9)
	tr.CheckFloat32(t, 1e-6)
}
