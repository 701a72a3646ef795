package kit

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/optim"
)

// Tokens returns ints [rows, cols] below vocab that are a function of the seed.
func Tokens(seed, vocab, rows, cols int) *tensor.Dense {
	data := make([]int, rows*cols)
	for i := range data {
		data[i] = U24(i, seed) % vocab
	}
	return tensor.New(tensor.WithShape(rows, cols), tensor.WithBacking(data))
}

// Bits are the elements of named tensors as bit patterns, so that equality means equality to the
// last bit.
type Bits map[string][]uint64

// BitsOf returns the bits of a state.
func BitsOf(state map[string]*tensor.Dense) Bits {
	b := make(Bits)
	for name, v := range state {
		for _, x := range Elements(v) {
			b[name] = append(b[name], math.Float64bits(x))
		}
	}
	return b
}

// Elements returns the elements of v as float64.
func Elements(v fsdp.Tensor) []float64 {
	switch data := v.Data().(type) {
	case []float64:
		return data
	case []float32:
		out := make([]float64, len(data))
		for i, x := range data {
			out[i] = float64(x)
		}
		return out
	default:
		panic(fmt.Sprintf("tensor of %T", data))
	}
}

// CopyOf returns the elements of v in ordinary memory.
func CopyOf(t require.TestingT, v optim.Vec) optim.Host {
	h := optim.Host{F32: make([]float32, v.Len())}
	if v.Float64() {
		h = optim.Host{F64: make([]float64, v.Len())}
	}
	require.NoError(t, v.Read(h))
	return h
}

// Numbers returns the elements of v as float64.
func Numbers(t require.TestingT, v optim.Vec) []float64 { return AsFloat64(CopyOf(t, v)) }

// Edit replaces every element x of v by f(i, x).
func Edit(t require.TestingT, v optim.Vec, f func(i int, x float64) float64) {
	h := CopyOf(t, v)
	SetEach(h, f)
	require.NoError(t, v.Write(h))
}

// SetEach is Edit for ordinary memory.
func SetEach(v optim.Host, f func(i int, x float64) float64) {
	for i, x := range v.F32 {
		v.F32[i] = float32(f(i, float64(x)))
	}
	for i, x := range v.F64 {
		v.F64[i] = f(i, x)
	}
}

// RequireSameBits fails with the first element that differs.
func RequireSameBits(t require.TestingT, want, got Bits, msg ...any) {
	require.Len(t, got, len(want), msg...)
	for name, w := range want {
		require.Len(t, got[name], len(w), name)
		for i, g := range got[name] {
			if g != w[i] {
				require.Failf(t, "bits differ", "%s[%d] is %v, want %v (%s)",
					name, i, math.Float64frombits(g), math.Float64frombits(w[i]), fmt.Sprint(msg...))
			}
		}
	}
}

// StateBits returns the bits of all parameters.
func StateBits(t require.TestingT, ctx context.Context, m *fsdp.Sharded) Bits {
	state, err := m.StateDict(ctx, &fsdp.StateDictOptions{AllRanks: true})
	require.NoError(t, err)
	return BitsOf(state)
}

// GradBits returns the bits of all gradients.
func GradBits(t require.TestingT, ctx context.Context, m *fsdp.Sharded) Bits {
	grads, err := m.FullGrads(ctx)
	require.NoError(t, err)
	return BitsOf(grads)
}

// Floats returns a float64 tensor whose elements are a function of the seed, in [-1, 1).
func Floats(seed int, shape ...int) *tensor.Dense {
	n := 1
	for _, d := range shape {
		n *= d
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = Value(i, seed)
	}
	return tensor.New(tensor.WithShape(slices.Clone(shape)...), tensor.WithBacking(data))
}

// Turned returns the elements of a matrix [rows, cols] in the order of [cols, rows].
func Turned(data []float64, rows, cols int) []float64 {
	out := make([]float64, len(data))
	for r := range rows {
		for c := range cols {
			out[c*rows+r] = data[r*cols+c]
		}
	}
	return out
}

