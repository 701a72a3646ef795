package op_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
	"pgregory.net/rapid"

	"github.com/gofsdp/gofsdp/fsdp/op"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/exec/exectest"
)

// pick is the sum of the rows of x that index names, each divided by its root mean square and
// multiplied by gain: it has parameters of two kinds, integers, statistics and scratch memory.
func pick(reads ...string) *op.Custom {
	return &op.Custom{
		Name: "pick", Shapes: "x [n d], gain [d], index int [... k] -> y [... d] | rms f32 [n]", Reads: reads,
		Forward: op.Kernel{
			F32: pickForward[float32], F64: pickForward[float64],
			FLOPs: func(s op.Sizes) int { return 3 * s.Dim("...") * s.Dim("k") * s.Dim("d") },
		},
		Backward: op.Kernel{
			F32: pickBackward[float32], F64: pickBackward[float64],
			Scratch: func(s op.Sizes) int { return s.Dim("d") },
		},
	}
}

func pickForward[T op.Float](a op.Args[T]) error {
	d, k := a.Dim("d"), a.Dim("k")
	x, rms, index := a.In(0), a.Out(1), a.Ints(2)
	for i := range rms {
		sum := T(0)
		for _, v := range x[i*d:][:d] {
			sum += v * v
		}
		rms[i] = T(math.Sqrt(float64(sum / T(d))))
	}
	clear(a.Out(0))
	for i, at := range index {
		for j, g := range a.In(1) {
			a.Out(0)[i/k*d+j] += x[at*d+j] / rms[at] * g
		}
	}
	return nil
}

func pickBackward[T op.Float](a op.Args[T]) error {
	d, k := a.Dim("d"), a.Dim("k")
	x, gain, rms, dh := a.In(0), a.In(1), a.Out(1), a.Scratch()
	clear(a.Grad(0))
	clear(a.Grad(1))
	for i, at := range a.Ints(2) {
		dy, row, dx := a.DOut()[i/k*d:][:d], x[at*d:][:d], a.Grad(0)[at*d:][:d]
		dot := T(0)
		for j := range d {
			a.Grad(1)[j] += dy[j] * row[j] / rms[at]
			dh[j] = dy[j] * gain[j]
			dot += dh[j] * row[j]
		}
		for j := range d {
			dx[j] += dh[j]/rms[at] - row[j]*dot/(T(d)*rms[at]*rms[at]*rms[at])
		}
	}
	return nil
}

// picking is a module of a Custom between operations of the library.
func picking(c *op.Custom) *exec.Spec {
	return &exec.Spec{
		Params: []exec.Param{{Name: "gain", Shape: []int{3}}},
		Build: func(b *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
			gain, err := b.Param("gain")
			if err != nil {
				return nil, err
			}
			x, err := op.GELU(in[0])
			if err != nil {
				return nil, err
			}
			if x, err = c.Apply(x, gain, in[1]); err != nil {
				return nil, err
			}
			y, err := op.GELUTanh(x)
			return gorgonia.Nodes{y}, err
		},
	}
}

// pickTrial compiles it.
func pickTrial(t *testing.T, c *op.Custom) *exectest.Trial {
	sig := exectest.Signature(tensor.Float64, []int{4, 3})
	sig.Inputs = append(sig.Inputs, exec.Input{Shape: []int{2, 1, 5}, DType: tensor.Int})
	trial := exectest.New(t, picking(c), sig)
	trial.In[1] = []float64{0, 1, 1, 3, 2, 0, 0, 0, 3, 1}
	return trial
}

// TestCustomGradients compares a Custom that saves its statistics, and one that is computed again,
// with the definition, in all types.
func TestCustomGradients(t *testing.T) {
	for _, cheap := range []bool{false, true} {
		c := pick("x", "gain", "index", "rms")
		c.Cheap = cheap
		trial := pickTrial(t, c)
		trial.CheckGradients(t)
		trial.CheckFloat32(t, 1e-5)
		exectest.RequireClose(t, trial.Run(t), trial.Half(t).Run(t), 0.05)
	}
}

