//go:build ignore

// Modules and kernels. A module is PTX text, and the machine of ../ptx executes its kernels.
#define _GNU_SOURCE
#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ptx/ptx.h"
#include "cuda.h"

enum { MAX_GRID = 0x7fffffff, MAX_THREADS = 1024, SHARED = 48 << 10, REPORT = 512 };

struct module { struct ptx_module *code; };

// A reading is a text that was loaded, and stays: modules of it share the code. They would share variables,
// too: those that are visible are a module's own, and of others there are only constants.
struct reading {
  char *text;
  struct ptx_module *code;
  struct reading *next;
};
static struct reading *readings;

// shared is how much dynamic shared memory a block may have.
struct function { CUmodule module; struct ptx_kernel *kernel; unsigned shared; };

// A launch of the machine, of a kernel of a module. While it runs it pins the memory that it meets.
struct launch {
  struct ptx_launch machine;
  int device, count;
  uint64_t *pinned;
  char arguments[];
};

// checks are what the machine checks in launches from now on.
static _Atomic unsigned checks = PTX_RACES | PTX_UNSET;

unsigned double_ptx(unsigned now) { return atomic_exchange(&checks, now); }

// environment sets the checks of a process before it runs a line of a test.
__attribute__((constructor)) static void environment(void) {
  const char *said = getenv("FSDP_DOUBLE_PTX");
  if (said) checks = (unsigned)atoi(said);
}

// code returns the code of a text, or NULL with the reason in why.
static struct ptx_module *code(const char *text, char *why, size_t size) {
  for (struct reading *r = readings; r; r = r->next)
    if (!strcmp(r->text, text)) return r->code;
  struct ptx_module *code = ptx_load(text, why, size);
  if (code && !strstr(text, ".visible .global")) {
    struct reading *r = malloc(sizeof *r);
    *r = (struct reading){strdup(text), code, readings};
    readings = r;
  }
  return code;
}

// forget unloads what no reading has.
static void forget(struct ptx_module *code) {
  for (struct reading *r = readings; r; r = r->next)
    if (r->code == code) return;
  ptx_unload(code);
}

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
  if (strncmp(text, "//", 2) && strncmp(text, ".version", 8)) { // what is no PTX is taken for a binary
    if (log) snprintf(log, size, "error   : Binary format for key='0', ident='' is not recognized");
    return leave(INVALID_IMAGE);
  }
  char why[REPORT] = ".target sm_90a needs compute capability 9.0";
  int other = strstr(text, ".target sm_90a") && (attribute_of_devices(75) != 9 || attribute_of_devices(76) != 0);
  struct ptx_module *read = other ? NULL : code(text, why, sizeof why);
  if (!read) {
    if (log) snprintf(log, size, "ptxas fatal: %s", why);
    return leave(INVALID_PTX);
  }
  struct module *m = malloc(sizeof *m);
  m->code = read;
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
  forget(m->code);
  free(m);
  return leave(SUCCESS);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  struct context *context;
  CUresult result = enter_context("cuModuleGetFunction", &context);
  if (result) return result;
  struct module *m = object_get("cuModuleGetFunction", MODULE, module);
  if (!m) return leave(INVALID_HANDLE);
  struct ptx_kernel *kernel = ptx_find(m->code, name);
  if (!kernel) return leave(NOT_FOUND);
  struct function *f = malloc(sizeof *f);
  *f = (struct function){module, kernel, SHARED - ptx_shared(kernel)};
  *function = object_add(FUNCTION, f, NULL);
  return leave(SUCCESS);
}

// function_get returns the function that a handle names, of a module that is loaded.
static struct function *function_get(const char *name, CUfunction function) {
  struct function *f = object_get(name, FUNCTION, function);
  return f && object_get(name, MODULE, f->module) ? f : NULL;
}

enum { MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  struct context *context;
  CUresult result = enter_context("cuFuncSetAttribute", &context);
  if (result) return result;
  struct function *f = function_get("cuFuncSetAttribute", function);
  if (!f) return leave(INVALID_HANDLE);
  if (attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0) return leave(INVALID_VALUE);
  if ((unsigned)value + ptx_shared(f->kernel) > MOST_SHARED) return leave(INVALID_VALUE);
  f->shared = (unsigned)value;
  return leave(SUCCESS);
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
  struct context *context;
  CUresult result = enter_context("cuFuncGetParamInfo", &context);
  if (result) return result;
  struct function *f = function_get("cuFuncGetParamInfo", function);
  if (!f) return leave(INVALID_HANDLE);
  return leave(ptx_parameter(f->kernel, index, offset, size) ? SUCCESS : INVALID_VALUE);
}

// find tells the machine of a launch where memory is. It stays there until the launch has ended.
static char *find(void *of, uint64_t address, uint64_t *first, uint64_t *last) {
  struct launch *l = of;
  char *bytes = region_find(address, l->device, first, last);
  for (int i = 0; bytes && i < l->count; i++)
    if (l->pinned[i] == *first) return region_unpin(*first, ANY), bytes;
  if (!bytes) return NULL;
  l->pinned = realloc(l->pinned, (l->count + 1) * sizeof *l->pinned);
  l->pinned[l->count++] = *first;
  return bytes;
}

static CUresult run_launch(struct operation *o) {
  static const CUresult results[] = {
    [PTX_DONE] = SUCCESS, [PTX_ILLEGAL_ADDRESS] = ILLEGAL_ADDRESS, [PTX_MISALIGNED] = MISALIGNED_ADDRESS, [PTX_FAILED] = LAUNCH_FAILED,
  };
  struct launch *l = o->data;
  char why[REPORT];
  uint64_t executed;
  l->machine.checks = checks;
  int result = ptx_run(&l->machine, &(struct ptx_host){find, l}, why, sizeof why, &executed);
  if (result) double_misuse("%s", why);
  double_count("instructions", (long)executed);
  for (int i = 0; i < l->count; i++) region_unpin(l->pinned[i], ANY);
  free(l->pinned);
  free(l);
  return results[result];
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **arguments, void **extra) {
  struct context *context;
  CUresult result = enter_context("cuLaunchKernel", &context);
  if (result) return result;
  struct function *f = function_get("cuLaunchKernel", function);
  if (!f) return leave(INVALID_HANDLE);
  uint64_t grid = (uint64_t)gx * gy * gz, block = (uint64_t)bx * by * bz;
  if (extra || grid == 0 || gx > MAX_GRID || gy > 65535 || gz > 65535 || block == 0 || block > MAX_THREADS || bz > 64 || shared > f->shared)
    return leave(INVALID_VALUE);
  struct launch *l = calloc(1, sizeof *l + ptx_parameter_bytes(f->kernel));
  l->machine = (struct ptx_launch){
    .kernel = f->kernel, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared, .parameters = l->arguments,
  };
  l->device = context->device;
  size_t offset, size;
  for (size_t i = 0; ptx_parameter(f->kernel, i, &offset, &size); i++) memcpy(l->arguments + offset, arguments[i], size);
  result = stream_push("cuLaunchKernel", context, stream, (struct operation){.run = run_launch, .data = l});
  if (result) free(l);
  return leave(result);
}
