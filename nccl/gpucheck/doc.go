// Package gpucheck checks on real GPUs what is otherwise tested with doubles of their libraries:
// that process groups over NCCL keep the contract of [comm.Group], and how fast they and kernels
// are. There are only tests here, behind a build tag, and a script that runs them, all or some:
//
//	make gpu-check
//	nccl/gpucheck/run.sh -test.run 'Bandwidth|Rates' -largest 64    # MiB
//
//	Bandwidth   all-gathers and reduce-scatters beside copies in the GPU
//	Contract    the contract of comm.Group, some minutes
//	Curve       the losses of a GPT of 124M, beside PyTorch's from the same weights, if it is there
//	PyTorch     attention of PyTorch by FlashAttention and by cuDNN, if it is there
//	Parity      training of a GPT, a Llama and a T5 on the GPU beside the host, in each arrangement
//	Rates       kernels of every operation, in GB/s and TFLOP/s, at the sizes of a GPT of 1.5B
//	Step        a step of training over device memory
//	Training    steps of a GPT of 1.5B beside those of PyTorch's FSDP2, if it is there
//
// "-test.run Rates -cluster h200.json -like h200" also writes what kernels take to a file that
// fsdpplan reads: "fsdpplan -cluster h200.json". What is not measured is as in the cluster named.
//
// Every figure is a line that begins with "  | ", printed when it is measured. With -scale=tiny all
// of it runs on sizes of no use. Ranks are processes, in these arrangements:
//
//	one rank
//	two ranks on one GPU, which NCCL takes for GPUs of two hosts (NCCL_HOSTID), over loopback
//	two ranks on one GPU, with NCCL 2.30 or later (NCCL_MULTI_RANK_GPU_ENABLE)
//	a rank on each GPU, if there are several
//
// Without arguments the script also runs the tests of internal/device, blaslt, gpu and ops that
// compare every kernel with the host: they take a GPU where FSDP_CUDA_LIBRARY is set.
//
// The script builds the test programs, or takes those that GPUCHECK_BIN and GPUCHECK_KERNELS name,
// which need neither Go nor this source; it finds NCCL, also in a Python environment. Its exit
// status is 0 if all is well, 3 if the machine has no GPU, and another one after any failure.
//
//	CGO_ENABLED=1 go test -c -tags gpu -o gpucheck ./nccl/gpucheck
//	GPUCHECK_BIN=./gpucheck ./run.sh      # elsewhere, with both files copied
//
// Without the tag the package tests the script itself, with the doubles. There its
// figures say nothing about anything.
package gpucheck
