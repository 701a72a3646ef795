//go:build linux && cgo

package blaslt

import (
	"encoding/binary"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/internal/half"
)

// script names what a child process of a test does instead of tests.
const script = "FSDP_BLASLT_TEST_SCRIPT"

func TestMain(m *testing.M) {
	if os.Getenv(script) != "" {
		loadScript()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// bench is what a test of products needs.
type bench struct {
	t      testing.TB
	lt     *gpudouble.Control // nil with a real library
	dev    *device.Device
	stream *device.Stream
	handle *Handle
}

// newBench opens device 0 and the library that EnvLibrary names if it is set, so that the tests can
// run on a real GPU, and the doubles otherwise. Nothing may be left behind or misused.
func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t}
	if os.Getenv(EnvLibrary) == "" {
		libs := gpudouble.Build(t)
		require.NoError(t, device.Load(libs.CUDA))
		require.NoError(t, Load(libs.CUBLASLT))
		b.lt = gpudouble.Open(t, libs.CUBLASLT)
		b.lt.Clean(t, "cublasLt")
		gpudouble.Open(t, libs.CUDA).Clean(t)
	}
	var err error
	b.dev, err = device.Open(0)
	require.NoError(t, err)
	b.stream, err = b.dev.NewStream()
	require.NoError(t, err)
	b.handle, err = New(b.dev)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.handle.Close())
		require.NoError(t, b.stream.Close())
		require.NoError(t, b.dev.Close())
	})
	return b
}

// must fails the test at an error.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// matrix is device memory of n elements, the first of which lies at an offset.
type matrix struct {
	*device.Memory
	typ       Type
	offset, n int
}

func (m *matrix) at() uintptr { return m.Addr() + uintptr(m.offset) }

// store makes a matrix of values, which are rounded to the type. It is freed with the test.
func (b *bench) store(typ Type, offset int, values ...float64) *matrix {
	b.t.Helper()
	m := &matrix{must(b.dev.Alloc(offset + len(values)*typ.Size()))(b.t), typ, offset, len(values)}
	h := must(b.dev.AllocHost(len(values) * typ.Size()))(b.t)
	for i, v := range values {
		at := h.Bytes()[i*typ.Size():]
		switch typ {
		case F64:
			binary.NativeEndian.PutUint64(at, math.Float64bits(v))
		case F32:
			binary.NativeEndian.PutUint32(at, math.Float32bits(float32(v)))
		case BF16:
			binary.NativeEndian.PutUint16(at, uint16(half.ToBFloat16(float32(v))))
		case F16:
			binary.NativeEndian.PutUint16(at, uint16(half.ToFloat16(float32(v))))
		}
	}
	require.NoError(b.t, b.stream.CopyToDevice(m.at(), h, 0, h.Len()))
	require.NoError(b.t, b.stream.Sync())
	require.NoError(b.t, h.Free())
	return m
}

// load returns the values of a matrix, after what the stream was given.
func (b *bench) load(m *matrix) []float64 {
	b.t.Helper()
	h := must(b.dev.AllocHost(m.n * m.typ.Size()))(b.t)
	require.NoError(b.t, b.stream.CopyToHost(h, 0, m.at(), h.Len()))
	require.NoError(b.t, b.stream.Sync())
	values := make([]float64, m.n)
	for i := range values {
		at := h.Bytes()[i*m.typ.Size():]
		switch m.typ {
		case F64:
			values[i] = math.Float64frombits(binary.NativeEndian.Uint64(at))
		case F32:
			values[i] = float64(math.Float32frombits(binary.NativeEndian.Uint32(at)))
		case BF16:
			values[i] = float64(half.BFloat16(binary.NativeEndian.Uint16(at)).Float32())
		case F16:
			values[i] = float64(half.Float16(binary.NativeEndian.Uint16(at)).Float32())
		}
	}
	require.NoError(b.t, h.Free())
	return values
}
