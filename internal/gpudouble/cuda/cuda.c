//go:build ignore

// A double of libcuda.so.1 for machines without a GPU. It is stricter than the driver:
//
//   - device memory cannot be reached by the host: its addresses are mapped without any access, the
//     bytes are elsewhere (memory.c), and no address is ever used again;
//   - handles are numbers that are never used again either, so that a wrong one is always found;
//   - a stream is a thread, its operations happen when they run and not when they are given, and
//     the host memory of a copy has to be pinned (stream.c);
//   - modules are PTX text, whose kernels a machine executes that checks what they do (module.c,
//     ../ptx).
//
// Mistakes are reported, besides the error that the driver would answer. Where the driver has a
// version of a function the double has that only.
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
_Thread_local int running;

static int devices; // none before cuInit
static struct context contexts[MAX_DEVICES];
static _Thread_local CUcontext current;

// Handles: a mark that makes them no address, the kind, and a serial number that indexes objects.
static const uintptr_t mark = (uintptr_t)0xF5D << 52;
static void **objects;
static uintptr_t serial;

static const char *const kinds[] = {"", "context", "stream", "event", "module", "function"};

uintptr_t object_add(enum kind kind, void *body, struct context *owner) {
  if (serial % 1024 == 0) objects = realloc(objects, (serial + 1024) * sizeof *objects);
  objects[serial] = body;
  double_count(kinds[kind], 1);
  if (owner) owner->owned++;
  return mark | (uintptr_t)kind << 48 | serial++;
}

// index_of returns the index of the object that a handle may name.
static uintptr_t index_of(uintptr_t handle) { return handle & (((uintptr_t)1 << 48) - 1); }

void *object_get(const char *function, enum kind kind, uintptr_t handle) {
  uintptr_t i = index_of(handle);
  if ((handle ^ i) != (mark | (uintptr_t)kind << 48) || i >= serial) {
    double_misuse("%s: %#lx is no %s", function, (unsigned long)handle, kinds[kind]);
    return NULL;
  }
  if (!objects[i]) double_misuse("%s: %s %#lx is destroyed", function, kinds[kind], (unsigned long)handle);
  return objects[i];
}

void object_remove(uintptr_t handle, struct context *owner) {
  objects[index_of(handle)] = NULL;
  double_count(kinds[handle >> 48 & 15], -1);
  if (owner) owner->owned--;
}

CUresult enter(const char *function) {
  if (running) {
    double_misuse("%s: called by an operation of a stream", function);
    return NOT_PERMITTED;
  }
  CUresult injected = double_enter(function);
  if (injected) return injected;
  return devices ? SUCCESS : NOT_INITIALIZED;
}

CUresult enter_freeing(const char *function, struct context **context) {
  CUresult result = enter(function);
  if (result) return result;
  pthread_mutex_lock(&lock);
  *context = NULL;
  if (!current)
    double_misuse("%s: no current context", function);
  else
    *context = object_get(function, CONTEXT, current);
  return *context ? SUCCESS : leave(INVALID_CONTEXT);
}

CUresult enter_context(const char *function, struct context **context) {
  CUresult result = enter_freeing(function, context);
  if (!result && (*context)->fault) return leave((*context)->fault);
  return result;
}

CUresult leave(CUresult result) {
  pthread_mutex_unlock(&lock);
  return result;
}

long double_omit(int device, int urgency, long nth) {
  pthread_mutex_lock(&lock);
  struct context *c = &contexts[device];
  long waits = c->waits[urgency];
  if (nth >= 0) c->omitted[urgency] = nth ? waits + nth : 0;
  pthread_mutex_unlock(&lock);
  return waits;
}

EXPORT CUresult cuInit(unsigned flags) {
  CUresult injected = double_enter("cuInit");
  if (injected) return injected;
  if (flags) return INVALID_VALUE;
  const char *said = getenv("FSDP_DOUBLE_DEVICES");
  int n = said ? atoi(said) : 4;
  if (n < 1 || n > MAX_DEVICES) return NO_DEVICE;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < n; i++) contexts[i].device = i;
  devices = n;
  return leave(SUCCESS);
}

EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = 13000;
  return double_enter("cuDriverGetVersion");
}

static const struct { CUresult result; const char *name, *text; } results[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
};

EXPORT CUresult cuGetErrorName(CUresult result, const char **name) {
  for (size_t i = 0; i < sizeof results / sizeof *results; i++)
    if (results[i].result == result) return *name = results[i].name, SUCCESS;
  return *name = NULL, INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult result, const char **text) {
  for (size_t i = 0; i < sizeof results / sizeof *results; i++)
    if (results[i].result == result) return *text = results[i].text, SUCCESS;
  return *text = NULL, INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
  CUresult result = enter("cuDeviceGetCount");
  if (!result) *count = devices;
  return result;
}

// enter_device begins a function about a device. A CUdevice is its ordinal.
static CUresult enter_device(const char *function, CUdevice device) {
  CUresult result = enter(function);
  if (!result && (device < 0 || device >= devices)) result = INVALID_DEVICE;
  return result;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  CUresult result = enter_device("cuDeviceGet", ordinal);
  if (!result) *device = ordinal;
  return result;
}

EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  CUresult result = enter_device("cuDeviceGetName", device);
  if (!result) snprintf(name, (size_t)size, "Double %d", device);
  return result;
}

// Attributes of every device: those of an H200, unless double_attribute changes them.
static struct { int attribute, value; } attributes[] = {
    {16, 132},         // MULTIPROCESSOR_COUNT
    {75, 9},           // COMPUTE_CAPABILITY_MAJOR
    {76, 0},           // COMPUTE_CAPABILITY_MINOR
    {97, MOST_SHARED}, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
};

int attribute_of_devices(int attribute) {
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
    if (attributes[i].attribute == attribute) return attributes[i].value;
  return -1;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  CUresult result = enter_device("cuDeviceGetAttribute", device);
  if (result) return result;
  int found = attribute_of_devices(attribute);
  if (found < 0) return INVALID_VALUE;
  *value = found;
  return SUCCESS;
}

EXPORT int double_attribute(int attribute, int value) {
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
    if (attributes[i].attribute == attribute) {
      int before = attributes[i].value;
      attributes[i].value = value;
      return before;
    }
  return -1;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  CUresult result = enter_device("cuDevicePrimaryCtxRetain", device);
  if (result) return result;
  pthread_mutex_lock(&lock);
  struct context *c = &contexts[device];
  if (c->references++ == 0) c->handle = object_add(CONTEXT, c, NULL);
  *context = c->handle;
  return leave(SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUresult result = enter_device("cuDevicePrimaryCtxRelease", device);
  if (result) return result;
  pthread_mutex_lock(&lock);
  struct context *c = &contexts[device];
  if (c->references == 0) {
    double_misuse("cuDevicePrimaryCtxRelease: the context of device %d is not retained", device);
    return leave(INVALID_CONTEXT);
  }
  if (--c->references == 0) {
    if (c->owned) double_misuse("cuDevicePrimaryCtxRelease: device %d still has %ld objects", device, c->owned);
    object_remove(c->handle, NULL);
    c->handle = 0;
    c->fault = SUCCESS;
  }
  return leave(SUCCESS);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  CUresult result = enter("cuCtxSetCurrent");
  if (result) return result;
  pthread_mutex_lock(&lock);
  if (context && !object_get("cuCtxSetCurrent", CONTEXT, context)) return leave(INVALID_CONTEXT);
  current = context;
  return leave(SUCCESS);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = current;
  return enter("cuCtxGetCurrent");
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  struct context *context;
  CUresult result = enter_freeing("cuCtxGetDevice", &context);
  if (result) return result;
  *device = context->device;
  return leave(SUCCESS);
}
