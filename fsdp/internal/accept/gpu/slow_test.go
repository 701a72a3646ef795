//go:build linux && cgo

package gpu_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/internal/accept/kit"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/fsdp/op"
)

// TestGPUPlansSlowOperations: a plan, which needs no GPU, names operations that have slow kernels,
// and refuses operations that have none.
func TestGPUPlansSlowOperations(t *testing.T) {
	planned := func(m fsdp.Model, p fsdp.Precision, batch ...fsdp.Shape) (*fsdp.Plan, error) {
		return fsdp.Planner{Model: m, Config: fsdp.Config{Device: new(gpu.Device), Precision: p}, Batch: batch}.Plan()
	}
	tokens := fsdp.Ints(2, 4)
	for _, v := range []struct {
		heads     int
		precision fsdp.Precision
		want      string
	}{
		{2, fsdp.BF16(), "attention heads of 256 columns, over 128"},
		{128, fsdp.BF16(), "attention heads of 4 columns, not 8 × n"},
		{4, fsdp.Precision{}, "attention in float32, without tensor cores"},
		{4, fsdp.BF16(), ""},
		{2, fsdp.Precision{Compute: fsdp.Float16}, "attention heads of 256 columns, over 128"},
		{4, fsdp.Precision{Compute: fsdp.Float16}, ""},
	} {
		p, err := planned(&nn.GPT{Vocab: 8, Context: 4, Layers: 2, Dim: 512, Heads: v.heads}, v.precision, tokens, tokens)
		require.NoError(t, err)
		kernels := "GPU, without tensor cores"
		if v.precision.Compute != fsdp.Float32 {
			kernels = "GPU"
		}
		require.Equal(t, kernels, p.Kernels)
		if v.want == "" {
			require.Empty(t, p.Stock)
			continue
		}
		require.Len(t, p.Stock, 4, "forward and backward of two blocks")
		for _, op := range p.Stock {
			require.Equal(t, v.want, op.Reason)
			require.Regexp(t, `^blocks\.[01]$`, op.Call)
			require.Positive(t, op.Bytes)
		}
		require.Contains(t, p.String(), "\nslow: "+v.want+", with the bytes they move\n")
	}

	cfg := fsdp.Config{Device: &gpu.Device{TF32: true}}
	p, err := fsdp.Planner{Model: kit.TinyGPT(1), Config: cfg, Batch: []fsdp.Shape{tokens, tokens}}.Plan()
	require.NoError(t, err)
	require.Equal(t, "GPU, in TF32", p.Kernels)

	custom := func(name string) *op.Custom {
		k := op.Kernel{F32: func(op.Args[float32]) error { return nil }}
		return &op.Custom{Name: name, Shapes: "x [...] -> y [...]", Forward: k, Backward: k}
	}
	square, cube := custom("square"), custom("cube")
	module := func(ops ...*op.Custom) fsdp.Module {
		return &kit.Module{Graph: func(_ *fsdp.Builder, in []*gorgonia.Node) (_ gorgonia.Nodes, err error) {
			y := in[0]
			for i := 0; i < len(ops) && err == nil; i++ {
				y, err = ops[i].Apply(y)
			}
			return gorgonia.Nodes{y}, err
		}}
	}
	both, last := module(square, cube, square), module(cube)
	_, err = planned(kit.Model(func(t *fsdp.Tape, in []fsdp.Ref) ([]fsdp.Ref, error) {
		x := t.Call("fit", &nn.Linear{In: 3, Out: 3}, in[0])
		for _, name := range []string{"a.0", "a.1", "a.2"} {
			x = t.Call(name, both, x)
		}
		x = t.Call("b", last, x)
		return []fsdp.Ref{t.Call("loss", &nn.CrossEntropy{}, x, in[1])}, nil
	}), fsdp.Precision{}, fsdp.Floats(2, 3), fsdp.Ints(2))
	require.EqualError(t, err, "fsdp: a plan for rank 0 of 1: call a.0 (*kit.Module) and 2 more calls: custom square, custom cube on the GPU: there are no kernels for them\n"+
		"call b (*kit.Module): custom cube on the GPU: there are no kernels for it")
}

// TestGPUWarnsOfSlowOperations: the first Forward warns before it runs, once, on rank 0.
func TestGPUWarnsOfSlowOperations(t *testing.T) {
	kit.CleanGPU(t)
	dev, err := gpu.Open(0)
	require.NoError(t, err)
	var log bytes.Buffer
	cfg := fsdp.Config{Device: dev, WrapPolicy: kit.Blocks, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	m := kit.Wrap(t, kit.TinyGPT(2), cfg)
	require.Empty(t, log.String())
	for range 2 {
		_, err = m.Forward(t.Context(), kit.GoodBatch(0)...)
		require.NoError(t, err)
	}
	require.Equal(t, 1, strings.Count(log.String(), "the GPU has only slow kernels for some operations"), log.String())
	require.Contains(t, log.String(), "attention in float32, without tensor cores: ")
	require.NoError(t, m.Close())
	require.NoError(t, dev.Close())
}
