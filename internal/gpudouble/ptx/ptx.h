//go:build ignore

// A machine that executes PTX on the CPU: tests run the kernels that production loads, in the text
// that production loads. What it does not know is an error of ptx_load that names the instruction.
//
// Addresses and alignment are always checked, and so are barriers: lanes that wait for others which
// do not come are an error. Blocks run one after the other, and of a block the warps in turns, each
// up to the next barrier. Copies of cp.async happen as late as they may, and what they write is NaN
// until then.
//
// Products of wgmma happen as late as they may, too. Errors are: registers written since the last
// wgmma.fence, operands or accumulators that change before the wait, shared memory without a
// fence.proxy.async since it was written (with PTX_RACES or PTX_UNSET), descriptors without a
// swizzle of 128 bytes, and warps of a warpgroup that execute different products.
//
// It does not see races in global memory, nor between lanes of one warp. Approximate instructions
// are as exact as the C library, and mma sums in float64: results are near those of a GPU, not
// equal.
#ifndef PTX_H
#define PTX_H

#include <stddef.h>
#include <stdint.h>

struct ptx_module;
struct ptx_kernel;

// What else a launch checks, and how it runs.
enum {
  PTX_RACES = 1,   // two warps touch the same shared memory, one writing, without a barrier between
  PTX_UNSET = 2,   // shared memory is read before it is written
  PTX_REVERSE = 4, // blocks, the warps of each and the lanes of a store run in the opposite order
};

// A ptx_host tells where memory is.
struct ptx_host {
  // bytes returns where the byte at a device address is, and the range [*first, *last) of addresses
  // that lie there in one piece, or NULL.
  char *(*bytes)(void *context, uint64_t address, uint64_t *first, uint64_t *last);
  void *context;
};

// A ptx_launch is a kernel with all that it needs. Parameters are in memory as ptx_parameter says.
struct ptx_launch {
  struct ptx_kernel *kernel;
  unsigned grid[3], block[3];
  unsigned shared; // bytes of dynamic shared memory
  const char *parameters;
  unsigned checks;
};

enum { PTX_DONE, PTX_ILLEGAL_ADDRESS, PTX_MISALIGNED, PTX_FAILED };

// ptx_load returns the module of a text, or NULL with the reason in error.
struct ptx_module *ptx_load(const char *text, char *error, size_t size);
void ptx_unload(struct ptx_module *);
struct ptx_kernel *ptx_find(struct ptx_module *, const char *name);

// ptx_parameter returns whether a kernel has a parameter of an index.
int ptx_parameter(struct ptx_kernel *, size_t index, size_t *offset, size_t *size);
size_t ptx_parameter_bytes(struct ptx_kernel *);
// ptx_shared returns how many bytes of shared memory a kernel declares.
unsigned ptx_shared(struct ptx_kernel *);

// ptx_run executes a launch. It returns one of the results above, with the reason in error: kernel,
// block, thread and statement. executed is how many instructions ran, counted for each lane.
int ptx_run(const struct ptx_launch *, const struct ptx_host *, char *error, size_t size, uint64_t *executed);

#endif
