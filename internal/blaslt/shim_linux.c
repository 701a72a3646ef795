#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define FIELD(name, result, parameters) result(*name) parameters;
static struct {
  LT_FUNCTIONS(FIELD)
} lt;
static int (*set_current)(uintptr_t context);

// A library that has everything is never closed again.
int blaslt_open(const char *path, char *error, size_t size) {
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    snprintf(error, size, "%s", dlerror());
    return -1;
  }
#define FIND(name, result, parameters)                    \
  *(void **)&lt.name = dlsym(opened, #name);              \
  if (!lt.name) {                                         \
    snprintf(error, size, "it has no function %s", #name); \
    dlclose(opened);                                      \
    return -1;                                            \
  }
  LT_FUNCTIONS(FIND)
  return 0;
}

size_t blaslt_version(void) { return lt.cublasLtGetVersion(); }
const char *blaslt_text(int status) { return lt.cublasLtGetStatusString(status); }
void blaslt_driver(uintptr_t f) { set_current = (int (*)(uintptr_t))f; }

static const blaslt_result done = {NULL, LT_SUCCESS};

// TRY returns what a call does not succeed with.
#define TRY_AS(name, call)                                        \
  do {                                                            \
    int status = (call);                                          \
    if (status) return (blaslt_result){name, status};             \
  } while (0)
#define TRY(name, ...) TRY_AS(#name, lt.name(__VA_ARGS__))
#define IN(context) TRY_AS("cuCtxSetCurrent", set_current(context))

blaslt_result blaslt_create(uintptr_t context, uintptr_t *handle) {
  lt_handle h = NULL;
  IN(context);
  TRY(cublasLtCreate, &h);
  *handle = (uintptr_t)h;
  return done;
}

blaslt_result blaslt_destroy(uintptr_t context, uintptr_t handle) {
  IN(context);
  TRY(cublasLtDestroy, (lt_handle)handle);
  return done;
}

// A plan has everything that a run hands to cuBLASLt, which is column-major: it computes
// Dᵀ = op(B)ᵀ·op(A)ᵀ, so that its a is the product's B and the other way round.
struct blaslt_plan {
  uintptr_t context;
  lt_handle handle;
  lt_desc desc;
  lt_layout a, b, d;
  lt_preference preference;
  int wide, extra; // scalars are doubles; the attribute of the epilogue's address, or 0
  lt_found found;
};

// make_layout makes the layout of a row-major matrix.
static blaslt_result make_layout(lt_layout *l, int type, uint64_t rows, uint64_t cols, int64_t ld, int batch, int64_t stride) {
  TRY(cublasLtMatrixLayoutCreate, l, type, cols, rows, ld);
  if (batch == 1) return done;
  TRY(cublasLtMatrixLayoutSetAttribute, *l, LT_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
  TRY(cublasLtMatrixLayoutSetAttribute, *l, LT_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
  return done;
}

static blaslt_result make_desc(lt_desc *d, const blaslt_product *x) {
  int transa = x->trans_b ? LT_OP_T : LT_OP_N, transb = x->trans_a ? LT_OP_T : LT_OP_N;
  TRY(cublasLtMatmulDescCreate, d, x->compute, x->scale);
  TRY(cublasLtMatmulDescSetAttribute, *d, LT_DESC_TRANSA, &transa, sizeof transa);
  TRY(cublasLtMatmulDescSetAttribute, *d, LT_DESC_TRANSB, &transb, sizeof transb);
  TRY(cublasLtMatmulDescSetAttribute, *d, LT_DESC_EPILOGUE, &x->epilogue, sizeof x->epilogue);
  if (x->epilogue == LT_EPILOGUE_DGELU) TRY(cublasLtMatmulDescSetAttribute, *d, LT_DESC_AUX_LD, &x->ldd, sizeof x->ldd);
  int32_t multiprocessors = x->multiprocessors;
  if (multiprocessors) TRY(cublasLtMatmulDescSetAttribute, *d, LT_DESC_SM_COUNT_TARGET, &multiprocessors, sizeof multiprocessors);
  return done;
}

// make_preference asks for algorithms that add parts of a sum in the type of the computation, and
// not in a narrower one of the result.
static blaslt_result make_preference(lt_preference *p, const blaslt_product *x) {
  uint32_t mask = LT_REDUCTION_COMPUTE_TYPE;
  TRY(cublasLtMatmulPreferenceCreate, p);
  TRY(cublasLtMatmulPreferenceSetAttribute, *p, LT_PREF_MAX_WORKSPACE_BYTES, &x->workspace, sizeof x->workspace);
  TRY(cublasLtMatmulPreferenceSetAttribute, *p, LT_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
  for (int i = 0; i < 4; i++)
    TRY(cublasLtMatmulPreferenceSetAttribute, *p, LT_PREF_MIN_ALIGNMENT_A_BYTES + i, &x->align, sizeof x->align);
  return done;
}

static blaslt_result set_extra(const blaslt_plan *p, uint64_t address) {
  TRY(cublasLtMatmulDescSetAttribute, p->desc, p->extra, &address, sizeof address);
  return done;
}

#define AND(call)                      \
  do {                                 \
    blaslt_result result = (call);     \
    if (result.status) return result;  \
  } while (0)

// find_algorithm takes the first of the found algorithms that can be run.
static blaslt_result find_algorithm(blaslt_plan *p, uint64_t workspace) {
  enum { ENOUGH = 8 };
  lt_found found[ENOUGH];
  int n = 0, i = 0;
  if (p->extra) AND(set_extra(p, 256)); // only the alignment of this address matters
  TRY(cublasLtMatmulAlgoGetHeuristic, p->handle, p->desc, p->a, p->b, p->d, p->d, p->preference, ENOUGH, found, &n);
  while (i < n && (found[i].state != LT_SUCCESS || found[i].workspace > workspace)) i++;
  TRY_AS("cublasLtMatmulAlgoGetHeuristic", i < n ? LT_SUCCESS : LT_NOT_SUPPORTED);
  p->found = found[i];
  return done;
}

blaslt_result blaslt_plan_make(uintptr_t context, uintptr_t handle, const blaslt_product *x, blaslt_plan **plan) {
  blaslt_plan *p = calloc(1, sizeof *p);
  if (!p) abort();
  *plan = p;
  p->context = context;
  p->handle = (lt_handle)handle;
  p->wide = x->scale == LT_R_64F;
  if (x->epilogue != LT_EPILOGUE_DEFAULT) p->extra = x->epilogue == LT_EPILOGUE_DGELU ? LT_DESC_AUX_POINTER : LT_DESC_BIAS_POINTER;
  IN(context);
  AND(make_desc(&p->desc, x));
  uint64_t a[] = {x->rows, x->depth}, b[] = {x->depth, x->cols};
  AND(make_layout(&p->a, x->in, b[x->trans_b], b[!x->trans_b], x->ldb, x->batch, x->stride_b));
  AND(make_layout(&p->b, x->in, a[x->trans_a], a[!x->trans_a], x->lda, x->batch, x->stride_a));
  AND(make_layout(&p->d, x->out, x->rows, x->cols, x->ldd, x->batch, x->stride_d));
  AND(make_preference(&p->preference, x));
  return find_algorithm(p, x->workspace);
}

size_t blaslt_plan_workspace(const blaslt_plan *p) { return p->found.workspace; }

blaslt_result blaslt_plan_run(const blaslt_plan *p, const blaslt_operands *at, uintptr_t stream) {
  static const float narrow[] = {0, 1};
  static const double wide[] = {0, 1};
  const void *one = p->wide ? (const void *)&wide[1] : &narrow[1];
  const void *beta = p->wide ? (const void *)&wide[at->c != 0] : &narrow[at->c != 0];
  IN(p->context);
  if (p->extra) AND(set_extra(p, at->extra));
  void *d = (void *)at->d, *c = at->c ? (void *)at->c : d; // C has the layout of D
  TRY(cublasLtMatmul, p->handle, p->desc, one, (void *)at->b, p->a, (void *)at->a, p->b, beta, c, p->d, d, p->d, &p->found.algo,
      (void *)at->workspace, p->found.workspace, (lt_stream)stream);
  return done;
}

// END destroys what is there, and keeps what it cannot destroy.
#define END(destroy, what)                                               \
  do {                                                                   \
    int status = what ? lt.destroy(what) : 0;                            \
    if (!status) what = NULL;                                            \
    else if (!failed.status) failed = (blaslt_result){#destroy, status}; \
  } while (0)

blaslt_result blaslt_plan_end(blaslt_plan *p) {
  blaslt_result failed = done;
  END(cublasLtMatmulPreferenceDestroy, p->preference);
  END(cublasLtMatrixLayoutDestroy, p->d);
  END(cublasLtMatrixLayoutDestroy, p->b);
  END(cublasLtMatrixLayoutDestroy, p->a);
  END(cublasLtMatmulDescDestroy, p->desc);
  if (!failed.status) free(p);
  return failed;
}
