#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

// Every function of the driver that is called: its name, the suffix of the version of its ABI, its
// parameters.
#define REQUIRED(F)                                                                                            \
  F(cuInit, "", (unsigned flags))                                                                              \
  F(cuDriverGetVersion, "", (int *version))                                                                    \
  F(cuGetErrorName, "", (driver_result result, const char **name))                                             \
  F(cuGetErrorString, "", (driver_result result, const char **text))                                           \
  F(cuDeviceGetCount, "", (int *count))                                                                        \
  F(cuDeviceGet, "", (int *device, int ordinal))                                                               \
  F(cuDeviceGetName, "", (char *name, int size, int device))                                                   \
  F(cuDeviceGetAttribute, "", (int *value, int attribute, int device))                                         \
  F(cuDevicePrimaryCtxRetain, "", (driver_handle *context, int device))                                        \
  F(cuDevicePrimaryCtxRelease, "_v2", (int device))                                                            \
  F(cuCtxSetCurrent, "", (driver_handle context))                                                              \
  F(cuMemGetInfo, "_v2", (size_t *free, size_t *total))                                                        \
  F(cuMemAlloc, "_v2", (driver_address *address, size_t size))                                                 \
  F(cuMemFree, "_v2", (driver_address address))                                                                \
  F(cuMemAllocHost, "_v2", (void **address, size_t size))                                                      \
  F(cuMemFreeHost, "", (void *address))                                                                        \
  F(cuMemcpyHtoDAsync, "_v2", (driver_address to, const void *from, size_t size, driver_handle stream))        \
  F(cuMemcpyDtoHAsync, "_v2", (void *to, driver_address from, size_t size, driver_handle stream))              \
  F(cuMemcpyDtoDAsync, "_v2", (driver_address to, driver_address from, size_t size, driver_handle stream))     \
  F(cuMemsetD8Async, "", (driver_address to, unsigned char value, size_t size, driver_handle stream))          \
  F(cuCtxGetStreamPriorityRange, "", (int *least, int *greatest))                                              \
  F(cuStreamCreateWithPriority, "", (driver_handle *stream, unsigned flags, int priority))                     \
  F(cuStreamDestroy, "_v2", (driver_handle stream))                                                            \
  F(cuStreamSynchronize, "", (driver_handle stream))                                                           \
  F(cuStreamQuery, "", (driver_handle stream))                                                                 \
  F(cuStreamWaitEvent, "", (driver_handle stream, driver_handle event, unsigned flags))                        \
  F(cuEventCreate, "", (driver_handle *event, unsigned flags))                                                 \
  F(cuEventDestroy, "_v2", (driver_handle event))                                                              \
  F(cuEventRecord, "", (driver_handle event, driver_handle stream))                                            \
  F(cuEventQuery, "", (driver_handle event))                                                                   \
  F(cuEventSynchronize, "", (driver_handle event))                                                             \
  F(cuEventElapsedTime, "", (float *milliseconds, driver_handle from, driver_handle to))                       \
  F(cuModuleLoadDataEx, "", (driver_handle *module, const void *image, unsigned count, int *options, void **values)) \
  F(cuModuleUnload, "", (driver_handle module))                                                                \
  F(cuModuleGetFunction, "", (driver_handle *function, driver_handle module, const char *name))                \
  F(cuFuncSetAttribute, "", (driver_handle function, int attribute, int value))                                \
  F(cuLaunchKernel, "", (driver_handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
                         unsigned bz, unsigned shared, driver_handle stream, void **arguments, void **extra))

// Functions that old drivers lack: it came with CUDA 12.4.
#define OPTIONAL(F) \
  F(cuFuncGetParamInfo, "", (driver_handle function, size_t index, size_t *offset, size_t *size))

// Values of the driver's enumerations.
enum {
  STREAM_NON_BLOCKING = 1,  // not ordered with the legacy default stream
  EVENT_DISABLE_TIMING = 2,
  FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  JIT_ERROR_LOG_BUFFER = 5,
  JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
};

#define DECLARE(name, version, parameters) driver_result(*name) parameters;

static struct {
  REQUIRED(DECLARE)
  OPTIONAL(DECLARE)
} cu;

static void *library;

// A library is never closed again: a driver keeps threads of its own.
int driver_open(const char *path, char *error, size_t size) {
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    snprintf(error, size, "%s", dlerror());
    return -1;
  }
#define FIND(name, version, parameters) *(void **)&cu.name = dlsym(opened, #name version);
#define NEED(name, version, parameters)                        \
  FIND(name, version, parameters)                              \
  if (!cu.name) {                                              \
    snprintf(error, size, "it has no function %s", #name version); \
    return -1;                                                 \
  }
  REQUIRED(NEED)
  OPTIONAL(FIND)
  library = opened;
  return 0;
}

void *driver_symbol(const char *name) { return library ? dlsym(library, name) : NULL; }

driver_result driver_init(void) { return cu.cuInit(0); }
driver_result driver_version(int *version) { return cu.cuDriverGetVersion(version); }
driver_result driver_count(int *count) { return cu.cuDeviceGetCount(count); }

void driver_describe(driver_result result, char *text, size_t size) {
  const char *name = NULL, *description = NULL;
  if (cu.cuGetErrorName(result, &name) || !name) name = "unknown to this driver";
  if (cu.cuGetErrorString(result, &description) || !description) description = "no description";
  snprintf(text, size, "%s, %s", name, description);
}

// IN makes a context current, or returns from the function that uses it.
#define IN(context)                                       \
  do {                                                    \
    driver_result result = cu.cuCtxSetCurrent(context);   \
    if (result) return -result;                           \
  } while (0)

