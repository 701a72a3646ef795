//go:build linux && cgo

package gpu

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/internal/arena"
	"github.com/gofsdp/gofsdp/internal/device"
	"github.com/gofsdp/gofsdp/internal/gpudouble"
	"github.com/gofsdp/gofsdp/nccl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// double loads the double of the driver. At the end of the test nothing of it lives.
func double(t testing.TB) *gpudouble.Control {
	libs := gpudouble.Build(t)
	require.NoError(t, device.Load(libs.CUDA))
	cuda := gpudouble.Open(t, libs.CUDA)
	cuda.Clean(t)
	return cuda
}

// open returns a device of the double, closed at the end of the test.
func open(t testing.TB, o Options) *Device {
	dev, err := nccl.OpenDevice(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	d, err := New(dev, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.release()) })
	return d
}

// TestNew fails each call of the driver that New makes, once: it returns the error and leaves
// nothing.
func TestNew(t *testing.T) {
	cuda := double(t)
	dev, err := nccl.OpenDevice(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	for _, call := range []string{
		"cuStreamCreateWithPriority", "cuEventCreate", "cuEventRecord", "cuMemAlloc", "cuMemAllocHost", "cuModuleLoadDataEx", "cuModuleGetFunction",
		"cuMemcpyHtoDAsync", "cuStreamSynchronize",
	} {
		before := cuda.Calls(call)
		d, err := New(dev, Options{})
		require.NoError(t, err)
		require.NoError(t, d.release())
		for nth := range cuda.Calls(call) - before {
			cuda.Fail(call, nth+1, 2)
			_, err := New(dev, Options{})
			require.ErrorContains(t, err, "device 0: "+call)
		}
	}
}

// TestOldDevice: the kernels run on Ampere and later.
func TestOldDevice(t *testing.T) {
	cuda := double(t)
	cuda.Capability(t, 7, func() {
		dev, err := nccl.OpenDevice(0)
		require.NoError(t, err)
		defer func() { require.NoError(t, dev.Close()) }()
		_, err = New(dev, Options{})
		require.EqualError(t, err, "gpu: device 0, Double 0, has compute capability 7.0, and the kernels need 8.0 (A100, RTX 30 and later)")
	})
}

// TestBlocks counts what is there, and says what there is no memory for.
func TestBlocks(t *testing.T) {
	cuda := double(t)
	d := open(t, Options{})
	require.Equal(t, cuda.Live("bytes"), d.held)
	before := d.held
	b, err := d.alloc(1000, arena.Shard)
	require.NoError(t, err)
	require.Equal(t, 1000, d.held-before)
	require.Equal(t, 1000, d.counts.Stats().Live[arena.Shard])
	require.Equal(t, cuda.Live("bytes"), d.held)
	_, err = d.alloc(1<<50, arena.State)
	require.ErrorContains(t, err, "state memory: allocating 1125899906842624 bytes: device 0: cuMemAlloc")
	require.Regexp(t, `\d+ of \d+ bytes of the device are free\. Planner\.Fits, `, err.Error())
	require.NoError(t, d.free(b))
	require.NoError(t, d.free(nil))
	require.Equal(t, before, d.held)
	require.Zero(t, d.counts.Stats().Total)
}

// TestFail: the first failure is the one that everybody gets.
func TestFail(t *testing.T) {
	double(t)
	d := open(t, Options{})
	require.NoError(t, d.err())
	first := errors.New("first")
	require.ErrorIs(t, d.fail(first), first)
	require.ErrorIs(t, d.fail(errors.New("second")), first)
	require.ErrorIs(t, d.wait(d.work), first)
	require.ErrorIs(t, d.fork(), first)
}

// TestFailedEndStep says once why the device has ended, whatever there is to free.
func TestFailedEndStep(t *testing.T) {
	double(t)
	d := open(t, Options{})
	b, err := d.alloc(8, arena.Gradient)
	require.NoError(t, err)
	d.discard(b)
	first := errors.New("first")
	require.Equal(t, first, d.fail(first))
	require.EqualError(t, d.EndStep(), "first")
	require.NoError(t, d.free(b))
}
