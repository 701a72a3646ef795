//go:build gpu && linux && cgo

package gpucheck

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/nccl"
)

// TestStep moves device memory as a step of training does, while the host waits for nothing but
// the end: gradients that a stream produces are reduce-scattered, the stream makes parameters of
// this rank's part, and these are gathered.
func TestStep(t *testing.T) {
	if !isRank() {
		inEach(t)
		return
	}
	m := join(t)
	g, err := nccl.New(t.Context(), m, m.dev, nccl.GroupConfig{})
	require.NoError(t, err)
	for _, part := range []int{1, 1000, 1 << 18} {
		step(t, g, m.dev, part, func(x []float32) []float32 { return x })
		step(t, g, m.dev, part, func(x []float32) []comm.BF16 {
			narrow := make([]comm.BF16, len(x))
			comm.Narrow(narrow, x)
			return narrow
		})
		step(t, g, m.dev, part, func(x []float32) []int32 {
			whole := make([]int32, len(x))
			for i, v := range x {
				whole[i] = int32(v)
			}
			return whole
		})
	}
	require.NoError(t, g.Close())
}

// step is a step with parts of so many elements, whose values are made by as from small whole
// numbers: sums of them are exact in every order and type.
func step[T comm.Elem](t *testing.T, g *nccl.Group, dev *nccl.Device, part int, as func([]float32) []T) {
	all := part * g.Size()
	mine, want := make([]float32, all), make([]float32, all)
	for r := range g.Size() {
		for i := range want {
			v := float32(i*(r+1)%7 - 2)
			want[i] += v
			if r == g.Rank() {
				mine[i] = v
			}
		}
	}
	input, output := bytesOf(as(mine)), bytesOf(as(want))
	width := len(input) / all
	compute, err := dev.NewStream()
	require.NoError(t, err)
	grads, err := dev.Alloc(len(input))
	require.NoError(t, err)
	params, err := dev.Alloc(len(input))
	require.NoError(t, err)
	host, err := dev.AllocHost(len(input))
	require.NoError(t, err)

	from, to := g.Rank()*part, (g.Rank()+1)*part
	copy(host.Bytes(), input)
	require.NoError(t, compute.CopyToDevice(grads.Addr(), host, 0, len(input)))
	require.NoError(t, g.Fence(compute))
	whole := transport.OnDevice[T](grads.Addr(), all)
	reduced := g.ReduceScatter(whole.Slice(from, to), whole, comm.Sum)
	require.NoError(t, g.WaitOn(t.Context(), compute, reduced))
	offset := uintptr(from * width)
	require.NoError(t, compute.CopyDevice(params.Addr()+offset, grads.Addr()+offset, part*width))
	require.NoError(t, g.Fence(compute))
	whole = transport.OnDevice[T](params.Addr(), all)
	gathered := g.AllGather(whole, whole.Slice(from, to))
	require.NoError(t, g.WaitOn(t.Context(), compute, gathered))
	require.NoError(t, compute.CopyToHost(host, 0, params.Addr(), len(output)))
	require.NoError(t, compute.Sync())
	require.NoError(t, reduced.Wait(t.Context()))
	require.NoError(t, gathered.Wait(t.Context()))
	require.True(t, string(output) == string(host.Bytes()), "%d %v of each rank: not their sum", part, whole.DType())

	require.NoError(t, host.Free())
	require.NoError(t, params.Free())
	require.NoError(t, grads.Free())
	require.NoError(t, compute.Close())
}

// bytesOf returns the memory of x.
func bytesOf[T comm.Elem](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}
