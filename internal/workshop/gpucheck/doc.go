// Package gpucheck tests on real GPUs the parts of the library that otherwise run on doubles of
// CUDA's libraries: process groups over NCCL, kernels and trainings. It also measures how fast they
// are. It has only tests, behind a build tag, and a script that runs them.
//
// # All parts
//
// The script builds the test programs on a machine with Go and runs them on a machine with GPUs,
// which needs neither Go nor this source nor a network:
//
//	internal/workshop/gpucheck/run.sh build DIR      # here; then copy DIR
//	DIR/run.sh parts DIR OUT            # there
//
// The parts run in this order. Each has a time limit, prints figures when they are measured, and
// reports when it ends. OUT gets a log, a table, and a file for "fsdpplan -cluster". Names behind
// OUT select parts.
//
//	machine      the GPUs and the software
//	training     Training, our two contestants
//	rates        Rates, PyTorch
//	kernels      tests of internal/device, blaslt, gpu and ops, which compare kernels with the host
//	pytorch      Training, the contestants of PyTorch
//	parity       Parity
//	collectives  Step, Bandwidth
//	curve        Curve
//	contract     Contract
//
// The exit status is 0 if all is well, 3 if the machine has no GPU, and 1 after a failure or a
// timeout. "make gpu-check" builds and runs on one machine. With GPUCHECK_SCALE=tiny all parts run
// once on useless sizes: the tests of this package, without the build tag, run them on the doubles.
//
// # Single tests
//
// With other arguments the script builds the test program of this package and runs it:
//
//	internal/workshop/gpucheck/run.sh -test.run 'Bandwidth|Rates' -largest 64    # MiB
//
//	Bandwidth   all-gathers, reduce-scatters, and copies in the GPU
//	Contract    the contract of comm.Group, some minutes
//	Curve       the losses of a GPT of 124M, and PyTorch's from the same weights
//	Parity      trainings of a GPT, a Llama and a T5 on the GPU and on the host
//	PyTorch     PyTorch's attention by FlashAttention and by cuDNN, and its linear layers
//	Rates       kernels of operations and of shards, and the update, at the sizes of a GPT of 1.5B
//	Step        a step of training over device memory
//	Training    steps of a GPT of 1.5B by default, with Config.Activations.Save, and by PyTorch's FSDP2
//
// If there is no PyTorch, a line reports it. "-test.run Rates -cluster h200.json -like h200" writes
// the rates to a file for "fsdpplan -cluster h200.json"; all else is copied from the cluster h200.
//
// Every figure is a line that begins with "  | ". Contract, Step, Bandwidth and Parity run on ranks
// that are processes, in these arrangements:
//
//	one rank
//	two ranks on one GPU, which NCCL takes for GPUs of two hosts (NCCL_HOSTID), over loopback
//	two ranks on one GPU, with NCCL 2.30 or later (NCCL_MULTI_RANK_GPU_ENABLE)
//	a rank on each GPU, if there are several
package gpucheck
