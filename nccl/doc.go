// Package nccl trains on GPUs: it binds NVIDIA's collective communication library and
// makes process groups with it.
//
// Neither NCCL nor CUDA is needed to build a program. Both are loaded when they are
// first used. On a machine without them everything returns an error that matches
// [ErrUnavailable] and names the libraries that were not found. The variables
// [EnvLibrary] and [EnvCUDA] name other files than the system's. Linux and cgo are
// needed; elsewhere the package has the same names and is never available.
//
// A [Communicator] is NCCL's own interface in Go: device memory and streams are
// addresses, as a [Device] or another CUDA binding returns them.
//
//	dev, err := nccl.OpenDevice(local)
//	id, err := nccl.NewUniqueID() // on one rank, which gives it to the others
//	c, err := nccl.NewCommunicator(ctx, dev, ranks, id, rank, nccl.Config{})
//	err = c.ReduceScatter(grads.Addr(), shard.Addr(), n, nccl.Float32, nccl.Avg, stream.Handle())
//	err = stream.Sync()
//	err = c.Finalize(ctx)
//	err = c.Destroy()
//
// # Which device
//
// A rank opens the GPU of its place on the host, LocalRank of [comm.ConfigFromEnv],
// which comes from the launcher:
//
//	torchrun, fsdprun   LOCAL_RANK
//	Slurm (srun)        SLURM_LOCALID
//	Open MPI            OMPI_COMM_WORLD_LOCAL_RANK
//	MPICH, Intel MPI    MPI_LOCALRANKID
//	Kubernetes          0: a pod is a rank, and sees the GPUs of its resource limits
//
// A rank that has access to one GPU only, as by srun --gpus-per-task=1, opens number 0
// whatever its place: [Devices] returns their number. OpenLocal of package fsdp/gpu does
// all of this.
//
// # What holds
//
//   - Every call makes the device's context current and calls NCCL on one thread, so that
//     goroutines may move between threads. It must be the primary context.
//   - A collective allocates nothing and costs little more than the call of a C function.
//   - A communicator takes one call at a time. Use several on one device in the same order
//     on all ranks; NCCL_LAUNCH_ORDER_IMPLICIT=1 makes the device keep that order.
//   - Nothing frees a communicator but Destroy and Abort: both are collective, so no
//     garbage collector may choose the time.
//   - NCCL does not notice every peer that is gone. A caller that waits for a stream checks
//     AsyncError and the clock, and aborts on all ranks.
//
// # Process groups
//
// [New] makes a [comm.Group] whose data NCCL carries, for fsdp.Config.Group or for
// collectives of buffers made by [transport.OnDevice]: see its example. Buffers in host
// memory are staged, so package fsdp trains over such a group while it computes on the
// CPU. To compute on GPUs too, use any group and package fsdp/gpu. NCCL adds floats in
// its own order: sums are right within rounding.
//
// # Which NCCL, and does it work
//
// libcuda.so.1 and libnccl.so.2, 2.18 or later, are loaded from the system's paths.
// Without a GPU all of this package is tested with doubles of both
// (internal/gpudouble). With one
//
//	make gpu-check
//
// runs the contract of all groups, a step over device memory, and bandwidths next to a
// device copy. Package internal/workshop/gpucheck explains how to do that on a machine
// without Go. The module nccl/cuadapter accepts contexts, streams and device pointers
// from gorgonia.org/cu.
package nccl
