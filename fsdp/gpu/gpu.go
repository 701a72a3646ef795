// Package gpu has models compute on a GPU: one for each rank, in the field Device of fsdp.Config.
//
//	group, err := comm.FromEnv(ctx)          // what ranks agree on, and checkpoints
//	dev, err := gpu.Open(local)              // LocalRank of comm.ConfigFromEnv
//	m, err := fsdp.Wrap(model, fsdp.Config{Group: group, Device: dev, Precision: fsdp.Precision{Compute: fsdp.BFloat16}})
//	… m.Close(); dev.Close()
//
// Everything else is as on the processor: the model, the optimizer, checkpoints, which are the same
// files, and what ranks do that have run out of batches. Parameters, gradients, the optimizer's state
// and everything between live in the memory of the GPU, and NCCL carries what ranks exchange in a
// pass.
//
// # What it needs
//
// Nothing to build a program but cgo, and Linux. When a device is opened, the driver (libcuda.so.1,
// 520 or later) is loaded; when a model is wrapped, cuBLASLt, and NCCL if there are several ranks:
// both are in a CUDA installation and in the wheels of PyTorch. What is not found is an error that
// lists what was tried, and the variables that may name the files. The GPU must be an A100 or later
// (compute capability 8.0).
//
// # What holds
//
// Kernels add in one order, so a training has the same bits in every run over the same ranks, and for
// every prefetch depth. Sums over ranks are NCCL's. Float64 is for checks: it is slow. Operations
// without kernels, such as stock operations of Gorgonia without a native one, are an error of the
// first pass that names them.
//
// A call returns before the GPU has done what it asked for, unless it returns numbers. So what fails
// there is the error of a later call, and says in which pass it was. The failure of another rank may
// end a pass that was over on that rank: its last sums are under way.
package gpu

import (
	"errors"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine/gpu"
	"github.com/gofsdp/gofsdp/nccl"
)

// Device is a GPU that models compute on: one, or several of which one rank after the other calls methods,
// on all ranks in the same order. What one sends comes after all that another has sent before.
//
// For [fsdp.Dry] it may be new(Device): plans need no GPU, nor a library of one.
type Device struct {
	*nccl.Device
	// Timeout is how long collectives may make no progress once every rank has come to them. 0 means
	// 5 minutes. It is not changed while a model is wrapped.
	Timeout time.Duration

	turns gpu.Turns
}

var _ fsdp.Device = (*Device)(nil)

// Open opens the GPU of an ordinal, counted from 0; see package nccl for which one a rank opens. Close
// it after the models that compute on it.
func Open(ordinal int) (*Device, error) {
	d, err := nccl.OpenDevice(ordinal)
	if err != nil {
		return nil, err
	}
	return &Device{Device: d}, nil
}

// Engine implements fsdp.Device.
func (d *Device) Engine(o engine.DeviceOptions) (engine.Device, error) {
	if o.Dry {
		return gpu.NewDry(), nil
	}
	if d == nil || d.Device == nil {
		return nil, errors.New("gpu: the Device is not one that Open has returned")
	}
	return gpu.New(d.Device, gpu.Options{Poison: o.Poison, Offload: o.Offload, Timeout: d.Timeout, Turns: &d.turns})
}
