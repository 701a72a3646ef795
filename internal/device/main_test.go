//go:build linux && cgo

package device

import (
	_ "embed"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/internal/gpudouble"
)

// script names what a child process of a test does instead of tests.
const script = "FSDP_DEVICE_TEST_SCRIPT"

func TestMain(m *testing.M) {
	if os.Getenv(script) == "load" {
		loadScript()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// cuda loads the double and returns its side door. The test fails if it leaves something behind.
func cuda(t testing.TB) *gpudouble.Control {
	t.Helper()
	libs := gpudouble.Build(t)
	require.NoError(t, Load(libs.CUDA))
	c := gpudouble.Open(t, libs.CUDA)
	c.Clean(t)
	return c
}

// gpu opens device 0: of the driver that EnvCUDA names if it is set, so that the tests of the
// contract can run on a real GPU, and of the double otherwise.
func gpu(t testing.TB) *Device {
	t.Helper()
	if os.Getenv(EnvCUDA) == "" {
		cuda(t)
	}
	return open(t, 0)
}

func open(t testing.TB, ordinal int) *Device {
	t.Helper()
	d, err := Open(ordinal)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func newStream(t testing.TB, d *Device) *Stream {
	t.Helper()
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func newEvent(t testing.TB, d *Device) *Event {
	t.Helper()
	e, err := d.NewEvent()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func alloc(t testing.TB, d *Device, n int) *Memory {
	t.Helper()
	m, err := d.Alloc(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Free()) })
	return m
}

func allocHost(t testing.TB, d *Device, n int) *HostMemory {
	t.Helper()
	h, err := d.AllocHost(n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Free()) })
	return h
}

// vector is a module of two kernels. It is part of the test binary, which may run on a machine
// without the sources.
//
//go:embed testdata/vector.ptx
var vector []byte

// kernels loads the test's module.
func kernels(t testing.TB, d *Device) *Module {
	t.Helper()
	m, err := d.LoadModule(vector)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Unload()) })
	return m
}

func kernel(t testing.TB, m *Module, name string) *Function {
	t.Helper()
	f, err := m.Function(name)
	require.NoError(t, err)
	return f
}

// put copies bytes to device memory.
func put(t testing.TB, d *Device, s *Stream, to uintptr, b []byte) {
	t.Helper()
	h, err := d.AllocHost(len(b))
	require.NoError(t, err)
	copy(h.Bytes(), b)
	require.NoError(t, s.CopyToDevice(to, h, 0, len(b)))
	require.NoError(t, s.Sync())
	require.NoError(t, h.Free())
}

// get copies bytes from device memory, after what s was given.
func get(t testing.TB, d *Device, s *Stream, from uintptr, n int) []byte {
	t.Helper()
	h, err := d.AllocHost(n)
	require.NoError(t, err)
	require.NoError(t, s.CopyToHost(h, 0, from, n))
	require.NoError(t, s.Sync())
	b := append([]byte{}, h.Bytes()...)
	require.NoError(t, h.Free())
	return b
}

// floats returns the floats that bytes are, or the bytes that floats are.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*4)
}
