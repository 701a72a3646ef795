//go:build unix

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/fsdp/profile"
)

// burn is y = x·w, with so many millions of multiplications more.
var burn = &op.Custom{
	Name: "burn", Shapes: "x [n], more [n], w [n] -> y [n]", Reads: []string{"more", "x"},
	Forward: op.Kernel{F32: func(a op.Args[float32]) error {
		one, zero := float32(1), a.In(0)[0]-a.In(0)[0]
		for range 1_000_000 * int(a.In(1)[0]) {
			one *= 1 + zero
		}
		for i, x := range a.In(0) {
			a.Out(0)[i] = x * a.In(2)[i] * one
		}
		return nil
	}},
	Backward: op.Kernel{F32: func(a op.Args[float32]) error {
		for i, dy := range a.DOut() {
			a.Grad(0)[i], a.Grad(1)[i], a.Grad(2)[i] = 0, 0, dy*a.In(0)[i]
		}
		return nil
	}},
}

// burning is a module of it, and slow a model that calls it and a quick one.
type burning struct{}

func (burning) Params() []fsdp.Param { return []fsdp.Param{{Name: "w", Shape: []int{4}}} }

func (burning) Build(b *fsdp.Builder, in ...*gorgonia.Node) (gorgonia.Nodes, error) {
	w, err := b.Param("w")
	if err != nil {
		return nil, err
	}
	y, err := burn.Apply(in[0], in[1], w)
	if err != nil {
		return nil, err
	}
	loss, err := gorgonia.Mean(y)
	return gorgonia.Nodes{y, loss}, err
}

type slow struct{}

func (slow) Forward(t *fsdp.Tape, in ...fsdp.Ref) ([]fsdp.Ref, error) {
	y := t.Call("quick", burning{}, in[0], in[2])
	return []fsdp.Ref{t.Call("slow", burning{}, y, in[1]).At(1)}, nil
}

func straggle() (err error) {
	g, err := comm.FromEnv(context.Background())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	m, err := fsdp.Wrap(slow{}, fsdp.Config{Group: g, Wrap: fsdp.WrapEach()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	full := func(x float32) fsdp.Tensor {
		return tensor.New(tensor.WithShape(4), tensor.WithBacking([]float32{x, x, x, x}))
	}
	for range 11 {
		more := float32(0)
		if g.Rank() == 1 {
			more = 20
		}
		if _, err := m.Forward(context.Background(), full(1), full(more), full(0)); err != nil {
			return err
		}
		if err := m.Backward(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// TestStragglers starts processes that train, one of which is slow. With a failure, and with ranks
// that train nothing, fsdprun says what there is to say.
func TestStragglers(t *testing.T) {
	status, r := finish(t, "straggle", "-n", "3", "-stragglers")
	require.Zero(t, status, &r.err)
	said := strings.Join(strings.Fields(strings.ReplaceAll(r.err.String(), "fsdprun:", "")), " ")
	require.Contains(t, said, "stragglers: 10 passes of 3 ranks Rank 1 holds up the others, which wait")
	require.Contains(t, said, `It computes "forward slow" in`)
	require.Contains(t, said, "That call alone is slow.")

	status, r = finish(t, "fail", "-n", "2", "-stragglers")
	require.Equal(t, 7, status)
	require.Contains(t, r.err.String(), "-stragglers: no rank has told what its operations took")
	require.Contains(t, r.err.String(), "first: rank 1")

	status, r = finish(t, "straggle", "-n", "2")
	require.Zero(t, status)
	require.Empty(t, r.err.String(), "nobody has asked")
}

// TestStragglersOfModels names models, and what cannot be compared.
func TestStragglersOfModels(t *testing.T) {
	totals := func(rank, model int, op string) *profile.Totals {
		return &profile.Totals{Rank: rank, Size: 3, Model: model, Passes: 1, Took: time.Second, Ops: []profile.Op{{Kind: "forward", Name: op, Count: 1, Took: time.Second}}}
	}
	ended := []*ending{
		{Rank: 1, Totals: []*profile.Totals{totals(1, 1, "a"), totals(1, 2, "a"), totals(1, 3, "a")}},
		{Rank: 0, Totals: []*profile.Totals{totals(0, 1, "a"), totals(0, 2, "b"), totals(1, 3, "a")}},
	}
	said := stragglers(ended)
	require.Contains(t, said, "stragglers of model 1: 1 passes of 2 ranks\nNo rank holds the others up.")
	require.Contains(t, said, "\n1 of 3 ranks have told nothing\n")
	require.Contains(t, said, "stragglers of model 2: 1 passes of 2 ranks\n")
	require.Contains(t, said, "stragglers of model 3: several groups of ranks have a model of this number")
}
