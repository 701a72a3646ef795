package observe_test

import (
	"fmt"
	"hash"
	"hash/fnv"
	"testing"

	"github.com/chewxy/hm"
	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
)

// tripled is 3·x as an operation of Gorgonia's kind, which nobody but Gorgonia can run.
type tripled struct{}

func (tripled) Arity() int { return 1 }
func (tripled) Type() hm.Type {
	return hm.NewFnType(hm.TypeVariable('a'), hm.TypeVariable('a'))
}
func (tripled) InferShape(in ...gorgonia.DimSizer) (tensor.Shape, error) {
	return in[0].(tensor.Shape).Clone(), nil
}
func (tripled) Do(in ...gorgonia.Value) (gorgonia.Value, error) {
	return tensor.Mul(in[0], float32(3))
}
func (tripled) ReturnsPtr() bool      { return false }
func (tripled) CallsExtern() bool     { return false }
func (tripled) OverwritesInput() int  { return -1 }
func (tripled) WriteHash(h hash.Hash) { fmt.Fprint(h, "tripled") }
func (o tripled) Hashcode() uint32    { h := fnv.New32a(); o.WriteHash(h); return h.Sum32() }
func (tripled) String() string        { return "tripled" }
func (tripled) DiffWRT(int) []bool    { return []bool{true} }
func (o tripled) SymDiff(_ gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	dx, err := gorgonia.ApplyOp(o, dy)
	return gorgonia.Nodes{dx}, err
}

// TestPlanListsStockOperations finds those that run by Gorgonia's own Do: by call, with gradients.
func TestPlanListsStockOperations(t *testing.T) {
	kit.Needs(t, kit.OwnOperations)
	triple := &kit.Module{Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		y, err := gorgonia.ApplyOp(tripled{}, in[0])
		return gorgonia.Nodes{y}, err
	}}
	m := kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("first.1", triple, in[0]) // of what has no gradient
		x = t.Call("fit", &nn.Linear{In: 7, Out: 5}, x)
		x = t.Call("first.2", triple, x)
		return []fsdp.Ref{t.Call("loss", &nn.CrossEntropy{}, x, in[1])}, nil
	})
	batch := []fsdp.Tensor{
		tensor.New(tensor.WithShape(2, 7), tensor.Of(tensor.Float32)), tensor.New(tensor.WithShape(2), tensor.Of(tensor.Int)),
	}
	plan, err := kit.Wrap(t, m, fsdp.Config{}).Plan(batch...)
	require.NoError(t, err)
	require.Equal(t, []fsdp.StockOp{
		{Op: "tripled", Call: "first.2", Runs: 2, Bytes: 2 * 2 * 4 * 2 * 5, Reason: "stock operations of Gorgonia's"},
		{Op: "tripled", Call: "first.1", Runs: 1, Bytes: 2 * 4 * 2 * 7, Reason: "stock operations of Gorgonia's"},
	}, plan.Stock)
	require.Contains(t, plan.String(), "\n     0.3 kB  3 × tripled in first.*")

	plan, err = kit.Wrap(t, kit.TinyGPT(2), fsdp.Config{}).Plan(kit.TinyBatch(0, 0, 1, 3)...)
	require.NoError(t, err)
	require.Empty(t, plan.Stock)
	require.NotContains(t, plan.String(), "stock")
}
