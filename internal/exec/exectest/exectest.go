// Package exectest checks the numbers of compiled modules: it compares gradients with central
// differences, and element types with each other.
//
// A Trial runs a module like a training step, under the worst conditions: memory that a program
// must write starts as NaN, the parameters are in another buffer in backward while the first buffer
// is NaN, and memory that the Unit does not list as read is missing. So a check of the numbers also
// checks the Unit's statements about its memory.
//
//	sig := exectest.Signature(tensor.Float64, []int{3, 4})
//	trial := exectest.New(t, &exec.Spec{Build: gelu}, sig)
//	trial.CheckGradients(t)
package exectest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/half"
)

// Start is the initial value of a gradient that the program adds to.
const Start = 1.0

// T is a test: a *testing.T, a *testing.B or a *rapid.T.
type T interface {
	require.TestingT
	Helper()
}

// A Trial is a compiled module with values for everything that it reads. The values are float64
// whatever the element type of the module; values of integer inputs are whole. They may be changed
// between runs.
type Trial struct {
	Unit *exec.Unit
	// Param, In and GradOut hold the elements of each parameter, input and output gradient. An
	// input with Same set uses the elements of the input that it names.
	Param, In, GradOut [][]float64
	Seed               uint64 // of the random numbers of the call
	Eval               bool   // run in evaluation mode

	spec *exec.Spec
	sig  *exec.Signature
}

// Signature returns a signature with inputs of the given shapes and type dt, all with gradients,
// and a gradient of the first output.
func Signature(dt tensor.Dtype, shapes ...[]int) *exec.Signature {
	sig := &exec.Signature{DType: dt, GradOut: []bool{true}}
	for _, s := range shapes {
		sig.Inputs = append(sig.Inputs, exec.Input{Shape: s, DType: dt, Grad: true})
	}
	return sig
}

// New compiles a module and draws values from the standard normal distribution; integers are 0.
func New(t T, spec *exec.Spec, sig *exec.Signature) *Trial {
	t.Helper()
	u, err := exec.Compile(spec, sig)
	require.NoError(t, err)
	tr := &Trial{Unit: u, Seed: 1, spec: spec, sig: sig}
	rnd := rand.New(rand.NewPCG(1, 2))
	draw := func(shape []int) []float64 {
		v := make([]float64, exec.Numel(shape))
		for i := range v {
			v[i] = float64(half.ToBFloat16(float32(rnd.NormFloat64())).Float32()) // exact in all element types
		}
		return v
	}
	for _, p := range spec.Params {
		tr.Param = append(tr.Param, draw(p.Shape))
	}
	for _, in := range sig.Inputs {
		if in.DType == tensor.Int {
			tr.In = append(tr.In, make([]float64, exec.Numel(in.Shape)))
		} else {
			tr.In = append(tr.In, draw(in.Shape))
		}
	}
	for _, s := range u.OutShape {
		tr.GradOut = append(tr.GradOut, draw(s))
	}
	return tr
}

// As compiles the module of tr for another element type, with the same values.
func (tr *Trial) As(t T, dt tensor.Dtype) *Trial {
	t.Helper()
	sig := *tr.sig
	sig.DType, sig.Inputs = dt, slices.Clone(sig.Inputs)
	for i, in := range sig.Inputs {
		if in.DType != tensor.Int {
			sig.Inputs[i].DType = dt
		}
	}
	return tr.With(t, &sig)
}

// Half compiles the module of tr to compute in bfloat16, with the same values. All floats that it
// reads are stored in bfloat16.
func (tr *Trial) Half(t T) *Trial {
	t.Helper()
	sig := *tr.sig
	sig.DType, sig.Inputs, sig.Half = tensor.Float32, slices.Clone(sig.Inputs), true
	for i, in := range sig.Inputs {
		if in.DType != tensor.Int {
			sig.Inputs[i].DType, sig.Inputs[i].Half = tensor.Float32, true
		}
	}
	for _, p := range tr.spec.Params {
		sig.HalfParam = append(sig.HalfParam, !p.Buffer)
	}
	return tr.With(t, &sig)
}

// With compiles the module of tr for another signature, with the same values.
func (tr *Trial) With(t T, sig *exec.Signature) *Trial {
	t.Helper()
	other := *tr
	other.sig = sig
	var err error
	other.Unit, err = exec.Compile(tr.spec, sig)
	require.NoError(t, err)
	return &other
}

// On compiles the module of tr for a number of threads, and later runs use them.
func (tr *Trial) On(t T, threads int) *Trial {
	t.Helper()
	sig, other := *tr.sig, *tr
	sig.Threads, other.sig = threads, &sig
	var err error
	other.Unit, err = exec.Compile(tr.spec, &sig)
	require.NoError(t, err)
	return &other
}

