//go:build ignore

// A double of libcublasLt.so.13 that computes on the host, in the order of the streams of the double
// of libcuda. It is stricter than the library: matrices, layouts and algorithms that do not belong
// together, addresses that are not aligned as was said, memory that is too short, freed or overlaps,
// and calls without the right current context are refused and reported, where cuBLASLt would read
// past the end or compute something else. It counts what lives as "cublasLt", and adds up the
// multiprocessors that products are for as "multiprocessors".
#define _GNU_SOURCE
#include "cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct driver driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// Handles: a mark that makes them no address, and a serial number, from 1, that indexes objects.
static const handle mark = (handle)0xB1A << 52;
static struct object *objects;
static uint64_t serial;

static const char *const kinds[] = {"nothing", "handle", "description", "layout", "preference"};

static status object_add(handle *out, struct object o) {
  pthread_mutex_lock(&lock);
  if (++serial % 1024 == 1) objects = realloc(objects, (serial + 1024) * sizeof *objects);
  objects[serial] = o;
  *out = mark | serial;
  pthread_mutex_unlock(&lock);
  double_count("cublasLt", 1);
  return SUCCESS;
}

// object_at returns the object that a handle names, with the lock held.
static struct object *object_at(const char *function, enum kind kind, handle h) {
  uint64_t i = h ^ mark;
  if (i == 0 || i > serial || objects[i].kind != kind) {
    int gone = i > 0 && i <= serial && !objects[i].kind;
    double_misuse("%s: %#lx is no %s%s", function, (unsigned long)h, kinds[kind], gone ? ", it is destroyed" : "");
    return NULL;
  }
  return &objects[i];
}

int object_get(const char *function, enum kind kind, handle h, struct object *to) {
  pthread_mutex_lock(&lock);
  struct object *o = object_at(function, kind, h);
  if (o) *to = *o;
  pthread_mutex_unlock(&lock);
  return o != NULL;
}

static status object_end(const char *function, enum kind kind, handle h) {
  status s = double_enter(function);
  if (s) return s;
  pthread_mutex_lock(&lock);
  struct object *o = object_at(function, kind, h);
  if (o) o->kind = 0;
  pthread_mutex_unlock(&lock);
  if (!o) return INVALID_VALUE;
  double_count("cublasLt", -1);
  return SUCCESS;
}

static int find_driver(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!cuda) return 0;
#define FIND(field, name) *(void **)&driver.field = dlsym(cuda, name)
  FIND(current, "cuCtxGetCurrent");
  FIND(of_stream, "cuStreamGetCtx");
  FIND(host, "cuLaunchHostFunc");
  FIND(pin, "double_pin");
  FIND(unpin, "double_unpin");
  return driver.pin != NULL;
}

EXPORT size_t cublasLtGetVersion(void) { return 130400; }

EXPORT const char *cublasLtGetStatusString(status s) {
  switch (s) {
  case NOT_INITIALIZED: return "not initialized";
  case INVALID_VALUE: return "an unsupported value or parameter";
  case EXECUTION_FAILED: return "the GPU program failed to execute";
  case NOT_SUPPORTED: return "the requested functionality is not supported";
  }
  return "unknown";
}

EXPORT status cublasLtCreate(handle *out) {
  status s = double_enter("cublasLtCreate");
  struct object o = {.kind = HANDLE};
  if (s) return s;
  if (!find_driver() || driver.current(&o.context) || !o.context) {
    double_misuse("cublasLtCreate: no current context");
    return NOT_INITIALIZED;
  }
  return object_add(out, o);
}

EXPORT status cublasLtDestroy(handle h) { return object_end("cublasLtDestroy", HANDLE, h); }

EXPORT status cublasLtMatmulDescCreate(handle *out, int compute, int scale) {
  status s = double_enter("cublasLtMatmulDescCreate");
  if (s) return s;
  int fits = compute == COMPUTE_64F ? scale == R_64F : scale == R_32F && (compute == COMPUTE_32F || compute == COMPUTE_32F_FAST_TF32);
  if (!fits) return INVALID_VALUE;
  return object_add(out, (struct object){.kind = DESC, .compute = compute, .scale = scale, .epilogue = EPILOGUE_DEFAULT});
}