// TestCustomSplits has threads share a Custom by its rows.
func TestCustomSplits(t *testing.T) {
	rows := func(a op.Args[float64], y, x []float64) {
		d := a.Dim("d")
		lo, hi := a.Rows()
		for i := lo * d; i < hi*d; i++ {
			a.Scratch()[0] = x[i]
			y[i] = 2 * a.Scratch()[0]
		}
	}
	one := func(op.Sizes) int { return 1 }
	double := &op.Custom{
		Name: "double", Shapes: "x [... d] -> y [... d]", Reads: []string{},
		Forward: op.Kernel{Split: true, Scratch: one, F64: func(a op.Args[float64]) error {
			rows(a, a.Out(0), a.In(0))
			return nil
		}},
		Backward: op.Kernel{Split: true, Scratch: one, F64: func(a op.Args[float64]) error {
			rows(a, a.Grad(0), a.DOut())
			return nil
		}},
	}
	spec := &exec.Spec{Build: func(_ *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		y, err := double.Apply(in[0])
		return gorgonia.Nodes{y}, err
	}}
	trial := exectest.New(t, spec, exectest.Signature(tensor.Float64, []int{5, 7, 3}))
	want := trial.Run(t)
	for i, x := range trial.In[0] {
		require.Equal(t, 2*x, want.Out[0][i])
		require.Equal(t, 2*trial.GradOut[0][i], want.GradIn[0][i])
	}
	exectest.RequireClose(t, want, trial.On(t, 3).Run(t), 0)
}

// TestCustomCostIsPlanned finds FLOPs and scratch memory in the programs.
func TestCustomCostIsPlanned(t *testing.T) {
	trial := pickTrial(t, pick("x", "gain", "index", "rms"))
	found := 0
	for in := range trial.Unit.Forward.All() {
		if in.Op.Kind == "custom pick" {
			found++
			require.Equal(t, 3*2*5*3, in.Cost().FLOPs)
			require.Zero(t, in.Scratch.Bytes)
		}
	}
	for in := range trial.Unit.Backward.All() {
		if in.Op.Kind == "custom pick grad" {
			found++
			require.Equal(t, 4*3, in.Cost().FLOPs)
			require.Equal(t, 3*8, in.Scratch.Bytes)
		}
	}
	require.Equal(t, 2, found)
}

// TestCustomAllocatesNothing runs a compiled Custom.
func TestCustomAllocatesNothing(t *testing.T) {
	trial := pickTrial(t, pick("x", "gain", "index", "rms"))
	var r exec.Runner
	c := trial.Call()
	require.Zero(t, testing.AllocsPerRun(10, func() { require.NoError(t, r.Forward(trial.Unit, c)) }))
	trial.Turn(c)
	require.Zero(t, testing.AllocsPerRun(10, func() { require.NoError(t, r.Backward(trial.Unit, c)) }))
}

// plus is x + c, by a Custom that captures c.
func plus(c float64) *op.Custom {
	return &op.Custom{
		Name: "plus", Shapes: "x [...] -> y [...]", Reads: []string{},
		Forward: op.Kernel{F64: func(a op.Args[float64]) error {
			for i, x := range a.In(0) {
				a.Out(0)[i] = x + c
			}
			return nil
		}},
		Backward: op.Kernel{F64: func(a op.Args[float64]) error { copy(a.Grad(0), a.DOut()); return nil }},
	}
}

// TestCustomsOfOneName are two functions, and Gorgonia does not take the one for the other.
func TestCustomsOfOneName(t *testing.T) {
	spec := &exec.Spec{Build: func(_ *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		one, err := plus(1).Apply(in[0])
		if err != nil {
			return nil, err
		}
		two, err := plus(2).Apply(in[0])
		if err != nil {
			return nil, err
		}
		y, err := gorgonia.HadamardProd(one, two)
		return gorgonia.Nodes{y}, err
	}}
	trial := exectest.New(t, spec, exectest.Signature(tensor.Float64, []int{2}))
	trial.CheckGradients(t)
	trial.In[0] = []float64{10, 20}
	require.Equal(t, [][]float64{{11 * 12, 21 * 22}}, trial.Run(t).Out)
}

// TestCustomKeepsWhatItReads keeps nothing for a Custom that says so.
func TestCustomKeepsWhatItReads(t *testing.T) {
	build := func(c *op.Custom) *exectest.Trial {
		return exectest.New(t, &exec.Spec{Build: func(_ *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
			y, err := c.Apply(in[0])
			return gorgonia.Nodes{y}, err
		}}, exectest.Signature(tensor.Float64, []int{2}))
	}
	require.Equal(t, []bool{false}, build(plus(1)).Unit.KeepIn)
	all := plus(1)
	all.Reads = nil
	require.Equal(t, []bool{true}, build(all).Unit.KeepIn)
	own := plus(1)
	own.Reads = []string{"y"}
	require.Equal(t, []bool{true}, build(own).Unit.KeepOut)
}

