//go:build ignore

// Modules and kernels. A module is PTX text. A kernel runs if the text has an entry of its name
// and the double has a function of the host for it, below.
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { MAX_PARAMETERS = 8, MAX_THREADS = 1024, MAX_SHARED = 48 << 10 };

// A launch is a kernel with its arguments, and how many threads it has along x, the only index
// that these kernels use.
struct launch {
  const struct kernel *kernel;
  uint64_t threads;
  uint64_t arguments[MAX_PARAMETERS];
};

// A kernel has parameters of these sizes, and runs for all threads at once.
struct kernel {
  const char *name;
  CUresult (*run)(struct launch *);
  int count;
  size_t sizes[MAX_PARAMETERS];
};

static float float_of(uint64_t argument) {
  float f;
  memcpy(&f, &argument, sizeof f);
  return f;
}

// elements returns how many of n elements a launch reaches, with a thread for each.
static size_t elements(struct launch *l, uint64_t n) {
  int count = (int)(uint32_t)n;
  return count < 0 ? 0 : (uint64_t)count < l->threads ? (size_t)count : l->threads;
}

// scale_f32(float *x, float factor, int n): x *= factor
static CUresult scale_f32(struct launch *l) {
  size_t n = elements(l, l->arguments[2]);
  float *x = (float *)region_pin("scale_f32", l->arguments[0], n * sizeof *x, 0, NULL);
  if (!x) return ILLEGAL_ADDRESS;
  for (size_t i = 0; i < n; i++) x[i] *= float_of(l->arguments[1]);
  region_unpin(l->arguments[0], 0);
  return SUCCESS;
}

// add_f32(float *to, const float *a, const float *b, int n): to = a + b
static CUresult add_f32(struct launch *l) {
  size_t n = elements(l, l->arguments[3]);
  float *x[3];
  for (int i = 0; i < 3; i++) x[i] = (float *)region_pin("add_f32", l->arguments[i], n * sizeof **x, 0, NULL);
  int found = x[0] && x[1] && x[2];
  for (size_t i = 0; found && i < n; i++) x[0][i] = x[1][i] + x[2][i];
  for (int i = 0; i < 3; i++)
    if (x[i]) region_unpin(l->arguments[i], 0);
  return found ? SUCCESS : ILLEGAL_ADDRESS;
}

static const struct kernel kernels[] = {
    {"scale_f32", scale_f32, 3, {8, 4, 4}},
    {"add_f32", add_f32, 4, {8, 8, 8, 4}},
};

struct module { char *text; };

struct function { CUmodule module; const struct kernel *kernel; };

enum { ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES = 6 };

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
  struct context *context;
  CUresult result = enter_context("cuModuleLoadDataEx", &context);
  if (result) return result;
  char *log = NULL;
  size_t size = 0;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == ERROR_LOG_BUFFER) log = values[i];
    if (options[i] == ERROR_LOG_BUFFER_SIZE_BYTES) size = (size_t)values[i];
  }
  const char *text = image;
  while (isspace((unsigned char)*text)) text++;
  if (strncmp(text, "//", 2) && *text != '.') return leave(INVALID_IMAGE);
  if (!strstr(text, ".version")) {
    if (log) snprintf(log, size, "ptxas fatal: Missing .version directive at start of file");
    return leave(INVALID_PTX);
  }
  struct module *m = malloc(sizeof *m);
  m->text = strdup(text);
  *module = object_add(MODULE, m, context);
  return leave(SUCCESS);
}

EXPORT CUresult cuModuleUnload(CUmodule module) {
  struct context *context;
  CUresult result = enter_freeing("cuModuleUnload", &context);
  if (result) return result;
  struct module *m = object_get("cuModuleUnload", MODULE, module);
  if (!m) return leave(INVALID_HANDLE);
  object_remove(module, context);
  free(m->text);
  free(m);
  return leave(SUCCESS);
}

// has_entry tells whether PTX text has a kernel of a name.
static int has_entry(const char *text, const char *name) {
  static const char entry[] = ".entry";
  for (const char *at = text; (at = strstr(at, entry));) {
    at += strlen(entry);
    while (isspace((unsigned char)*at)) at++;
    size_t n = strlen(name);
    if (!strncmp(at, name, n) && !isalnum((unsigned char)at[n]) && at[n] != '_') return 1;
  }
  return 0;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  struct context *context;
  CUresult result = enter_context("cuModuleGetFunction", &context);
  if (result) return result;
  struct module *m = object_get("cuModuleGetFunction", MODULE, module);
  if (!m) return leave(INVALID_HANDLE);
  if (!has_entry(m->text, name)) return leave(NOT_FOUND);
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
    if (strcmp(kernels[i].name, name)) continue;
    struct function *f = malloc(sizeof *f);
    *f = (struct function){module, &kernels[i]};
    *function = object_add(FUNCTION, f, NULL);
    return leave(SUCCESS);
  }
  double_misuse("cuModuleGetFunction: the double has no kernel %s", name);
  return leave(NOT_FOUND);
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
  struct context *context;
  CUresult result = enter_context("cuFuncGetParamInfo", &context);
  if (result) return result;
  struct function *f = object_get("cuFuncGetParamInfo", FUNCTION, function);
  if (!f || !object_get("cuFuncGetParamInfo", MODULE, f->module)) return leave(INVALID_HANDLE);
  if (index >= (size_t)f->kernel->count) return leave(INVALID_VALUE);
  *offset = 0;
  for (size_t i = 0; i <= index; i++) { // every parameter is aligned to its own size
    *size = f->kernel->sizes[i];
    *offset = (*offset + *size - 1) / *size * *size + (i < index ? *size : 0);
  }
  return leave(SUCCESS);
}

static CUresult run_launch(struct operation *o) {
  struct launch *l = o->data;
  CUresult result = l->kernel->run(l);
  free(l);
  return result;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **arguments, void **extra) {
  struct context *context;
  CUresult result = enter_context("cuLaunchKernel", &context);
  if (result) return result;
  struct function *f = object_get("cuLaunchKernel", FUNCTION, function);
  if (!f || !object_get("cuLaunchKernel", MODULE, f->module)) return leave(INVALID_HANDLE);
  uint64_t grid = (uint64_t)gx * gy * gz, block = (uint64_t)bx * by * bz;
  if (extra || grid == 0 || gy > 65535 || gz > 65535 || block == 0 || block > MAX_THREADS || bz > 64 || shared > MAX_SHARED)
    return leave(INVALID_VALUE);
  struct launch *l = malloc(sizeof *l);
  *l = (struct launch){.kernel = f->kernel, .threads = (uint64_t)gx * bx};
  for (int i = 0; i < f->kernel->count; i++) memcpy(&l->arguments[i], arguments[i], f->kernel->sizes[i]);
  result = stream_push("cuLaunchKernel", context, stream, (struct operation){.run = run_launch, .data = l});
  if (result) free(l);
  return leave(result);
}