// Changed compiles the module of tr for a changed copy of its signature, with the same values.
func (tr *Trial) Changed(t T, change func(sig *exec.Signature)) *Trial {
	t.Helper()
	sig := *tr.sig
	change(&sig)
	return tr.With(t, &sig)
}

// Apart compiles the module of tr so that no instructions run together.
func (tr *Trial) Apart(t T) *Trial {
	t.Helper()
	return tr.Changed(t, func(sig *exec.Signature) { sig.Apart = true })
}

// Results are the results of a run. A gradient that was not requested is nil.
type Results struct{ Out, Update, GradIn, GradParam [][]float64 }

// Call returns the memory of a forward: the values of the trial, and NaN in all memory that the
// program writes. In evaluation there is no memory for updates.
func (tr *Trial) Call() *exec.Call {
	u := tr.Unit
	c := &exec.Call{Saved: nan(u.Saved), Work: nan(u.Forward.Work), Seed: tr.Seed, Train: !tr.Eval}
	for i, p := range tr.Param {
		c.Param = append(c.Param, encode(u.DType, tr.halfParam(i), p))
	}
	for i, in := range tr.sig.Inputs {
		from := i
		if in.Same > 0 {
			from = in.Same - 1
		}
		c.In = append(c.In, encode(in.DType, in.Half, tr.In[from]))
	}
	for i, s := range u.OutShape {
		c.Out = append(c.Out, nan(exec.Numel(s)*size(u.DType, u.OutHalf[i])))
	}
	for _, up := range u.Updates {
		if !tr.Eval {
			c.Update = append(c.Update, nan(exec.Numel(up.Shape)*int(u.DType.Size())))
		}
	}
	return c
}

// Turn converts the memory of a completed forward to the memory of its backward.
func (tr *Trial) Turn(c *exec.Call) {
	u := tr.Unit
	c.Work, c.Update = nan(u.Backward.Work), nil
	for i, p := range tr.Param {
		copy(c.Param[i], nan(len(c.Param[i])))
		c.Param[i] = nil
		if u.ReadParam[i] {
			c.Param[i] = encode(u.DType, tr.halfParam(i), p)
		}
		var g []byte
		if tr.trained(i) {
			g = gradient(u.DType, i < len(tr.sig.HalfGrad) && tr.sig.HalfGrad[i], len(p), i < len(tr.sig.AccParam) && tr.sig.AccParam[i])
		}
		c.GradParam = append(c.GradParam, g)
	}
	for i, in := range tr.sig.Inputs {
		if !u.KeepIn[i] {
			c.In[i] = nil
		}
		var g []byte
		if in.Grad {
			g = gradient(u.DType, in.Half, exec.Numel(in.Shape), in.Acc)
		}
		c.GradIn = append(c.GradIn, g)
	}
	for i := range c.Out {
		if !u.KeepOut[i] {
			c.Out[i] = nil
		}
		var g []byte
		if i < len(tr.sig.GradOut) && tr.sig.GradOut[i] {
			g = encode(u.DType, u.OutHalf[i], tr.GradOut[i])
		}
		c.GradOut = append(c.GradOut, g)
	}
}

// trained reports whether the gradient of parameter i is requested.
func (tr *Trial) trained(i int) bool {
	return !tr.spec.Params[i].Buffer && !(i < len(tr.sig.FrozenParam) && tr.sig.FrozenParam[i])
}

// halfParam reports whether parameter i is stored in bfloat16.
func (tr *Trial) halfParam(i int) bool { return i < len(tr.sig.HalfParam) && tr.sig.HalfParam[i] }

// Run runs forward, and backward if the module was compiled for it.
func (tr *Trial) Run(t T) Results {
	t.Helper()
	var r exec.Runner
	r.Team.Start(tr.sig.Threads)
	defer r.Team.Close()
	c := tr.Call()
	require.NoError(t, r.Forward(tr.Unit, c))
	dt, low := tr.Unit.DType, make([]bool, len(tr.sig.Inputs))
	for i, in := range tr.sig.Inputs {
		low[i] = in.Half
	}
	res := Results{Out: decodeAll(dt, tr.Unit.OutHalf, c.Out), Update: decodeAll(dt, nil, c.Update)}
	if tr.Unit.Backward != nil {
		tr.Turn(c)
		require.NoError(t, r.Backward(tr.Unit, c))
		res.GradIn, res.GradParam = decodeAll(dt, low, c.GradIn), decodeAll(dt, tr.sig.HalfGrad, c.GradParam)
	}
	return res
}