// TestCustomMistakes are refused when the operation is applied, differentiated or run.
func TestCustomMistakes(t *testing.T) {
	kernel := op.Kernel{F32: func(op.Args[float32]) error { return nil }}
	apply := func(c *op.Custom, args ...int) error {
		g := gorgonia.NewGraph()
		all := gorgonia.Nodes{
			gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(2, 3), gorgonia.WithName("x")),
			gorgonia.NewVector(g, tensor.Int, gorgonia.WithShape(2), gorgonia.WithName("i")),
			gorgonia.NewVector(g, tensor.Float64, gorgonia.WithShape(2), gorgonia.WithName("wide")), nil,
		}
		var in gorgonia.Nodes
		for _, a := range args {
			in = append(in, all[a])
		}
		_, err := c.Apply(in...)
		return err
	}
	for _, c := range []struct {
		want   string
		custom *op.Custom
		args   []int
	}{
		{"field Name is empty, or Shapes has no ->", &op.Custom{Name: "c", Shapes: "x [n]", Forward: kernel}, nil},
		{"field Name is empty", &op.Custom{Shapes: "x [n] -> y [n]", Forward: kernel}, nil},
		{`" y" in Shapes is invalid: want the form "x [... d]"`, &op.Custom{Name: "c", Shapes: "x [n] -> y", Forward: kernel}, nil},
		{`"x [n ...] " in Shapes is invalid: want the form`, &op.Custom{Name: "c", Shapes: "x [n ...] -> y [n]", Forward: kernel}, nil},
		{`"x long [n] " in Shapes is invalid: want the form`, &op.Custom{Name: "c", Shapes: "x long [n] -> y [n]", Forward: kernel}, nil},
		{"arguments of floats must come before arguments of integers", &op.Custom{Name: "c", Shapes: "i int [n], x [n] -> y [n]", Forward: kernel}, nil},
		{"arguments of floats must come before arguments of integers", &op.Custom{Name: "c", Shapes: "i int [n] -> y [n]", Forward: kernel}, nil},
		{"in Shapes, results must be floats", &op.Custom{Name: "c", Shapes: "x [n] -> y int [n]", Forward: kernel}, nil},
		{"results in f32 must come last", &op.Custom{Name: "c", Shapes: "x [n] -> s f32 [n] | y [n]", Forward: kernel}, nil},
		{"Split is set, but Shapes has no ...", &op.Custom{Name: "c", Shapes: "x [n] -> y [n]", Forward: op.Kernel{F32: kernel.F32, Split: true}}, nil},
		{`"z" is in Reads but not in Shapes`, &op.Custom{Name: "c", Shapes: "x [n] -> y [n]", Forward: kernel, Reads: []string{"x", "z"}}, nil},
		{"custom c: 2 arguments, want 1: x [...] -> y [...]", &op.Custom{Name: "c", Shapes: "x [...] -> y [...]", Forward: kernel}, []int{0, 0}},
		{"custom c: x is (2, 3), want [n 4]", &op.Custom{Name: "c", Shapes: "x [n 4] -> y [n]", Forward: kernel}, []int{0}},
		{"custom c: x is (2, 3), want [2 2]", &op.Custom{Name: "c", Shapes: "x [n n] -> y [n]", Forward: kernel}, []int{0}},
		{"custom c: x is int, want a float", &op.Custom{Name: "c", Shapes: "x [...] -> y [...]", Forward: kernel}, []int{1}},
		{"custom c: x is nil", &op.Custom{Name: "c", Shapes: "x [...] -> y [...]", Forward: kernel}, []int{3}},
		{"custom c: no argument determines the shape [m] of y", &op.Custom{Name: "c", Shapes: "x [...] -> y [m]", Forward: kernel}, []int{0}},
		{"custom c: field Forward has no kernel for float64", &op.Custom{Name: "c", Shapes: "x [...] -> y [...]", Forward: kernel}, []int{2}},
		{"custom c: field Forward has no kernel for float32", &op.Custom{Name: "c", Shapes: "x [...] -> y [...]"}, []int{0}},
		{"custom c: field Backward has no kernel for float32", &op.Custom{Name: "c", Shapes: "x [...] -> y [...]", Forward: kernel,
			Backward: op.Kernel{F64: func(op.Args[float64]) error { return nil }}}, []int{0}},
		{"custom c: odd", &op.Custom{Name: "c", Shapes: "x [n d] -> y [n d]", Forward: kernel,
			Fit: func(op.Sizes) error { return errors.New("odd") }}, []int{0}},
		{`custom c: Fit panicked at `, &op.Custom{Name: "c", Shapes: "x [n d] -> y [n d]", Forward: kernel,
			Fit: func(s op.Sizes) error { s.Dim("q"); return nil }}, []int{0}},
		{"custom c: FLOPs or Scratch panicked at ", &op.Custom{Name: "c", Shapes: "x [n d] -> y [n d]",
			Forward: op.Kernel{F32: kernel.F32, FLOPs: func(s op.Sizes) int { return s.Dim("q") }}}, []int{0}},
		{"custom c: FLOPs or Scratch is negative", &op.Custom{Name: "c", Shapes: "x [n d] -> y [n d]",
			Forward: op.Kernel{F32: kernel.F32, Scratch: func(op.Sizes) int { return -1 }}}, []int{0}},
	} {
		require.ErrorContains(t, apply(c.custom, c.args...), c.want, c.want)
		require.ErrorContains(t, apply(c.custom, c.args...), c.want, "a second time")
	}
}

