//go:build linux && cgo

// Package gputest runs single instructions on the doubles of package gpudouble, under the worst
// conditions. Every operand is its own allocation, so that an access beyond it is found. Operands
// are aligned only to 32 bytes, like parameters. Result and scratch memory starts as NaN. Blocks
// and warps in reversed order must give the same bits.
//
// If [device.EnvCUDA] names a driver, they run on its GPU, without the checks that only doubles
// make, and a second run must give the same bits.
package gputest

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/internal/blaslt"
	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/exec"
	"github.com/gofsdp/gofsdp/internal/gpu"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/half"
	"github.com/gofsdp/gofsdp/internal/kernel"
)

// aligned is the least alignment of parameters in an allocation.
const aligned = 32

// A Machine is an engine on device 0.
type Machine struct {
	Device         *device.Device
	Engine         *gpu.Engine
	Stream         *device.Stream
	CUDA, CUBLASLT *gpudouble.Control // nil on a GPU
	Offset         int                // of operands in their allocations, which begin at multiples of 256: 32
	Shift          int                // of float arguments: elements into the memory at which they begin, as for views
	test           testing.TB
}

// New returns a machine that is closed at the end of the test. It fails the test if objects are
// left or the driver was misused.
func New(t testing.TB) *Machine {
	t.Helper()
	m := &Machine{Offset: aligned, test: t}
	if os.Getenv(device.EnvCUDA) == "" {
		libs := gpudouble.Build(t)
		require.NoError(t, device.Load(libs.CUDA))
		require.NoError(t, blaslt.Load(libs.CUBLASLT))
		m.CUDA, m.CUBLASLT = gpudouble.Open(t, libs.CUDA), gpudouble.Open(t, libs.CUBLASLT)
		m.CUDA.Clean(t)
		m.CUBLASLT.Clean(t, "cublasLt")
	}
	var err error
	m.Device, err = device.Open(0)
	require.NoError(t, err)
	m.Engine, err = gpu.New(m.Device)
	require.NoError(t, err)
	m.Stream, err = m.Device.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, m.Stream.Close())
		require.NoError(t, m.Engine.Close())
		require.NoError(t, m.Device.Close())
	})
	return m
}

// T is a test: a *testing.T or a *rapid.T.
type T interface {
	require.TestingT
	Helper()
}

// Run runs an instruction on the values of f and returns its result, which starts as f.Out. If
// alias, the result is written over argument 0.
func (m *Machine) Run(t T, in exec.Instr, f *exec.Frame, alias bool) exec.Value {
	t.Helper()
	out, err := m.Try(t, in, f, alias)
	require.NoError(t, err, "%v", in.Op)
	return out
}

// Try is Run for instructions that may fail.
func (m *Machine) Try(t T, in exec.Instr, f *exec.Frame, alias bool) (exec.Value, error) {
	t.Helper()
	u := &upload{Machine: m, t: t}
	defer u.free()
	c := &gpu.Call{Seed: f.Seed, Train: f.Train}
	in.In = slices.Clone(in.In)
	for j, v := range f.In {
		shift := m.shift(v)
		in.In[j].Space, in.In[j].Index, in.In[j].Offset = exec.SpaceIn, j, shift
		c.In = append(c.In, u.copy(v.Bytes, m.Offset+shift)-uintptr(shift))
	}
	in.Out.Space, in.Out.Index, in.Out.Offset = exec.SpaceOut, 0, 0
	if alias {
		c.Out, in.Out.Offset = []uintptr{c.In[0]}, in.In[0].Offset
	} else {
		c.Out = []uintptr{u.copy(f.Out.Bytes, m.Offset)}
	}
	out := f.Out
	p, err := m.Engine.Assemble(func(yield func(exec.Instr) bool) { yield(in) }, nil)
	if err != nil {
		return out, err
	}
	defer func() { require.NoError(t, p.Free()) }()
	c.Scratch = u.copy(nan(p.Scratch), aligned)
	err = p.Run(m.Stream, c)
	out.Bytes = u.read(c.Out[0]+uintptr(in.Out.Offset), len(out.Bytes), in.Op)
	return out, err
}

