package exec_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// A node of a random module: an operation on earlier values, all of shape [2, 3]. Values 0 and 1
// are inputs, 2 is a parameter.
type randomNode struct {
	op   string
	a, b int
}

// randomOps are the operations, on nodes and on numbers: stock and fused ones, in place and not,
// and views.
var randomOps = map[string]struct {
	node   func(x, y *G.Node) (*G.Node, error)
	number func(x, y float64) float64
}{
	"sum":     {G.Add, func(x, y float64) float64 { return x + y }},
	"product": {func(x, y *G.Node) (*G.Node, error) { return G.HadamardProd(G.Must(G.Tanh(x)), y) }, func(x, y float64) float64 { return math.Tanh(x) * y }},
	"gelu":    {func(x, _ *G.Node) (*G.Node, error) { return ops.GELU(x) }, func(x, _ float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) }},
	"relu":    {func(x, _ *G.Node) (*G.Node, error) { return ops.ReLU(x) }, func(x, _ float64) float64 { return math.Max(x, 0) }},
	"tanh":    {func(x, _ *G.Node) (*G.Node, error) { return G.Tanh(x) }, func(x, _ float64) float64 { return math.Tanh(x) }},
	"view": {func(x, _ *G.Node) (*G.Node, error) {
		y, err := exec.NewView(x, 0, 6)
		if err != nil {
			return nil, err
		}
		if y, err = ops.GELU(y); err != nil {
			return nil, err
		}
		return G.Reshape(y, tensor.Shape{2, 3})
	}, func(x, _ float64) float64 { return x * 0.5 * math.Erfc(-x/math.Sqrt2) }},
	"table": {func(x, y *G.Node) (*G.Node, error) { // y as a table of positions
		x, err := exec.NewView(x, 0, 1, 2, 3)
		if err != nil {
			return nil, err
		}
		if x, err = ops.AddPositions(x, y); err != nil {
			return nil, err
		}
		return exec.NewView(x, 0, 2, 3)
	}, func(x, y float64) float64 { return x + y }},
}

// randomModule draws the nodes of a module and which of them are outputs.
func randomModule(t *rapid.T) (nodes []randomNode, outs []int) {
	names := make([]string, 0, len(randomOps))
	for name := range randomOps {
		names = append(names, name)
	}
	slices.Sort(names)
	for i := range rapid.IntRange(1, 12).Draw(t, "nodes") {
		recent := rapid.IntRange(max(0, i-1), i+2) // long chains are the rule
		nodes = append(nodes, randomNode{
			rapid.SampledFrom(names).Draw(t, "op"), recent.Draw(t, "a"), rapid.IntRange(0, i+2).Draw(t, "b"),
		})
	}
	return nodes, rapid.SliceOfN(rapid.IntRange(0, len(nodes)+2), 1, 3).Draw(t, "outs")
}

// buildRandom returns values 0 to 2 followed by those of nodes.
func buildRandom(nodes []randomNode, leaves []*G.Node) ([]*G.Node, error) {
	values := leaves
	for _, n := range nodes {
		y, err := randomOps[n.op].node(values[n.a], values[n.b])
		if err != nil {
			return nil, err
		}
		values = append(values, y)
	}
	return values, nil
}