// TestCustomTakesNothingOddly gives shapes put together at random: an operation is refused with an
// error, or runs, and then its results have the sizes that Shapes says.
func TestCustomTakesNothingOddly(t *testing.T) {
	word := rapid.SampledFrom([]string{"...", "n", "n", "m", "m", "3", "3", "2", "2", "0", "]"})
	operand := rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom([]string{"x [", "x [", "y[", "z f32 [", "é ["}).Draw(t, "name")
		return name + strings.Join(rapid.SliceOfN(word, 1, 2).Draw(t, "dimensions"), " ") + "]"
	})
	rapid.Check(t, func(t *rapid.T) {
		shapes := operand.Draw(t, "argument") + " -> " + strings.Join(rapid.SliceOfN(operand, 1, 2).Draw(t, "results"), " | ")
		c := &op.Custom{Name: "odd", Shapes: shapes, Forward: op.Kernel{F64: func(a op.Args[float64]) error {
			clear(a.Out(0))
			return nil
		}}}
		g := gorgonia.NewGraph()
		y, err := c.Apply(gorgonia.NodeFromAny(g, tensor.New(tensor.WithShape(2, 3), tensor.Of(tensor.Float64)), gorgonia.WithName("x")))
		if err != nil {
			require.ErrorContains(t, err, "custom odd: ")
			return
		}
		vm := gorgonia.NewTapeMachine(g)
		defer vm.Close()
		require.NoError(t, vm.RunAll(), shapes)
		require.NotContains(t, y.Value().Shape(), 0, shapes)
	})
}

// TestCustomFits sets the dimension of a result, and refuses to be differentiated.
func TestCustomFits(t *testing.T) {
	halves := &op.Custom{
		Name: "halves", Shapes: "x [... d] -> y [... h]",
		Fit: func(s op.Sizes) error {
			s.Set("h", s.Dim("d")/2)
			return nil
		},
		Forward: op.Kernel{F64: func(a op.Args[float64]) error {
			h := a.Dim("h")
			for i := range a.Out(0) {
				a.Out(0)[i] = a.In(0)[i/h*a.Dim("d")+i%h]
			}
			return nil
		}},
	}
	spec := &exec.Spec{Build: func(_ *exec.Builder, in []*gorgonia.Node) (gorgonia.Nodes, error) {
		y, err := halves.Apply(in[0])
		return gorgonia.Nodes{y}, err
	}}
	sig := exectest.Signature(tensor.Float64, []int{2, 4})
	_, err := exec.Compile(spec, sig)
	require.ErrorContains(t, err, "differentiation: custom halves has no Backward, which training needs: give the op.Custom one, or freeze the parameters that it is computed from")
	sig.GradOut, sig.Inputs[0].Grad = nil, false
	trial := exectest.New(t, spec, sig)
	trial.In[0] = []float64{1, 2, 3, 4, 5, 6, 7, 8}
	require.Equal(t, [][]float64{{1, 2, 5, 6}}, trial.Run(t).Out)
}