// Gradients runs instructions as one program, and returns their results, which are gradients of
// parameters and start as fs[i].Out. Arguments with the same bytes are one argument.
func (m *Machine) Gradients(t T, list []exec.Instr, fs []*exec.Frame) []exec.Value {
	t.Helper()
	u := &upload{Machine: m, t: t}
	defer u.free()
	c, index := new(gpu.Call), make(map[*byte]int)
	list = slices.Clone(list)
	for i := range list {
		in := &list[i]
		in.In = slices.Clone(in.In)
		for j, v := range fs[i].In {
			at, known := index[&v.Bytes[0]]
			if !known {
				at = len(c.In)
				index[&v.Bytes[0]] = at
				c.In = append(c.In, u.copy(v.Bytes, m.Offset))
			}
			in.In[j].Space, in.In[j].Index = exec.SpaceIn, at
		}
		in.Out.Space, in.Out.Index = exec.SpaceGradParam, i
		c.GradParam = append(c.GradParam, u.copy(fs[i].Out.Bytes, m.Offset))
	}
	p, err := m.Engine.Assemble(slices.Values(list), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Free()) }()
	c.Scratch = u.copy(nan(p.Scratch), aligned)
	require.NoError(t, p.Run(m.Stream, c))
	var outs []exec.Value
	for i, f := range fs {
		out := f.Out
		out.Bytes = u.read(c.GradParam[i], len(out.Bytes), list[i].Op)
		outs = append(outs, out)
	}
	return outs
}

// shift returns the offset of an argument. An argument that packs several results begins where its
// memory begins.
func (m *Machine) shift(v exec.Value) int {
	if v.DType == tensor.Int || v.Form.Tail > 0 {
		return 0
	}
	return m.Shift * len(v.Bytes) / exec.Numel(v.Shape)
}

// upload is the memory of a run.
type upload struct {
	*Machine
	t      T
	memory []*device.Memory
}

// copy returns the address of a copy of data in a new allocation, at an offset.
func (u *upload) copy(data []byte, offset int) uintptr {
	if len(data) == 0 {
		return 0
	}
	d, err := u.Device.Alloc(offset + len(data))
	require.NoError(u.t, err)
	u.memory = append(u.memory, d)
	h, err := u.Device.AllocHost(len(data))
	require.NoError(u.t, err)
	copy(h.Bytes(), data)
	require.NoError(u.t, u.Stream.CopyToDevice(d.Addr()+uintptr(offset), h, 0, len(data)))
	require.NoError(u.t, u.Stream.Sync())
	require.NoError(u.t, h.Free())
	return d.Addr() + uintptr(offset)
}

// read returns n bytes of the device after all operations have ended.
func (u *upload) read(from uintptr, n int, op *exec.Op) []byte {
	h, err := u.Device.AllocHost(n)
	require.NoError(u.t, err)
	require.NoError(u.t, u.Stream.CopyToHost(h, 0, from, n), "%v", op)
	require.NoError(u.t, u.Stream.Sync(), "%v", op)
	data := slices.Clone(h.Bytes())
	require.NoError(u.t, h.Free())
	return data
}

func (u *upload) free() {
	for _, d := range u.memory {
		_ = d.Free()
	}
}

// nan returns n bytes that are NaN in all float types.
func nan(n int) []byte { return slices.Repeat([]byte{0xFF}, n) }

// Check runs an instruction in every way: in order and reversed, in place, and added to the present
// contents. Each result must be within tol·(1 + |value|) of the float64 reference, and all must
// have the same bits. f is as it is before the instruction runs on the host.
func (m *Machine) Check(t T, in exec.Instr, f *exec.Frame, tol float64) {
	t.Helper()
	accs := []bool{in.Acc}
	if in.Op.Accumulate && in.Op.Kind != exec.KindAccumulate {
		accs = []bool{false, true}
	}
	for _, acc := range accs {
		in.Acc = acc
		start := *f
		start.Acc, start.Out.Bytes = acc, slices.Clone(f.Out.Bytes)
		if acc || in.Op.Kind == exec.KindAccumulate {
			m.fill(start.Out)
		} else {
			copy(start.Out.Bytes, nan(len(start.Out.Bytes)))
		}
		want := m.Reference(t, in, &start)
		got := m.Run(t, in, &start, false)
		m.compare(t, in, want, got, tol)
		var again exec.Value
		m.reversed(func() { again = m.Run(t, in, &start, false) })
		require.Equal(t, m.bits(got), m.bits(again), "%v in reversed order", in.Op)
		if in.Op.InPlace && len(f.In[0].Bytes) == len(f.Out.Bytes) && !acc {
			require.Equal(t, m.bits(got), m.bits(m.Run(t, in, &start, true)), "%v in place", in.Op)
		}
	}
}

