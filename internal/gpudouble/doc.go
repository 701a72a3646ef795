// Package gpudouble builds stand-ins for libcuda (folder cuda), libnccl (nccl) and libcublasLt
// (cublaslt), in C, so that what uses a GPU is tested on machines without one. They are loaded by
// the very path that production takes:
//
//	libs := gpudouble.Build(t)
//	require.NoError(t, device.Load(libs.CUDA))
//	cuda := gpudouble.Open(t, libs.CUDA)  // the side door of the loaded library
//	cuda.Clean(t)                         // at the end of the test nothing lives or was misused
//	cuda.Fail("cuMemAlloc", 2, 2)         // the second allocation from now on: out of memory
//
// Kernels are PTX text, which a machine executes (folder ptx): the text that a GPU would be given.
// It knows what compilers make of CUDA C++ for compute capability 8.0, and refuses what it does not
// know when the text is loaded. It checks addresses, alignment, barriers, and by default races of
// warps in shared memory and reads of what was never written. What a kernel does wrong is a misuse
// that names it, the block, the thread and the statement, and a fault of the context:
//
//	cuda.Reversed(t, run)                 // blocks and warps in the other order: the same bits?
//	cuda.Checks(t, 0)                     // without checks, for speed
//	cuda.Scheduled(t, s, run)             // some streams as late as events allow
//	cuda.Omit(0, true, 3)                 // and without the third wait for an event
//	cuda.Live("instructions")             // how many ran, counted for each lane
//
// cuda/cuda.c, ptx/ptx.h, nccl/library.c and cublaslt/library.c say what the doubles are strict
// about. In a child process, which runs before any test can open the side door, variables do the
// same:
//
//	FSDP_DOUBLE_DEVICES   how many devices there are, 4 if not set
//	FSDP_DOUBLE_MEMORY    bytes of memory of each, 8 GiB if not set
//	FSDP_DOUBLE_FAIL      function:nth:code, …
//	FSDP_DOUBLE_DELAY_US  at most so long a random wait before everything a stream does
//	FSDP_DOUBLE_SEED      of these waits
//	FSDP_DOUBLE_PTX       the sum of the Checks of kernels, 3 if not set
//	FSDP_DOUBLE_VERBOSE   misuse is printed when it happens
//	FSDP_DOUBLE_CFLAGS    for the C compiler, at build time: -fsanitize=address
//	FSDP_DOUBLE_NCCL_…    of libnccl only: see nccl/library.c
//
// The package works on Linux with cgo, which needs a C compiler anyway.
package gpudouble
