//go:build linux && cgo

package cuadapter

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"
	"gorgonia.org/tensor"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/gpu"
	"github.com/gofsdp/gofsdp/fsdp/nn"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
)

// primary makes the primary context of device 0 current.
func primary(t *testing.T) (cu.Device, cu.CUContext) {
	gpu, err := cu.GetDevice(0)
	require.NoError(t, err)
	ctx, err := gpu.RetainPrimaryCtx()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, gpu.ReleasePrimaryCtx()) })
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	require.NoError(t, cu.SetCurrentContext(ctx))
	return gpu, ctx
}

// TestCommunicator sums what cu has in memory, in a stream of cu's.
func TestCommunicator(t *testing.T) {
	dev, from, to := memory(t)
	stream, err := cu.MakeStream(cu.NonBlocking)
	require.NoError(t, err)
	require.NoError(t, cu.MemsetD8Async(from, 7, size, stream))

	id, err := nccl.NewUniqueID()
	require.NoError(t, err)
	c, err := nccl.NewCommunicator(t.Context(), dev, 1, id, 0, nccl.Config{})
	require.NoError(t, err)
	require.NotZero(t, Stream(stream))
	require.NoError(t, c.AllReduce(from.Uintptr(), to.Uintptr(), size, nccl.Uint8, nccl.Sum, Stream(stream)))
	require.NoError(t, stream.Synchronize())
	require.NoError(t, c.Finalize(t.Context()))
	require.NoError(t, c.Destroy())
	require.NoError(t, stream.Destroy())
	require.Equal(t, bytes.Repeat([]byte{7}, size), read(t, dev, to))
}

// TestGroup gathers what cu has put into memory in a stream that both packages know.
func TestGroup(t *testing.T) {
	dev, from, to := memory(t)
	boot := comm.Local(1)[0]
	g, err := nccl.New(t.Context(), boot, dev, nccl.GroupConfig{})
	require.NoError(t, err)
	stream, err := dev.NewStream()
	require.NoError(t, err)
	require.Equal(t, stream.Handle(), Stream(CUStream(stream)))
	require.NoError(t, cu.MemsetD8Async(from, 5, size, CUStream(stream)))
	require.NoError(t, g.Fence(stream))
	require.NoError(t, g.AllGather(Buffer[int32](to, size/4), Buffer[int32](from, size/4)).Wait(t.Context()))
	require.NoError(t, g.Close())
	require.NoError(t, boot.Close())
	require.NoError(t, stream.Close())
	require.Equal(t, bytes.Repeat([]byte{5}, size), read(t, dev, to))
}

// TestTraining has cu change the gradients of a model on its device.
func TestTraining(t *testing.T) {
	dev, err := Device(primary(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	m, err := fsdp.Wrap(&nn.GPT{Vocab: 16, Context: 4, Layers: 1, Dim: 16, Heads: 2}, fsdp.Config{Device: &gpu.Device{Device: dev}})
	require.NoError(t, err)
	tokens := tensor.New(tensor.WithShape(1, 4), tensor.WithBacking([]int{1, 2, 3, 4}))
	_, err = m.Forward(t.Context(), tokens, tokens)
	require.NoError(t, err)
	require.NoError(t, m.Backward(t.Context()))
	for _, p := range m.Params() {
		ptr, stream, err := Vec(p.Grad)
		require.NoError(t, err)
		require.NoError(t, cu.MemsetD8Async(ptr, 0, int64(4*p.Grad.Len()), stream))
	}
	norm, err := m.ClipGradNorm(t.Context(), 1)
	require.NoError(t, err)
	require.Zero(t, norm)
	require.NoError(t, m.Close())

	_, _, err = Vec(optim.Host{})
	require.ErrorContains(t, err, "a optim.Host is not in the memory of a device")
}

const size = 1000

// memory opens device 0 and allocates memory of it by cu.
func memory(t *testing.T) (dev *nccl.Device, a, b cu.DevicePtr) {
	dev, err := Device(primary(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	for _, p := range []*cu.DevicePtr{&a, &b} {
		*p, err = cu.MemAlloc(size)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, cu.MemFree(*p)) })
	}
	return dev, a, b
}

// read copies memory to the host.
func read(t *testing.T, dev *nccl.Device, p cu.DevicePtr) []byte {
	s, err := dev.NewStream()
	require.NoError(t, err)
	h, err := dev.AllocHost(size)
	require.NoError(t, err)
	require.NoError(t, s.CopyToHost(h, 0, p.Uintptr(), size))
	require.NoError(t, s.Sync())
	got := bytes.Clone(h.Bytes())
	require.NoError(t, h.Free())
	require.NoError(t, s.Close())
	return got
}

func TestOnlyThePrimaryContext(t *testing.T) {
	gpu, _ := primary(t)
	_, err := Device(gpu, cu.CUContext{})
	require.ErrorContains(t, err, "not the primary context of device 0")
}

func TestNoSuchDevice(t *testing.T) {
	_, ctx := primary(t)
	_, err := Device(cu.CPU, ctx)
	require.ErrorContains(t, err, "CPU is not one of the")
}
