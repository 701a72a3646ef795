// Package gpu makes models compute on a GPU: one for each rank, in the field Device of fsdp.Config.
//
//	group, err := comm.FromEnv(ctx)          // carries agreements and checkpoints
//	dev, err := gpu.OpenLocal(group)         // the GPU of this rank
//	m, err := fsdp.Wrap(model, fsdp.Config{Group: group, Device: dev, Precision: fsdp.BF16()})
//	… m.Close(); dev.Close()
//
// Everything else is the same as on the processor: the model, the optimizer, the checkpoint files,
// and the handling of ranks without further batches. Parameters, gradients, the optimizer's state
// and everything between are in the memory of the GPU, and NCCL carries the collectives of a pass.
//
// # Requirements
//
// To build a program it only needs cgo and Linux. Open loads the driver (libcuda.so.1, 520 or
// later, and 525 on compute capability 9.0). Wrap loads cuBLASLt, and NCCL if there are several
// ranks: both are in a CUDA installation and in the wheels of PyTorch. If a library is missing, the
// error lists the files that were tried, and the variables that may name the files. The GPU must be
// an A100 or later (compute capability 8.0).
//
// # Guarantees
//
// Kernels add in one order, so a training on one GPU has the same bits in every run, and for every
// Prefetch and InFlight of [fsdp.Config]. So has a training on several GPUs of one kind, with the
// same version of NCCL, which computes the sums over ranks, except for two cases:
//
//   - On hosts whose GPUs are connected by NVSwitch, NCCL may sum in the switches (its algorithms
//     NVLS and NVLSTree), in the order in which terms arrive.
//   - NCCL may divide a sum differently if the launch has other sums. Neighbouring reductions share
//     a launch, and Prefetch and InFlight decide which ones are neighbours.
//
// The field Deterministic of Device excludes both. Another number of ranks has other bits, except
// with VirtualRanks of [fsdp.Config]: then NCCL sums nothing, and the two cases do not arise. Ranks
// exchange gradients and add them in one order. That takes scratch memory of the size of the
// largest unit's gradients, which plans count. Another kind of GPU and processors have other bits
// in any case. Float64 is for checks: it is slow.
//
// Operations without kernels, such as stock operations of Gorgonia without a native one, are an
// error that names all of them: of Plan of [fsdp.Planner], which needs no GPU, and of the first
// pass. Operations with slow kernels, such as attention in float32, are in the field Stock of
// [fsdp.Plan], and the first Forward logs them.
//
// A call returns before the GPU has finished its work, unless it returns numbers. So a later call
// returns the errors of this work, with the pass in which they occurred. The failure of another
// rank may end a pass that was complete on that rank, because its last sums are still in flight.
package gpu

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gofsdp/gofsdp/comm"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine"
	"github.com/gofsdp/gofsdp/fsdp/internal/engine/gpu"
	"github.com/gofsdp/gofsdp/internal/launch"
	"github.com/gofsdp/gofsdp/nccl"
)

// Device is a GPU that models compute on. Several models may use it, if each rank calls their
// methods one after another, and all ranks in the same order. A collective of one model then runs
// after all earlier collectives of the others.
//
// For [fsdp.Planner] it may be new(Device): plans need no GPU, nor a library of one.
type Device struct {
	*nccl.Device
	// Timeout is how long collectives may make no progress after every rank has entered them. 0
	// means 5 minutes. Do not change it while a model is wrapped.
	Timeout time.Duration
	// Deterministic gives a training on several GPUs the same bits in every run, and for every
	// Prefetch and InFlight of fsdp.Config: see Guarantees. Sums over ranks may become slower. Wrap
	// sets the variable NCCL_ALGO of the process, and returns an error if NCCL was loaded before, or
	// if NCCL_ALGO allows sums in switches. Set it before Wrap, on all ranks.
	Deterministic bool
	// CollectiveSMs limits the multiprocessors that collectives of NCCL use at once (its maxCTAs), and
	// lets products use only the others (SM_COUNT_TARGET of cuBLASLt), if there are several ranks, or
	// virtual ranks. So products do not wait for multiprocessors that a collective occupies. It
	// changes how products and sums over ranks are rounded. 0, the default, sets no limits: the effect
	// on speed is not yet measured. 16 is a value to try. Set it before Wrap, to the same number on
	// all ranks.
	CollectiveSMs int
	// TF32 lets products of float32 values run on tensor cores, which round their factors to 10 bits
	// of mantissa: by their peaks up to 7 times as fast on an H100, not measured here. Sums stay
	// float32, and products in bfloat16 are the same. Set it before Wrap, on all ranks.
	TF32 bool

	turns gpu.Turns
}

var _ fsdp.Device = (*Device)(nil)

// OpenLocal opens the GPU of this rank. Under a launcher (see [comm.ConfigFromEnv]) it is the GPU
// of the rank's place on its host, LocalRank. A process that sees one GPU only opens that one,
// whatever its place: srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES with one entry, and an instance
// of a GPU that MIG divides leave one. Without a launcher, ranks are goroutines of this process,
// and each opens the GPU of its rank in g. Close the Device after the models that compute on it.
func OpenLocal(g comm.Group) (*Device, error) {
	env, launched, err := launch.Parse(os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("gpu: %w", err)
	}
	if !launched {
		return Open(g.Rank())
	}
	visible, err := nccl.Devices()
	if err != nil {
		return nil, err
	}
	n, err := ordinal(&env, visible)
	if err != nil {
		return nil, fmt.Errorf("gpu: rank %d: %w", env.Rank, err)
	}
	return Open(n)
}

// ordinal returns the number of the GPU that a process opens which sees some.
func ordinal(env *launch.Env, visible int) (int, error) {
	switch local := env.LocalRank; {
	case visible == 1 || env.Size == 1:
		return 0, nil
	case local < 0:
		return 0, fmt.Errorf("%s gives no place of a rank on its host, and this process sees %d GPUs: set LOCAL_RANK, or call Open", env.Source, visible)
	case local >= visible:
		return 0, fmt.Errorf("it has place %d on its host, counted from 0, but this process sees %d GPUs (CUDA_VISIBLE_DEVICES): start one rank for each GPU", local, visible)
	default:
		return local, nil
	}
}

// Open opens the GPU with an ordinal, counted from 0, of the GPUs that this process sees. Close it
// after the models that compute on it.
func Open(ordinal int) (*Device, error) {
	d, err := nccl.OpenDevice(ordinal)
	if err != nil {
		return nil, err
	}
	return &Device{Device: d}, nil
}

// Settings implements fsdp.Device.
func (d *Device) Settings() string {
	return fmt.Sprintf("CollectiveSMs %d, Deterministic %t, TF32 %t", d.CollectiveSMs, d.Deterministic, d.TF32)
}

// Engine implements fsdp.Device.
func (d *Device) Engine(o engine.DeviceOptions) (engine.Device, error) {
	if o.Dry {
		return gpu.NewDry(), nil
	}
	if d == nil || d.Device == nil {
		return nil, errors.New("gpu: the Device was not returned by Open")
	}
	return gpu.New(d.Device, gpu.Options{Poison: o.Poison, Offload: o.Offload, Cores: o.Cores, Timeout: d.Timeout, Turns: &d.turns,
		CollectiveSMs: d.CollectiveSMs, TF32: d.TF32, Deterministic: d.Deterministic, Virtual: o.Virtual, Float16: o.Float16})
}
