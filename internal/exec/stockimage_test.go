package exec_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	fsdpexec "github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// images are pooling, and a Dropout that drops nothing.
func images() map[string]entry {
	two, one1 := entry{advice: "use equal pads"}, entry{}
	for _, c := range []struct{ image, window, pad []int }{ // window: kernel, stride
		{[]int{2, 2, 4, 5}, []int{2, 2, 2, 2}, []int{0, 0}},
		{[]int{1, 2, 5, 4}, []int{3, 2, 2, 1}, []int{1, 1}},
		{[]int{1, 1, 4, 4}, []int{2, 2, 1, 1}, []int{1, 1, 0, 0}},
	} {
		two.samples = append(two.samples, one("", c.image, func(x *G.Node) (*G.Node, error) {
			return G.MaxPool2D(x, c.window[:2], c.pad, c.window[2:])
		}, func(x array) array { return largest(x, c.window, c.pad[0], c.pad[len(c.pad)/2]) }))
	}
	for _, pad := range [][]int{{1, 0, 0, 0}, {2, 2}} {
		two.refused = append(two.refused, one("", []int{1, 1, 4, 4}, func(x *G.Node) (*G.Node, error) {
			return G.MaxPool2D(x, tensor.Shape{2, 2}, pad, []int{2, 2})
		}, nil))
	}
	row := func(pool func(*G.Node, int, int, int) (*G.Node, error)) sample { // AveragePool1D is MaxPool1D
		return one("", []int{2, 1, 1, 5}, func(x *G.Node) (*G.Node, error) { return pool(x, 2, 0, 1) },
			func(x array) array { return largest(x, []int{1, 2, 1, 1}, 0, 0) })
	}
	one1.samples = []sample{row(G.MaxPool1D)}
	dropout := entry{samples: []sample{one("", []int{2, 3}, func(x *G.Node) (*G.Node, error) { return G.Dropout(x, 0) },
		func(x array) array { return x })}}
	return map[string]entry{"MaxPool2D": two, "MaxPool1D": one1, "AveragePool1D": {samples: []sample{row(G.AveragePool1D)}}, "Dropout": dropout}
}

// largest returns the largest element of each window: of kernel and stride.
func largest(x array, window []int, north, west int) array {
	h, w := x.shape[2], x.shape[3]
	to := []int{x.shape[0], x.shape[1], (h+2*north-window[0])/window[2] + 1, (w+2*west-window[1])/window[3] + 1}
	return generate(to, func(at []int) float64 {
		m := math.Inf(-1)
		for i := range window[0] * window[1] {
			row, column := at[2]*window[2]+i/window[1]-north, at[3]*window[3]+i%window[1]-west
			if row >= 0 && row < h && column >= 0 && column < w {
				m = math.Max(m, x.at(at[0], at[1], row, column))
			}
		}
		return m
	})
}

// TestStockDropout draws masks of the library for Gorgonia's Dropouts: another one for each, the same
// in backward, where Gorgonia's own gradient is wrong, and none in evaluation.
func TestStockDropout(t *testing.T) {
	const n, rate = 10_000, 0.2
	tr := exectest.New(t, &fsdpexec.Spec{Build: func(_ *fsdpexec.Builder, x []*G.Node) (G.Nodes, error) {
		a, err := G.Dropout(x[0], rate)
		if err != nil {
			return nil, err
		}
		b, err := G.Dropout(a, rate)
		return G.Nodes{b}, err
	}}, exectest.Signature(tensor.Float64, []int{n}))
	tr.In[0] = slices.Repeat([]float64{1}, n)
	res, kept := tr.Run(t), 0.0
	for i, y := range res.Out[0] {
		require.Equal(t, y*tr.GradOut[0][i], res.GradIn[0][i])
		if y != 0 {
			require.InDelta(t, 1/(1-rate)/(1-rate), y, 1e-12)
			kept++
		}
	}
	require.InDelta(t, (1-rate)*(1-rate), kept/n, 0.03, "the masks are independent")
	tr.Eval = true
	require.Equal(t, tr.In[0], tr.Run(t).Out[0])
}

// TestConvolutionIsOne makes one operation of a Conv2d, two of two that share their patches, and
// leaves the product where something else needs it.
func TestConvolutionIsOne(t *testing.T) {
	kinds := func(f func(x, w *G.Node) (*G.Node, error)) (list []fsdpexec.Kind) {
		tr := exectest.New(t, &fsdpexec.Spec{Build: func(_ *fsdpexec.Builder, x []*G.Node) (G.Nodes, error) {
			y, err := f(x[0], x[1])
			return G.Nodes{y}, err
		}}, exectest.Signature(tensor.Float64, []int{2, 3, 5, 5}, []int{4, 3, 3, 3}))
		for _, in := range instructions(tr.Unit) {
			list = append(list, in.Op.Kind)
		}
		tr.CheckGradients(t)
		return list
	}
	require.Equal(t, []fsdpexec.Kind{fsdpexec.KindConv, fsdpexec.KindConvGradX, fsdpexec.KindConvGradW}, kinds(convolution(1, 1, 1)))
	both := kinds(func(x, w *G.Node) (*G.Node, error) {
		twice, err := G.Add(w, w)
		if err != nil {
			return nil, err
		}
		a, err := convolution(1, 1, 1)(x, w)
		if err != nil {
			return nil, err
		}
		b, err := convolution(1, 1, 1)(x, twice)
		if err != nil {
			return nil, err
		}
		return G.Add(a, b)
	})
	require.NotContains(t, both, fsdpexec.KindPatches)
	shared := kinds(func(x, w *G.Node) (*G.Node, error) {
		y, err := convolution(1, 1, 1)(x, w)
		if err != nil {
			return nil, err
		}
		rows := y.Graph().From(y.ID())
		rows.Next()
		last, err := G.Transpose(G.Must(G.Tanh(rows.Node().(*G.Node))), 0, 3, 1, 2)
		if err != nil {
			return nil, err
		}
		return G.Add(y, last)
	})
	require.Contains(t, shared, fsdpexec.KindPatches)
}