EXPORT status cublasLtMatmulDescDestroy(handle h) { return object_end("cublasLtMatmulDescDestroy", DESC, h); }

EXPORT status cublasLtMatrixLayoutCreate(handle *out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  status s = double_enter("cublasLtMatrixLayoutCreate");
  if (s) return s;
  if (!rows || !cols || ld < (int64_t)rows || (type != R_32F && type != R_64F && type != R_16F && type != R_16BF)) {
    double_misuse("cublasLtMatrixLayoutCreate: %lu × %lu of type %d, %ld apart", (unsigned long)rows, (unsigned long)cols, type, (long)ld);
    return INVALID_VALUE;
  }
  return object_add(out, (struct object){.kind = LAYOUT, .type = type, .rows = rows, .cols = cols, .ld = ld, .batch = 1});
}

EXPORT status cublasLtMatrixLayoutDestroy(handle h) { return object_end("cublasLtMatrixLayoutDestroy", LAYOUT, h); }

EXPORT status cublasLtMatmulPreferenceCreate(handle *out) {
  status s = double_enter("cublasLtMatmulPreferenceCreate");
  return s ? s : object_add(out, (struct object){.kind = PREFERENCE, .align = {256, 256, 256, 256}, .reductions = ~0u});
}

EXPORT status cublasLtMatmulPreferenceDestroy(handle h) { return object_end("cublasLtMatmulPreferenceDestroy", PREFERENCE, h); }

// A field is where an object keeps an attribute.
struct field { void *at; size_t size; };
#define FIELD(x) (struct field){&(x), sizeof(x)}

static struct field field(struct object *o, int attribute) {
  switch ((int)o->kind << 8 | attribute) {
  case DESC << 8 | 3: return FIELD(o->transa);
  case DESC << 8 | 4: return FIELD(o->transb);
  case DESC << 8 | 7: return FIELD(o->epilogue);
  case DESC << 8 | 8: return FIELD(o->vector);
  case DESC << 8 | 11: return FIELD(o->aux);
  case DESC << 8 | 12: return FIELD(o->aux_ld);
  case DESC << 8 | 15: return FIELD(o->multiprocessors);
  case LAYOUT << 8 | 5: return FIELD(o->batch);
  case LAYOUT << 8 | 6: return FIELD(o->stride);
  case PREFERENCE << 8 | 1: return FIELD(o->workspace);
  case PREFERENCE << 8 | 3: return FIELD(o->reductions);
  }
  if (o->kind == PREFERENCE && attribute >= 5 && attribute < 9) return FIELD(o->align[attribute - 5]);
  return (struct field){NULL, 0};
}

static status set(const char *function, enum kind kind, handle h, int attribute, const void *value, size_t size) {
  status s = double_enter(function);
  if (s) return s;
  pthread_mutex_lock(&lock);
  struct object *o = object_at(function, kind, h);
  struct field f = o ? field(o, attribute) : (struct field){NULL, 0};
  if (f.at && f.size == size) memcpy(f.at, value, size);
  pthread_mutex_unlock(&lock);
  if (f.at && f.size == size) return SUCCESS;
  if (o) double_misuse("%s: %zu bytes for attribute %d", function, size, attribute);
  return INVALID_VALUE;
}

EXPORT status cublasLtMatmulDescSetAttribute(handle h, int attribute, const void *value, size_t size) {
  return set("cublasLtMatmulDescSetAttribute", DESC, h, attribute, value, size);
}
EXPORT status cublasLtMatrixLayoutSetAttribute(handle h, int attribute, const void *value, size_t size) {
  return set("cublasLtMatrixLayoutSetAttribute", LAYOUT, h, attribute, value, size);
}
EXPORT status cublasLtMatmulPreferenceSetAttribute(handle h, int attribute, const void *value, size_t size) {
  return set("cublasLtMatmulPreferenceSetAttribute", PREFERENCE, h, attribute, value, size);
}

