// Package gpudouble builds stand-ins for libcuda (folder cuda), libnccl (nccl) and libcublasLt
// (cublaslt), in C, so that GPU code is tested on machines without a GPU. They are loaded in the
// same way as the real libraries:
//
//	libs := gpudouble.Build(t)
//	require.NoError(t, device.Load(libs.CUDA))
//	cuda := gpudouble.Open(t, libs.CUDA)  // controls the loaded library
//	cuda.Clean(t)                         // at the end of the test nothing lives or was misused
//	cuda.Fail("cuMemAlloc", 2, 2)         // the second allocation from now on: out of memory
//
// Kernels are PTX text, the same text that a GPU gets. A machine executes it (folder ptx). It
// supports the PTX that compilers generate from CUDA C++ for compute capability 8.0, and wgmma of
// 9.0a. It refuses other text when it is loaded. It checks addresses, alignment, barriers, the use
// of wgmma, and by default races of warps in shared memory and reads of unwritten memory. An error
// of a kernel is reported as a misuse, with the kernel, block, thread and statement, and is a fault
// of the context:
//
//	cuda.Reversed(t, run)                 // blocks and warps in the other order: the same bits?
//	cuda.Checks(t, 0)                     // without checks, for speed
//	cuda.Scheduled(t, s, run)             // some streams as late as events allow
//	cuda.Omit(0, 2, 3)                    // and without the third wait for an event
//	cuda.Live("instructions")             // how many ran, counted for each lane
//
// cuda/cuda.c, ptx/ptx.h, nccl/library.c and cublaslt/library.c list the strict checks of the
// doubles. In a child process, which starts before a test can open the Control, variables do the
// same:
//
//	FSDP_DOUBLE_DEVICES   how many devices there are, 4 if not set
//	FSDP_DOUBLE_MEMORY    bytes of memory of each, 8 GiB if not set
//	FSDP_DOUBLE_FAIL      function:nth:code, …
//	FSDP_DOUBLE_DELAY_US  longest random wait before each operation of a stream
//	FSDP_DOUBLE_SEED      of these waits
//	FSDP_DOUBLE_PTX       the sum of the Checks of kernels, 3 if not set
//	FSDP_DOUBLE_VERBOSE   misuse is printed when it happens
//	FSDP_DOUBLE_CFLAGS    for the C compiler, at build time: -fsanitize=address
//	FSDP_DOUBLE_NCCL_…    of libnccl only: see nccl/library.c
//
// The package works on Linux with cgo, which needs a C compiler anyway.
package gpudouble