// SortedKeys returns the keys of m in order.
func SortedKeys[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Initial returns p with normally distributed initial values.
func Initial(p fsdp.Param) fsdp.Param {
	p.Init = fsdp.Normal(1)
	return p
}

// Hash32 is the integer hash that generates all golden inputs.
func Hash32(i, s uint32) uint32 {
	x := i*0x9E3779B1 + s*0x85EBCA77 + 0x165667B1
	x ^= x >> 15
	x *= 0x2C1B3C6D
	x ^= x >> 12
	x *= 0x297A2D39
	return x ^ x>>15
}

// U24 returns a 24-bit integer, a function of an index and a seed, as in the golden files.
func U24(i, s int) int { return int(Hash32(uint32(i), uint32(s)) >> 8) }

// Value returns U24 as a number in [-1, 1).
func Value(i, s int) float64 { return float64(U24(i, s)-8388608) / 8388608 }

// TypesByName returns a Precision.TypesOf with types by name of a parameter, and gather and reduce
// for the others.
func TypesByName(gather, reduce fsdp.DType, names map[string][2]fsdp.DType) func(fsdp.CallInfo, fsdp.Param) (fsdp.DType, fsdp.DType) {
	return func(_ fsdp.CallInfo, p fsdp.Param) (fsdp.DType, fsdp.DType) {
		if t, ok := names[p.Name]; ok {
			return t[0], t[1]
		}
		return gather, reduce
	}
}

// TensorOf returns a parameter or buffer of the models.
func TensorOf(v []float64) *tensor.Dense {
	shape := []int{len(v)}
	if len(v) == ShapeDim*ShapeDim {
		shape = []int{ShapeDim, ShapeDim}
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(slices.Clone(v)))
}

// RequireWithin requires that numbers agree within a fraction of their size, or of 1 if they are
// smaller.
func RequireWithin(t require.TestingT, want, got []float64, tol float64, where string) {
	require.Len(t, got, len(want), where)
	for i, x := range want {
		require.InDelta(t, x, got[i], tol*(1+math.Abs(x)), "%s[%d]", where, i)
	}
}

// PowersIn returns the powers of two that divide n, and n.
func PowersIn(n int) (list []int) {
	for p := 1; n%p == 0; p *= 2 {
		list = append(list, p)
	}
	return append(list, n)
}

// A Record is the results of a training as named numbers.
type Record map[string][]float64

// RecordOf returns the elements of tensors.
func RecordOf(tensors map[string]*tensor.Dense) Record {
	r := Record{}
	for name, v := range tensors {
		r[name] = Elements(v)
	}
	return r
}

// Add adds tensors under a heading.
func (r Record) Add(heading string, tensors map[string]*tensor.Dense) {
	for name, v := range tensors {
		r[heading+" "+name] = Elements(v)
	}
}

// InType returns a batch with its floats in the type of a model's computation.
func InType(batch []fsdp.Tensor, typ fsdp.DType) []fsdp.Tensor {
	for i, v := range batch {
		if wide, ok := v.Data().([]float64); ok && typ != fsdp.Float64 {
			narrow := make([]float32, len(wide))
			for j, x := range wide {
				narrow[j] = float32(x)
			}
			batch[i] = tensor.New(tensor.WithShape(v.Shape()...), tensor.WithBacking(narrow))
		}
	}
	return batch
}

// AddTo adds c times g to sum.
func AddTo(sum map[string][]float64, g map[string][]float64, c float64) {
	for name, v := range g {
		if sum[name] == nil {
			sum[name] = make([]float64, len(v))
		}
		for i, x := range v {
			sum[name][i] += c * x
		}
	}
}

// Filled returns a float32 tensor [n] with elements f(i).
func Filled(n int, f func(i int) float32) *tensor.Dense {
	data := make([]float32, n)
	for i := range data {
		data[i] = f(i)
	}
	return tensor.New(tensor.WithShape(n), tensor.WithBacking(data))
}

// Ones returns a float32 tensor [n] of ones.
func Ones(n int) *tensor.Dense { return Filled(n, func(int) float32 { return 1 }) }

// Rounded returns v rounded to type t and converted back.
func Rounded(v float32, t fsdp.DType) float32 {
	out := []float32{0}
	switch t {
	case fsdp.BFloat16:
		low := make([]half.BFloat16, 1)
		half.Narrow(low, []float32{v})
		half.Widen(out, low)
	case fsdp.Float16:
		low := make([]half.Float16, 1)
		half.Narrow(low, []float32{v})
		half.Widen(out, low)
	default:
		return v
	}
	return out[0]
}

// Params is the argument that Full passes to its function.
type Params = map[string]*tensor.Dense

// ClearAll sets all elements to zero.
func ClearAll(p Params) {
	for _, v := range p {
		clear(Elements(v))
	}
}

// RequireNear compares named numbers.
func RequireNear(t require.TestingT, want, got map[string][]float64, tol float64) {
	require.Len(t, got, len(want))
	for name, w := range want {
		require.InDeltaSlice(t, w, got[name], tol, name)
	}
}

// AsFloat64 returns the elements of v as float64.
func AsFloat64(v optim.Host) []float64 {
	out := slices.Clone(v.F64)
	for _, x := range v.F32 {
		out = append(out, float64(x))
	}
	return out
}