// TestRandomModules holds random modules against a direct evaluation and central differences. All
// policies must give the same bits.
func TestRandomModules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, outs := randomModule(t)
		spec := &exec.Spec{
			Params: []exec.Param{{Name: "p", Shape: []int{2, 3}}},
			Build: func(b *exec.Builder, in []*G.Node) (G.Nodes, error) {
				p, err := b.Param("p")
				if err != nil {
					return nil, err
				}
				values, err := buildRandom(nodes, append(slices.Clone(in), p))
				if err != nil {
					return nil, err
				}
				var list G.Nodes
				for _, o := range outs {
					list = append(list, values[o])
				}
				return list, nil
			},
		}
		sig := exectest.Signature(tensor.Float64, []int{2, 3}, []int{2, 3})
		sig.GradOut = []bool{true, rapid.Bool().Draw(t, "grad 1"), rapid.Bool().Draw(t, "grad 2")}
		sig.Inputs[0].Acc, sig.AccParam = rapid.Bool().Draw(t, "acc"), []bool{rapid.Bool().Draw(t, "acc param")}
		var first exectest.Results
		for i, policy := range policies {
			sig.Save = policy
			trial := exectest.New(t, spec, sig)
			res := trial.Run(t)
			if i > 0 {
				exectest.RequireClose(t, first, res, 0)
				continue
			}
			first = res
			for k, want := range evaluate(nodes, outs, append(slices.Clone(trial.In), trial.Param...)) {
				require.InDeltaSlice(t, want, res.Out[k], 1e-9)
			}
			trial.CheckGradients(t)
		}
	})
}

// evaluate computes the outputs of a random module from values 0 to 2 number by number.
func evaluate(nodes []randomNode, outs []int, leaves [][]float64) [][]float64 {
	list := make([][]float64, len(outs))
	for e := range leaves[0] {
		values := []float64{leaves[0][e], leaves[1][e], leaves[2][e]}
		for _, n := range nodes {
			values = append(values, randomOps[n.op].number(values[n.a], values[n.b]))
		}
		for k, o := range outs {
			list[k] = append(list[k], values[o])
		}
	}
	return list
}

// TestInPlaceNeedsTheWholeValue adds the first half of a value to both halves: the sum must not be
// written over the value that the second half still reads.
func TestInPlaceNeedsTheWholeValue(t *testing.T) {
	trial := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		y, err := ops.GELU(x[0])
		if err != nil {
			return nil, err
		}
		table, err := exec.NewView(y, 0, 2, 3)
		if err != nil {
			return nil, err
		}
		if y, err = ops.AddPositions(y, table); err != nil {
			return nil, err
		}
		return ops.GELU(y)
	})}, &exec.Signature{DType: tensor.Float64, Inputs: []exec.Input{{Shape: []int{2, 2, 3}, DType: tensor.Float64}}})
	gelu := randomOps["gelu"].number
	for i, y := range trial.Run(t).Out[0] {
		want := gelu(gelu(trial.In[0][i], 0)+gelu(trial.In[0][i%6], 0), 0)
		require.InDelta(t, want, y, 1e-12, "element %d", i)
	}
}

// TestWorkOfAChain bounds the work memory of long chains: a forward needs room for one value, a
// backward that needs no values of the forward as well.
func TestWorkOfAChain(t *testing.T) {
	const elements = 1000
	for length := 2; length <= 128; length *= 4 {
		for name, step := range map[string]func(x *G.Node, i int) (*G.Node, error){
			"in place": func(x *G.Node, i int) (*G.Node, error) { return ops.Dropout(x, 0.5, uint32(i)) },
			"residual": func(x *G.Node, i int) (*G.Node, error) {
				y, err := ops.Dropout(x, 0.5, uint32(i))
				if err != nil {
					return nil, err
				}
				return G.Add(y, x)
			},
		} {
			t.Run(fmt.Sprint(name, "/", length), func(t *testing.T) {
				u, err := exec.Compile(&exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (y *G.Node, err error) {
					y = x[0]
					for i := range length {
						if y, err = step(y, i); err != nil {
							return nil, err
						}
					}
					return y, nil
				})}, exectest.Signature(tensor.Float64, []int{elements}))
				require.NoError(t, err)
				const value = elements*8 + 64 // with padding
				require.LessOrEqual(t, u.Forward.Work, 2*value)
				require.LessOrEqual(t, u.Backward.Work, 2*value)
				require.Zero(t, u.Saved)
				require.Equal(t, []bool{false}, u.KeepIn)
			})
		}
	}
}