// CheckGradients compares every gradient with central differences of one function: the sum of all
// outputs times their gradients. The module must compute in float64.
func (tr *Trial) CheckGradients(t T) {
	t.Helper()
	res := tr.Run(t)
	check := func(name string, x, got []float64, acc bool) {
		require.Len(t, got, len(x), name)
		for i := range x {
			want := tr.slope(t, &x[i])
			if acc {
				want += Start
			}
			require.InDelta(t, want, got[i], 1e-6*(1+math.Abs(want)), "%s, element %d", name, i)
		}
	}
	for i, p := range tr.Param {
		if !tr.trained(i) {
			continue
		}
		check("parameter "+tr.spec.Params[i].Name, p, res.GradParam[i], i < len(tr.sig.AccParam) && tr.sig.AccParam[i])
	}
	for i, in := range tr.sig.Inputs {
		if in.Grad {
			check(fmt.Sprintf("input %d", i), tr.In[i], res.GradIn[i], in.Acc)
		}
	}
}

// slope returns the derivative with respect to *x by a central difference.
func (tr *Trial) slope(t T, x *float64) float64 {
	const h = 1e-5
	at := *x
	defer func() { *x = at }()
	*x = at + h
	above := tr.loss(t)
	*x = at - h
	return (above - tr.loss(t)) / (2 * h)
}

func (tr *Trial) loss(t T) (sum float64) {
	var r exec.Runner
	c := tr.Call()
	require.NoError(t, r.Forward(tr.Unit, c))
	for i, out := range decodeAll(tr.Unit.DType, nil, c.Out) {
		if i < len(tr.sig.GradOut) && tr.sig.GradOut[i] {
			for j, v := range out {
				sum += v * tr.GradOut[i][j]
			}
		}
	}
	return sum
}

// CheckFloat32 compares all float32 results with the float64 results. They may differ by tol·(1 +
// |value|).
func (tr *Trial) CheckFloat32(t T, tol float64) {
	t.Helper()
	RequireClose(t, tr.As(t, tensor.Float64).Run(t), tr.As(t, tensor.Float32).Run(t), tol)
}

// RequireClose requires that two sets of results differ by at most tol·(1 + |value|). With tol 0
// they must have the same bits.
func RequireClose(t T, want, got Results, tol float64) {
	t.Helper()
	requireClose(t, "output", want.Out, got.Out, tol)
	requireClose(t, "update", want.Update, got.Update, tol)
	requireClose(t, "gradient of input", want.GradIn, got.GradIn, tol)
	requireClose(t, "gradient of parameter", want.GradParam, got.GradParam, tol)
}

func requireClose(t T, what string, want, got [][]float64, tol float64) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i := range want {
		require.Len(t, got[i], len(want[i]), "%s %d", what, i)
		for j, w := range want[i] {
			if tol == 0 {
				require.Equal(t, math.Float64bits(w), math.Float64bits(got[i][j]), "%s %d, element %d: %v and %v", what, i, j, w, got[i][j])
			} else {
				require.InDelta(t, w, got[i][j], tol*(1+math.Abs(w)), "%s %d, element %d", what, i, j)
			}
		}
	}
}

// nan returns n bytes that are NaN in all float types.
func nan(n int) []byte { return slices.Repeat([]byte{0xFF}, n) }

// size returns the bytes of an element.
func size(dt tensor.Dtype, low bool) int {
	if low {
		return 2
	}
	return int(dt.Size())
}

// gradient returns memory for n elements of a gradient.
func gradient(dt tensor.Dtype, low bool, n int, acc bool) []byte {
	if acc {
		return encode(dt, low, slices.Repeat([]float64{Start}, n))
	}
	return nan(n * size(dt, low))
}

func encode(dt tensor.Dtype, low bool, v []float64) []byte {
	switch {
	case low:
		b := make([]half.BFloat16, len(v))
		half.Narrow(b, convert[float32](v))
		return exec.Bytes(b)
	case dt == tensor.Float64:
		return exec.Bytes(slices.Clone(v))
	case dt == tensor.Float32:
		return exec.Bytes(convert[float32](v))
	default:
		return exec.Bytes(convert[int](v))
	}
}

// decodeAll returns numbers. They are in bfloat16 where low is true.
func decodeAll(dt tensor.Dtype, low []bool, all [][]byte) [][]float64 {
	list := make([][]float64, len(all))
	for i, b := range all {
		switch {
		case b == nil:
		case i < len(low) && low[i]:
			wide := make([]float32, len(b)/2)
			half.Widen(wide, exec.Data[half.BFloat16](b))
			list[i] = convert[float64](wide)
		case dt == tensor.Float64:
			list[i] = slices.Clone(exec.Data[float64](b))
		default:
			list[i] = convert[float64](exec.Data[float32](b))
		}
	}
	return list
}

func convert[To, From float32 | float64 | int](v []From) []To {
	out := make([]To, len(v))
	for i, x := range v {
		out[i] = To(x)
	}
	return out
}
