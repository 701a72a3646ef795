// Package gpucheck checks on real GPUs what is otherwise tested with doubles of their libraries:
// that process groups over NCCL keep the contract of [comm.Group], and how fast they and kernels
// are. There are only tests here, behind a build tag, and a script that runs them.
//
// # All of it
//
// The script builds the test programs on a machine with Go, and runs them on a machine with GPUs, which
// needs neither Go nor this source nor a network:
//
//	nccl/gpucheck/run.sh build DIR      # here; then copy DIR
//	DIR/run.sh parts DIR OUT            # there
//
// The parts run in this order, each under a time limit, and each prints its figures and reports when it
// ends. OUT gets a log, a table, and a file for "fsdpplan -cluster". "DIR/run.sh parts DIR OUT curve
// contract" runs these two only.
//
//	machine      the GPUs and the software
//	training     Training, our two contestants
//	rates        Rates, PyTorch
//	kernels      the tests of internal/device, blaslt, gpu and ops, which compare every kernel with the host
//	pytorch      Training, the contestants of PyTorch
//	parity       Parity
//	collectives  Step, Bandwidth
//	curve        Curve
//	contract     Contract
//
// The exit status is 0 if all is well, 3 if the machine has no GPU, and 1 after a failure or a timeout.
// "make gpu-check" does both on one machine, without a time limit of all parts together. With GPUCHECK_SCALE=tiny
// all parts run on sizes of no use: the tests of this package run them so on the doubles.
//
// # Some of it
//
// With other arguments the script builds the test program of this package and runs it:
//
//	nccl/gpucheck/run.sh -test.run 'Bandwidth|Rates' -largest 64    # MiB
//
//	Bandwidth   all-gathers and reduce-scatters beside copies in the GPU
//	Contract    the contract of comm.Group, some minutes
//	Curve       the losses of a GPT of 124M, beside PyTorch's from the same weights, if it is there
//	Parity      training of a GPT, a Llama and a T5 on the GPU beside the host, in each arrangement
//	PyTorch     attention of PyTorch by FlashAttention and by cuDNN, if it is there
//	Rates       kernels of every operation and of shards, in GB/s and TFLOP/s, at the sizes of a GPT of 1.5B
//	Step        a step of training over device memory
//	Training    steps of a GPT of 1.5B by default and with Config.Keep, and by PyTorch's FSDP2, if it is there
//
// "-test.run Rates -cluster h200.json -like h200" also writes what kernels take to a file that
// fsdpplan reads: "fsdpplan -cluster h200.json". What is not measured is as in the cluster named.
//
// Every figure is a line that begins with "  | ", printed when it is measured. Ranks are processes, in
// these arrangements:
//
//	one rank
//	two ranks on one GPU, which NCCL takes for GPUs of two hosts (NCCL_HOSTID), over loopback
//	two ranks on one GPU, with NCCL 2.30 or later (NCCL_MULTI_RANK_GPU_ENABLE)
//	a rank on each GPU, if there are several
//
// Without the tag the package tests the script itself, with the doubles. There its
// figures say nothing about anything.
package gpucheck