// supported tells what the library answers to a product whose shapes agree.
static status supported(const struct problem *p) {
  int in = p->a.type, out = p->d.type, wide = p->desc.compute == COMPUTE_64F;
  if (in != p->b.type || (in == R_64F) != wide || (out != in && !((in == R_16BF || in == R_16F) && out == R_32F))) return NOT_SUPPORTED;
  if (p->desc.compute == COMPUTE_32F_FAST_TF32 && in != R_32F) return NOT_SUPPORTED;
  if (p->desc.epilogue == EPILOGUE_DEFAULT) return SUCCESS;
  if (p->desc.epilogue == EPILOGUE_DGELU) {
    int fits = !wide && p->d.batch == 1 && p->desc.aux && p->desc.aux % 16 == 0 && p->desc.aux_ld % 8 == 0;
    return fits && p->desc.aux_ld >= (int64_t)p->d.rows ? SUCCESS : NOT_SUPPORTED;
  }
  if (p->desc.epilogue != EPILOGUE_BIAS && p->desc.epilogue != EPILOGUE_BGRADB) return NOT_SUPPORTED;
  return wide || p->d.batch > 1 || p->desc.vector == 0 || p->desc.vector % 16 ? NOT_SUPPORTED : SUCCESS;
}

status problem_get(const char *function, handle h, handle desc, handle a, handle b, handle c, handle d, struct problem *p, uintptr_t *context) {
  struct object owner, added;
  if (!object_get(function, HANDLE, h, &owner) || !object_get(function, DESC, desc, &p->desc) ||
      !object_get(function, LAYOUT, a, &p->a) || !object_get(function, LAYOUT, b, &p->b) ||
      !object_get(function, LAYOUT, c, &added) || !object_get(function, LAYOUT, d, &p->d))
    return INVALID_VALUE;
  uintptr_t current = 0;
  if (driver.current(&current) || current != owner.context) {
    double_misuse("%s: the current context is not that of the handle", function);
    return NOT_INITIALIZED;
  }
  *context = current;
  uint64_t m = p->desc.transa ? p->a.cols : p->a.rows;
  uint64_t n = p->desc.transb ? p->b.rows : p->b.cols, k = p->desc.transb ? p->b.cols : p->b.rows;
  if (c != d || p->d.rows != m || p->d.cols != n || k != depth(p) || p->a.batch != p->d.batch || p->b.batch != p->d.batch) {
    double_misuse("%s: %lu × %lu and %lu × %lu for %lu × %lu", function, m, depth(p), k, n, p->d.rows, p->d.cols);
    return INVALID_VALUE;
  }
  return supported(p);
}

uint64_t problem_hash(const struct problem *p) {
  uint64_t h = 14695981039346656037u;
  for (const struct object *o = &p->desc; o <= &p->d; o++)
    for (size_t i = 0; i < offsetof(struct object, kind); i++) h = (h ^ ((const unsigned char *)o)[i]) * 1099511628211u;
  return h;
}

// The heuristic knows three algorithms, whose workspaces are smaller and smaller, and puts one first
// that it does not support.
EXPORT status cublasLtMatmulAlgoGetHeuristic(handle h, handle desc, handle a, handle b, handle c, handle d, handle preference, int wanted,
                                             found *list, int *count) {
  static const char *const function = "cublasLtMatmulAlgoGetHeuristic";
  static const size_t workspaces[] = {1 << 16, 4096, 0};
  status s = double_enter(function);
  if (s) return s;
  struct problem p;
  struct object asked;
  uintptr_t context;
  *count = 0;
  if ((s = problem_get(function, h, desc, a, b, c, d, &p, &context))) return s;
  if (!object_get(function, PREFERENCE, preference, &asked) || wanted < 1) return INVALID_VALUE;
  if (asked.reductions != 2) double_misuse("%s: parts of sums may be rounded", function);
  list[(*count)++] = (found){.state = NOT_SUPPORTED};
  for (int i = 0; i < 3 && *count < wanted; i++) {
    if (workspaces[i] > asked.workspace) continue;
    algorithm x = {MARK, problem_hash(&p), 0, workspaces[i]};
    for (int j = 0; j < 4; j++) x.align |= (uint64_t)asked.align[j] << 16 * j;
    list[(*count)++] = (found){.algorithm = x, .workspace = workspaces[i], .waves = 1};
  }
  return SUCCESS;
}
