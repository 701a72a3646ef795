//go:build linux && cgo

// Package cuadapter lets programs that use CUDA through gorgonia.org/cu pass its
// contexts, streams and device pointers to package nccl.
//
//	primary, err := gpu.RetainPrimaryCtx()
//	dev, err := cuadapter.Device(gpu, primary)
//	g, err := nccl.New(ctx, boot, dev, nccl.GroupConfig{})
//	stream, err := dev.NewStream()
//	err = kernel.Launch(…, cuadapter.CUStream(stream), …)           // by cu
//	err = g.Fence(stream)                                           // collectives come after it
//	w := g.AllReduce(cuadapter.Buffer[float32](ptr, n), comm.Sum)
//
// Package fsdp trains on the same device, and kernels launched by cu may work on the
// shards of a model between its passes, without a wait of the host:
//
//	model, err := fsdp.Wrap(m, fsdp.Config{Group: boot, Device: &gpu.Device{Device: dev}}) // of package fsdp/gpu
//	for _, p := range model.Params() {
//		ptr, stream, err := cuadapter.Vec(p.Grad)
//		err = kernel.Launch(…, stream, …)                           // on p.Grad.Len() elements
//	}
//
// It is a separate module, because cu is not for every program: it needs cuda.h to
// compile and libcuda to link and start. Without a device it ends the process as soon as
// it is imported.
//
// cu compiles with the headers of CUDA 11.8 to 12.9. CUDA 13 gave another meaning to five
// names that it uses. The directory compat has a cuda.h that reverts that, and must come
// first:
//
//	CGO_CFLAGS="-I$PWD/compat -I/usr/local/cuda/include" go build ./...
//
// The script check.sh compiles, links and tests all this on a machine without CUDA.
package cuadapter

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/comm/transport"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/optim"
)

// Device opens the device that ctx is a context of. ctx must be its primary context, from
// [cu.Device.RetainPrimaryCtx], because NCCL uses no other: the streams and modules of a
// context of [cu.NewContext] are invalid there.
//
// The caller closes the result. It retains the context too, so that cu may release it
// before.
func Device(gpu cu.Device, ctx cu.CUContext) (*nccl.Device, error) {
	ordinal, err := ordinalOf(gpu)
	if err != nil {
		return nil, err
	}
	primary, err := gpu.RetainPrimaryCtx()
	if err == nil {
		err = gpu.ReleasePrimaryCtx() // if it is ctx, the caller holds it
	}
	if err != nil {
		return nil, fmt.Errorf("cuadapter: the primary context of device %d: %w", ordinal, err)
	}
	if ctx != primary {
		return nil, fmt.Errorf("cuadapter: %v is not the primary context of device %d, which NCCL uses and RetainPrimaryCtx returns", ctx, ordinal)
	}
	return nccl.OpenDevice(ordinal)
}

// ordinalOf returns which device gpu is, counted from 0.
func ordinalOf(gpu cu.Device) (int, error) {
	n, err := cu.NumDevices()
	if err != nil {
		return 0, fmt.Errorf("cuadapter: %w", err)
	}
	for i := range n {
		d, err := cu.GetDevice(i)
		if err != nil {
			return 0, fmt.Errorf("cuadapter: device %d: %w", i, err)
		}
		if d == gpu {
			return i, nil
		}
	}
	return 0, fmt.Errorf("cuadapter: %v is not one of the %d devices", gpu, n)
}

// Buffer returns the n elements at p as a buffer of a group of ranks.
func Buffer[T comm.Elem](p cu.DevicePtr, n int) comm.Buffer {
	return transport.OnDevice[T](p.Uintptr(), n)
}

// Stream returns the handle of s, as the collectives of [nccl.Communicator] take it.
func Stream(s cu.Stream) uintptr { return uintptr(unsafe.Pointer(s.C())) }

// CUStream returns s as a stream of cu. The caller still closes it by s.
func CUStream(s *nccl.Stream) cu.Stream {
	handle := s.Handle()
	return *(*cu.Stream)(unsafe.Pointer(&handle)) // a CUstream, for which cu has no constructor
}

// Vec returns where the elements of a vector are, such as the value or the gradient of a piece of a
// model with fsdp.Config.Device, and the stream in which it is to be used: see [nccl.Placed].
func Vec(v optim.Vec) (cu.DevicePtr, cu.Stream, error) {
	p, ok := v.(nccl.Placed)
	if !ok {
		return 0, cu.Stream{}, fmt.Errorf("cuadapter: a %T is not in the memory of a device", v)
	}
	addr, s, err := p.Place()
	if err != nil {
		return 0, cu.Stream{}, err
	}
	return cu.DevicePtr(addr), CUStream(s), nil
}

// A cu.Stream is as large as its handle.
var _ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Stream{})]byte{}
