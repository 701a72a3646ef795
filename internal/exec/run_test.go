package exec_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
	"github.com/gofsdp/gofsdp/internal/ops"
)

// fusedSpec is a block of fused operations only.
var fusedSpec = &exec.Spec{
	Params: []exec.Param{
		{Name: "gain", Shape: []int{8}}, {Name: "qkv", Shape: []int{24, 8}}, {Name: "bias", Shape: []int{24}}, {Name: "proj", Shape: []int{8, 8}},
	},
	Build: returning(func(b *exec.Builder, in []*G.Node) (*G.Node, error) {
		p, err := params(b, "gain", "qkv", "bias", "proj")
		if err != nil {
			return nil, err
		}
		h, err := ops.RMSNorm(in[0], p[0], 1e-6)
		if err != nil {
			return nil, err
		}
		if h, err = ops.Linear(h, p[1], p[2]); err != nil {
			return nil, err
		}
		if h, err = ops.SelfAttention(h, nil, nil, nil, ops.Attention{Heads: 2, Causal: true}); err != nil {
			return nil, err
		}
		if h, err = ops.Linear(h, p[3], nil); err != nil {
			return nil, err
		}
		if h, err = ops.Dropout(h, 0.1, 1); err != nil {
			return nil, err
		}
		return G.Add(h, in[0])
	}),
}

// TestFusedModule checks the gradients of a block, and that running it allocates nothing.
func TestFusedModule(t *testing.T) {
	for _, policy := range policies {
		sig := exectest.Signature(tensor.Float64, []int{2, 5, 8})
		sig.Save = policy
		trial := exectest.New(t, fusedSpec, sig)
		trial.CheckGradients(t)
		trial.CheckFloat32(t, 1e-4)

		var r exec.Runner
		var err error
		c := trial.Call()
		require.NoError(t, r.Forward(trial.Unit, c)) // the kernels' own workspace is made once
		require.Zero(t, testing.AllocsPerRun(10, func() { err = r.Forward(trial.Unit, c) }))
		require.NoError(t, err)
		trial.Turn(c)
		c.Work = make([]byte, max(trial.Unit.Forward.Work, trial.Unit.Backward.Work))
		require.NoError(t, r.Backward(trial.Unit, c))
		require.Zero(t, testing.AllocsPerRun(10, func() { err = r.Backward(trial.Unit, c) }))
		require.NoError(t, err)
	}
}

// TestSharedUnit runs one unit, with stock operations and constants, on several goroutines at once.
func TestSharedUnit(t *testing.T) {
	sig := exectest.Signature(tensor.Float64, []int{2, 3, 4})
	trial := exectest.New(t, mixedSpec, sig)
	want := trial.Run(t)
	var ranks sync.WaitGroup
	got := make([]exectest.Results, 4)
	for i := range got {
		ranks.Go(func() {
			for range 10 {
				got[i] = trial.Run(t)
			}
		})
	}
	ranks.Wait()
	for _, res := range got {
		exectest.RequireClose(t, want, res, 0)
	}
}

// TestSeed draws other random numbers for another seed, none in evaluation, and the same in forward
// and backward.
func TestSeed(t *testing.T) {
	trial := exectest.New(t, &exec.Spec{Build: returning(func(_ *exec.Builder, x []*G.Node) (*G.Node, error) {
		return ops.Dropout(x[0], 0.5, 1)
	})}, exectest.Signature(tensor.Float64, []int{100}))
	one := trial.Run(t)
	exectest.RequireClose(t, one, trial.Run(t), 0)
	trial.CheckGradients(t)
	trial.Seed++
	require.NotEqual(t, one.Out, trial.Run(t).Out)
	trial.CheckGradients(t)
	trial.Eval = true
	require.Equal(t, trial.In, trial.Run(t).Out)
	trial.CheckGradients(t)
}

// TestRunnerOfManyUnits runs units of different sizes in turn on one runner.
func TestRunnerOfManyUnits(t *testing.T) {
	var r exec.Runner
	for i := range 6 {
		spec, shape := mixedSpec, []int{1 + i, 3, 4}
		if i%2 > 0 {
			spec, shape = fusedSpec, []int{2, 6 - i, 8}
		}
		trial := exectest.New(t, spec, exectest.Signature(tensor.Float64, shape))
		c := trial.Call()
		require.NoError(t, r.Forward(trial.Unit, c))
		require.Equal(t, trial.Run(t).Out[0], exec.Data[float64](c.Out[0]))
	}
}

// TestThreadsShareInstructions counts the elements that each thread computes of an operation.
func TestThreadsShareInstructions(t *testing.T) {
	for split, parts := range map[exec.Split]int{exec.Whole: 1, exec.ByElement: 3, exec.ByKernel: 3} {
		var mu sync.Mutex
		var shares []int
		probe := func(f *exec.Frame) error {
			mu.Lock()
			defer mu.Unlock()
			shares = append(shares, len(f.Out.Bytes)/4)
			copy(f.Out.Bytes, f.In[0].Bytes)
			return nil
		}
		row := &exec.Row{Kind: "probe", Shapes: "x [...] -> y [...]", Split: split, FLOPs: exec.Each(0), Kernels: exec.Kernels{F32: probe}}
		spec := &exec.Spec{Build: returning(func(_ *exec.Builder, in []*G.Node) (*G.Node, error) { return row.Apply(nil, in[0]) })}
		sig := exectest.Signature(tensor.Float32, []int{1000})
		sig.Inputs[0].Grad, sig.GradOut, sig.Threads = false, nil, 3
		tr := exectest.New(t, spec, sig)
		var r exec.Runner
		r.Team.Start(3)
		require.NoError(t, r.Forward(tr.Unit, tr.Call()))
		r.Team.Close()
		require.Len(t, shares, parts)
		if split == exec.ByElement {
			require.Equal(t, 1000, shares[0]+shares[1]+shares[2])
		}
	}
}
