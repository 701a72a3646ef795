//go:build linux && cgo

package gpudouble_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// The texts in testdata are made of the *.cu beside them.
//
//go:generate go -C testdata run ../../gpu/kernels/nvrtc

// machine is a device of the double, to run kernels on.
type machine struct {
	t    testing.TB
	cuda *gpudouble.Control
	d    *device.Device
	s    *device.Stream
}

func newMachine(t testing.TB) *machine {
	t.Helper()
	libs := gpudouble.Build(t)
	require.NoError(t, device.Load(libs.CUDA))
	cuda := gpudouble.Open(t, libs.CUDA)
	cuda.Clean(t)
	d, err := device.Open(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &machine{t, cuda, d, s}
}

// load loads a text. Its header may be missing.
func (m *machine) load(text string) *device.Module {
	m.t.Helper()
	if !strings.Contains(text, ".version") {
		text = ".version 7.8\n.target sm_80\n.address_size 64\n" + text
	}
	mod, err := m.d.LoadModule([]byte(text))
	require.NoError(m.t, err)
	m.t.Cleanup(func() { require.NoError(m.t, mod.Unload()) })
	return mod
}

// buffer is an argument: device memory that begins with these bytes and is read back into them.
type buffer struct{ bytes []byte }

// values makes a buffer of numbers of some type, and of them what its bytes are.
func values[T any](x []T) *buffer {
	b, err := binary.Append(nil, binary.LittleEndian, x)
	if err != nil {
		panic(err)
	}
	return &buffer{b}
}

func decode[T any](b *buffer) []T {
	var zero T
	x := make([]T, len(b.bytes)/binary.Size(zero))
	if _, err := binary.Decode(b.bytes, binary.LittleEndian, x); err != nil {
		panic(err)
	}
	return x
}

// run runs a kernel and reads the buffers among its arguments back. It returns what the machine
// says of a mistake, with which the context of the device is lost.
func (m *machine) run(f *device.Function, grid, block, shared int, args ...any) error {
	m.t.Helper()
	list := slices.Clone(args)
	memory := map[*buffer]*device.Memory{}
	for i, a := range args {
		if b, ok := a.(*buffer); ok {
			memory[b] = m.upload(b)
			list[i] = memory[b]
		}
	}
	require.NoError(m.t, f.Launch(m.s, [3]int{grid, 1, 1}, [3]int{block, 1, 1}, shared, list...))
	err := m.s.Sync()
	for b, mem := range memory {
		if err == nil {
			m.download(b, mem)
		}
		require.NoError(m.t, mem.Free())
	}
	return err
}

func (m *machine) upload(b *buffer) *device.Memory {
	mem, err := m.d.Alloc(len(b.bytes))
	require.NoError(m.t, err)
	h, err := m.d.AllocHost(len(b.bytes))
	require.NoError(m.t, err)
	copy(h.Bytes(), b.bytes)
	require.NoError(m.t, m.s.CopyToDevice(mem.Addr(), h, 0, len(b.bytes)))
	require.NoError(m.t, m.s.Sync())
	require.NoError(m.t, h.Free())
	return mem
}

func (m *machine) download(b *buffer, mem *device.Memory) {
	h, err := m.d.AllocHost(len(b.bytes))
	require.NoError(m.t, err)
	require.NoError(m.t, m.s.CopyToHost(h, 0, mem.Addr(), len(b.bytes)))
	require.NoError(m.t, m.s.Sync())
	copy(b.bytes, h.Bytes())
	require.NoError(m.t, h.Free())
}

func function(t testing.TB, mod *device.Module, name string) *device.Function {
	t.Helper()
	f, err := mod.Function(name)
	require.NoError(t, err)
	return f
}

// bits are of a number as an instruction sees it.
func f32(x uint64) float32 { return math.Float32frombits(uint32(x)) }
func f64(x uint64) float64 { return math.Float64frombits(x) }
func b32(x float32) uint64 { return uint64(math.Float32bits(x)) }
func b64(x float64) uint64 { return math.Float64bits(x) }
func s32(x uint64) int32   { return int32(uint32(x)) }
func truth(b bool) uint64  { return map[bool]uint64{true: 1}[b] }
func isNaN(bits uint64, n int) bool {
	return n == 32 && f32(bits) != f32(bits) || n == 64 && f64(bits) != f64(bits)
}

// kernelOf returns a kernel d[i] = f(a[i], b[i], c[i]) for elements of 8 bytes, of which an
// instruction uses as many as its types have. Types are those of the result and of the arguments; a
// predicate is stored as 1 or 0, and an argument of that type is the lowest bit.
func kernelOf(name, code string, types []string) string {
	var s strings.Builder
	fmt.Fprintf(&s, ".visible .entry %s(.param .u64 pd, .param .u64 pa, .param .u64 pb, .param .u64 pc)\n{\n", name)
	s.WriteString(".reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %x<8>; .reg .f64 %e<8>; .reg .b64 %at<8>; .reg .b32 %i; .reg .b32 %bit;\n")
	s.WriteString("mov.u32 %i, %tid.x;\n")
	for n, t := range types[1:] {
		fmt.Fprintf(&s, "ld.param.u64 %%at%d, [p%c]; mad.wide.u32 %%at%d, %%i, 8, %%at%d;\n", n, 'a'+n, n, n)
		if t == "pred" {
			fmt.Fprintf(&s, "ld.global.u32 %%bit, [%%at%d]; and.b32 %%bit, %%bit, 1; setp.ne.u32 %%p%d, %%bit, 0;\n", n, n)
			continue
		}
		fmt.Fprintf(&s, "ld.global.%s %s%d, [%%at%d];\n", t, register(t), n, n)
	}
	out := register(types[0]) + "7"
	names := strings.NewReplacer("D", out, "A", arg(types, 1), "B", arg(types, 2), "C", arg(types, 3), "Q", "%p6", "E", "%r6")
	s.WriteString(names.Replace(code) + "\n")
	s.WriteString("ld.param.u64 %at3, [pd]; mad.wide.u32 %at3, %i, 8, %at3;\n")
	if types[0] == "pred" {
		fmt.Fprintf(&s, "selp.u32 %%bit, 1, 0, %s; st.global.u32 [%%at3], %%bit;\n", out)
	} else {
		fmt.Fprintf(&s, "st.global.%s [%%at3], %s;\n", types[0], out)
	}
	return s.String() + "ret;\n}\n"
}

func arg(types []string, n int) string {
	if n >= len(types) {
		return "?"
	}
	return fmt.Sprintf("%s%d", register(types[n]), n-1)
}

func register(t string) string {
	switch {
	case t == "pred":
		return "%p"
	case t == "f32":
		return "%f"
	case t == "f64":
		return "%e"
	case size(t) == 64:
		return "%x"
	case size(t) == 32:
		return "%r"
	}
	return "%h"
}

// size returns the bits of a type.
func size(t string) (bits int) {
	if t == "pred" {
		return 1
	}
	_, err := fmt.Sscanf(t[1:], "%d", &bits)
	if err != nil {
		panic(t)
	}
	return bits
}
