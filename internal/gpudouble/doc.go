// Package gpudouble builds stand-ins for libcuda (folder cuda) and libnccl (folder nccl), in C, so
// that what uses a GPU is tested on machines without one. They are loaded by the very path that
// production takes:
//
//	libs := gpudouble.Build(t)
//	require.NoError(t, device.Load(libs.CUDA))
//	cuda := gpudouble.Open(t, libs.CUDA)  // the side door of the loaded library
//	cuda.Clean(t)                         // at the end of the test nothing lives or was misused
//	cuda.Fail("cuMemAlloc", 2, 2)         // the second allocation from now on: out of memory
//
// cuda/cuda.c and nccl/library.c say what the doubles are strict about. In a child process, which
// runs before any test can open the side door, variables do the same:
//
//	FSDP_DOUBLE_DEVICES   how many devices there are, 4 if not set
//	FSDP_DOUBLE_MEMORY    bytes of memory of each, 8 GiB if not set
//	FSDP_DOUBLE_FAIL      function:nth:code, …
//	FSDP_DOUBLE_DELAY_US  at most so long a random wait before everything a stream does
//	FSDP_DOUBLE_SEED      of these waits
//	FSDP_DOUBLE_VERBOSE   misuse is printed when it happens
//	FSDP_DOUBLE_CFLAGS    for the C compiler, at build time: -fsanitize=address
//	FSDP_DOUBLE_NCCL_…    of libnccl only: see nccl/library.c
//
// The package works on Linux with cgo, which needs a C compiler anyway.
package gpudouble
