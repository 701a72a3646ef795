// The CUDA driver as Go calls it. Every function that takes a context makes it
// current on the calling thread first. Results are CUresults. The result of a
// call that could not even set its context is negative: -CUresult.
//
// The declarations are our own: handles are numbers here, for neither side
// dereferences those of the other.
#ifndef FSDP_DEVICE_DRIVER_H
#define FSDP_DEVICE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int driver_result;        // CUresult
typedef uintptr_t driver_handle;  // CUcontext, CUstream, CUevent, CUmodule, CUfunction
typedef uint64_t driver_address;  // CUdeviceptr

enum {
  DRIVER_INVALID_VALUE = 1,
  DRIVER_NOT_READY = 600,
  DRIVER_NOT_SUPPORTED = 801,
  DRIVER_MAX_ARGUMENTS = 32,
};

// Attributes of a device.
enum {
  DRIVER_MULTIPROCESSORS = 16,
  DRIVER_CAPABILITY_MAJOR = 75,
  DRIVER_CAPABILITY_MINOR = 76,
  DRIVER_SHARED_PER_BLOCK = 97,  // that a kernel may ask for
};

// driver_open loads a library and finds its functions. It returns 0, or -1 with the reason in
// error.
int driver_open(const char *path, char *error, size_t size);
// driver_symbol returns the address of a function of the loaded library, or NULL.
void *driver_symbol(const char *name);

driver_result driver_init(void);
driver_result driver_version(int *version);
driver_result driver_count(int *count);
// driver_describe writes name and description of a result.
void driver_describe(driver_result result, char *text, size_t size);

driver_result driver_device(int ordinal, int *device);
driver_result driver_name(int device, char *name, int size);
driver_result driver_attribute(int device, int attribute, int *value);
driver_result driver_retain(int device, driver_handle *context);
driver_result driver_release(int device);

driver_result driver_memory(driver_handle context, size_t *free, size_t *total);
driver_result driver_alloc(driver_handle context, driver_address *address, size_t size);
driver_result driver_free(driver_handle context, driver_address address);
driver_result driver_alloc_host(driver_handle context, uintptr_t *address, size_t size);
driver_result driver_free_host(driver_handle context, uintptr_t address);

// Of two priorities the lower number runs first.
driver_result driver_priorities(driver_handle context, int *least, int *greatest);
driver_result driver_stream(driver_handle context, driver_handle *stream, int priority);
driver_result driver_stream_destroy(driver_handle context, driver_handle stream);
driver_result driver_stream_sync(driver_handle context, driver_handle stream);
driver_result driver_stream_query(driver_handle context, driver_handle stream);
driver_result driver_stream_wait(driver_handle context, driver_handle stream, driver_handle event);

driver_result driver_copy_to_device(driver_handle context, driver_address to, uintptr_t from, size_t size, driver_handle stream);
driver_result driver_copy_to_host(driver_handle context, uintptr_t to, driver_address from, size_t size, driver_handle stream);
driver_result driver_copy_device(driver_handle context, driver_address to, driver_address from, size_t size, driver_handle stream);
driver_result driver_set(driver_handle context, driver_address to, unsigned char value, size_t size, driver_handle stream);

driver_result driver_event(driver_handle context, driver_handle *event, int timing);
driver_result driver_event_destroy(driver_handle context, driver_handle event);
driver_result driver_event_record(driver_handle context, driver_handle event, driver_handle stream);
driver_result driver_event_query(driver_handle context, driver_handle event);
driver_result driver_event_sync(driver_handle context, driver_handle event);
driver_result driver_event_elapsed(driver_handle context, float *milliseconds, driver_handle from, driver_handle to);

// driver_module loads PTX text or a cubin. What the compiler of PTX has to say about an error goes
// into log.
driver_result driver_module(driver_handle context, driver_handle *module, const void *image, char *log, size_t size);
driver_result driver_module_unload(driver_handle context, driver_handle module);
driver_result driver_function(driver_handle context, driver_handle *function, driver_handle module, const char *name);
// driver_parameter finds the size of a kernel's parameter: INVALID_VALUE if it has no such,
// NOT_SUPPORTED before CUDA 12.4.
driver_result driver_parameter(driver_handle context, driver_handle function, size_t index, size_t *size);

// driver_shared sets how much dynamic shared memory a kernel may have.
driver_result driver_shared(driver_handle context, driver_handle function, int size);

typedef struct { unsigned x, y, z; } driver_extent;

// driver_launch starts a kernel with count arguments of at most 8 bytes each, in the first bytes
// of a value each.
driver_result driver_launch(driver_handle context, driver_handle function, driver_extent grid, driver_extent block,
                            unsigned shared, driver_handle stream, uint64_t *values, int count);

#endif