driver_result driver_device(int ordinal, int *device) { return cu.cuDeviceGet(device, ordinal); }
driver_result driver_name(int device, char *name, int size) { return cu.cuDeviceGetName(name, size, device); }
driver_result driver_attribute(int device, int attribute, int *value) { return cu.cuDeviceGetAttribute(value, attribute, device); }
driver_result driver_retain(int device, driver_handle *context) { return cu.cuDevicePrimaryCtxRetain(context, device); }
driver_result driver_release(int device) { return cu.cuDevicePrimaryCtxRelease(device); }

driver_result driver_memory(driver_handle context, size_t *free, size_t *total) {
  IN(context);
  return cu.cuMemGetInfo(free, total);
}

driver_result driver_alloc(driver_handle context, driver_address *address, size_t size) {
  IN(context);
  return cu.cuMemAlloc(address, size);
}

driver_result driver_free(driver_handle context, driver_address address) {
  IN(context);
  return cu.cuMemFree(address);
}

driver_result driver_alloc_host(driver_handle context, uintptr_t *address, size_t size) {
  IN(context);
  return cu.cuMemAllocHost((void **)address, size);
}

driver_result driver_free_host(driver_handle context, uintptr_t address) {
  IN(context);
  return cu.cuMemFreeHost((void *)address);
}

driver_result driver_copy_to_device(driver_handle context, driver_address to, uintptr_t from, size_t size, driver_handle stream) {
  IN(context);
  return cu.cuMemcpyHtoDAsync(to, (const void *)from, size, stream);
}

driver_result driver_copy_to_host(driver_handle context, uintptr_t to, driver_address from, size_t size, driver_handle stream) {
  IN(context);
  return cu.cuMemcpyDtoHAsync((void *)to, from, size, stream);
}

driver_result driver_copy_device(driver_handle context, driver_address to, driver_address from, size_t size, driver_handle stream) {
  IN(context);
  return cu.cuMemcpyDtoDAsync(to, from, size, stream);
}

driver_result driver_set(driver_handle context, driver_address to, unsigned char value, size_t size, driver_handle stream) {
  IN(context);
  return cu.cuMemsetD8Async(to, value, size, stream);
}

driver_result driver_priorities(driver_handle context, int *least, int *greatest) {
  IN(context);
  return cu.cuCtxGetStreamPriorityRange(least, greatest);
}

driver_result driver_stream(driver_handle context, driver_handle *stream, int priority) {
  IN(context);
  return cu.cuStreamCreateWithPriority(stream, STREAM_NON_BLOCKING, priority);
}

driver_result driver_stream_destroy(driver_handle context, driver_handle stream) {
  IN(context);
  return cu.cuStreamDestroy(stream);
}

driver_result driver_stream_sync(driver_handle context, driver_handle stream) {
  IN(context);
  return cu.cuStreamSynchronize(stream);
}

driver_result driver_stream_query(driver_handle context, driver_handle stream) {
  IN(context);
  return cu.cuStreamQuery(stream);
}

driver_result driver_stream_wait(driver_handle context, driver_handle stream, driver_handle event) {
  IN(context);
  return cu.cuStreamWaitEvent(stream, event, 0);
}

driver_result driver_event(driver_handle context, driver_handle *event, int timing) {
  IN(context);
  return cu.cuEventCreate(event, timing ? 0 : EVENT_DISABLE_TIMING);
}

driver_result driver_event_destroy(driver_handle context, driver_handle event) {
  IN(context);
  return cu.cuEventDestroy(event);
}

driver_result driver_event_record(driver_handle context, driver_handle event, driver_handle stream) {
  IN(context);
  return cu.cuEventRecord(event, stream);
}

driver_result driver_event_query(driver_handle context, driver_handle event) {
  IN(context);
  return cu.cuEventQuery(event);
}

driver_result driver_event_sync(driver_handle context, driver_handle event) {
  IN(context);
  return cu.cuEventSynchronize(event);
}

driver_result driver_event_elapsed(driver_handle context, float *milliseconds, driver_handle from, driver_handle to) {
  IN(context);
  return cu.cuEventElapsedTime(milliseconds, from, to);
}

driver_result driver_module(driver_handle context, driver_handle *module, const void *image, char *log, size_t size) {
  int options[] = {JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {log, (void *)size};
  IN(context);
  return cu.cuModuleLoadDataEx(module, image, 2, options, values);
}

driver_result driver_module_unload(driver_handle context, driver_handle module) {
  IN(context);
  return cu.cuModuleUnload(module);
}

driver_result driver_function(driver_handle context, driver_handle *function, driver_handle module, const char *name) {
  IN(context);
  return cu.cuModuleGetFunction(function, module, name);
}

driver_result driver_parameter(driver_handle context, driver_handle function, size_t index, size_t *size) {
  size_t offset;
  if (!cu.cuFuncGetParamInfo) return DRIVER_NOT_SUPPORTED;
  IN(context);
  return cu.cuFuncGetParamInfo(function, index, &offset, size);
}

driver_result driver_shared(driver_handle context, driver_handle function, int size) {
  IN(context);
  return cu.cuFuncSetAttribute(function, FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES, size);
}

driver_result driver_launch(driver_handle context, driver_handle function, driver_extent grid, driver_extent block,
                            unsigned shared, driver_handle stream, uint64_t *values, int count) {
  void *arguments[DRIVER_MAX_ARGUMENTS];
  for (int i = 0; i < count; i++) arguments[i] = &values[i];
  IN(context);
  return cu.cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, arguments, NULL);
}
