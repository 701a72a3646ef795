// cuBLASLt as Go calls it. Whatever needs a context makes it current on the calling thread first.
#ifndef FSDP_BLASLT_SHIM_H
#define FSDP_BLASLT_SHIM_H

#include "abi.h"

// A result is a status and the function that it is of. That of cuCtxSetCurrent is a CUresult.
typedef struct {
  const char *function;
  int status;
} blaslt_result;

// blaslt_product is what Product says, in the terms of cuBLASLt but row-major.
typedef struct {
  int in, out, scale, compute, epilogue, trans_a, trans_b, batch, multiprocessors;
  uint64_t rows, cols, depth, workspace;
  int64_t lda, ldb, ldd, stride_a, stride_b, stride_d;
  uint32_t align;
} blaslt_product;

typedef struct {
  uint64_t a, b, c, d, extra, workspace; // c is 0 if nothing is added; extra: a bias, sums or aux
} blaslt_operands;

typedef struct blaslt_plan blaslt_plan;

// blaslt_open loads a library and finds its functions. It returns 0, or -1 with the reason in error.
int blaslt_open(const char *path, char *error, size_t size);
size_t blaslt_version(void);
const char *blaslt_text(int status);
// blaslt_driver tells where cuCtxSetCurrent is.
void blaslt_driver(uintptr_t set_current);

blaslt_result blaslt_create(uintptr_t context, uintptr_t *handle);
blaslt_result blaslt_destroy(uintptr_t context, uintptr_t handle);
// blaslt_plan_make finds an algorithm for a product. *plan is to be ended also after an error, unless
// it is NULL.
blaslt_result blaslt_plan_make(uintptr_t context, uintptr_t handle, const blaslt_product *product, blaslt_plan **plan);
// blaslt_plan_workspace returns the bytes that it needs.
size_t blaslt_plan_workspace(const blaslt_plan *plan);
blaslt_result blaslt_plan_run(const blaslt_plan *plan, const blaslt_operands *at, uintptr_t stream);
// blaslt_plan_end frees a plan. After an error the rest of it is still there, to be ended again.
blaslt_result blaslt_plan_end(blaslt_plan *plan);

#endif