// reversed runs f with blocks and warps in reversed order, if they are executed one by one.
func (m *Machine) reversed(f func()) {
	if m.CUDA == nil {
		f()
		return
	}
	m.CUDA.Reversed(m.test, f)
}

// Narrow returns x as the engine stores it in 16 bits: as bfloat16, or the bits of a float16.
func (m *Machine) Narrow(x float32) half.BFloat16 {
	if m != nil && m.Engine.Float16 {
		return half.BFloat16(half.ToFloat16(x))
	}
	return half.ToBFloat16(x)
}

// widen is the inverse of Narrow.
func (m *Machine) widen(x half.BFloat16) float64 {
	if m != nil && m.Engine.Float16 {
		return float64(half.Float16(x).Float32())
	}
	return float64(x.Float32())
}

// bits returns the bits of the elements of v. Every NaN has the same bits, because the NaN of two
// operands depends on the order in which the compiler adds them.
func (m *Machine) bits(v exec.Value) []uint64 {
	list := make([]uint64, 0, v.Len())
	for _, x := range m.Floats(v) {
		if x != x {
			x = math.NaN()
		}
		list = append(list, math.Float64bits(x))
	}
	return list
}

// fill sets the floats of v to small numbers.
func (m *Machine) fill(v exec.Value) {
	low, wide := v.Parts()
	if v.DType == tensor.Float64 {
		for i := range exec.Data[float64](v.Bytes) {
			exec.Data[float64](v.Bytes)[i] = float64(i%7) - 3
		}
		return
	}
	for i := range low {
		low[i] = m.Narrow(float32(i%7) - 3)
	}
	for i := range wide {
		wide[i] = float32(i%5) - 2
	}
}

// Reference returns the result of the naive kernel for the values of f.
func (m *Machine) Reference(t T, in exec.Instr, f *exec.Frame) []float64 {
	t.Helper()
	ref := exec.Frame{Op: in.Op, Acc: f.Acc, Kernel: new(kernel.Context), Seed: f.Seed, Train: f.Train}
	for _, v := range f.In {
		ref.In = append(ref.In, m.double(v))
	}
	ref.Out = m.double(f.Out)
	if in.Op.Scratch != nil {
		ref.Scratch = make([]byte, 8*in.Op.Scratch(in.Op))
	}
	require.NoError(t, in.Op.Naive(&ref), "%v", in.Op)
	return exec.Data[float64](ref.Out.Bytes)
}

// double returns v in float64, unless it holds integers.
func (m *Machine) double(v exec.Value) exec.Value {
	if v.DType == tensor.Int {
		return v
	}
	return exec.Value{Shape: v.Shape, DType: tensor.Float64, Bytes: exec.Bytes(m.Floats(v))}
}

// Floats returns the elements of v. m may be nil if v has no elements of 16 bits.
func (m *Machine) Floats(v exec.Value) []float64 {
	if v.DType == tensor.Float64 {
		return slices.Clone(exec.Data[float64](v.Bytes))
	}
	low, wide := v.Parts()
	list := make([]float64, 0, len(low)+len(wide))
	for _, x := range low {
		list = append(list, m.widen(x))
	}
	for _, x := range wide {
		list = append(list, float64(x))
	}
	return list
}

// compare requires that a result equals the reference within tol.
func (m *Machine) compare(t T, in exec.Instr, want []float64, got exec.Value, tol float64) {
	t.Helper()
	low, _ := got.Parts()
	for i, x := range m.Floats(got) {
		w := want[i]
		if i < len(low) && m.Engine.Float16 && math.Abs(w) >= 65520 { // beyond the range of float16
			w = math.Copysign(math.Inf(1), w)
		}
		if !(math.Abs(x-w) <= tol*(1+math.Abs(w))) && x != w && !(x != x && w != w) {
			require.Fail(t, fmt.Sprintf("%v of %v in %v, element %d: got %v, want %v", in.Op, in.Op.In, got.Form, i, x, w))
		}
	}
}
