//go:build ignore

// A double of libnccl.so.2 that computes on the host what NCCL computes on devices of the double
// of libcuda. Ranks may be threads or processes of one host (meeting.c). Collectives run on the
// streams they are given, in their order. It is stricter than NCCL: ranks that disagree, buffers
// that are too short, freed or not on the device, calls without the right current context, and
// communicators that are gone or still in progress are refused and reported, where NCCL would
// hang, crash, or compute something else.
//
// It knows NCCL_HOSTID and NCCL_MULTI_RANK_GPU_ENABLE, which let ranks share a device.
// -DNCCL_DOUBLE_VERSION=21805 makes it an older one.
// FSDP_DOUBLE_NCCL_TIMEOUT_MS is when it gives up where NCCL would wait for ever, 60 s if not set;
// with FSDP_DOUBLE_NCCL_CONNECT every launch waits for all ranks, as NCCL's do that have to
// connect them. With FSDP_DOUBLE_NCCL_TREE sums have the bits of package comm. It counts what lives as "communicator".
#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

struct driver driver;

static char last_error[512];

result fail(result r, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return r;
}

result enter(const char *function) {
  int r = double_enter(function);
  return r ? fail(r, "%s: injected by a test", function) : SUCCESS;
}

result misuse(result r, const char *text, const char *function) {
  double_misuse("%s: %s", function, text);
  return fail(r, "%s: %s", function, text);
}

result find_driver(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!cuda) return fail(CUDA_FAILED, "libcuda.so.1 is not loaded");
#define FIND(field, name) *(void **)&driver.field = dlsym(cuda, name)
  FIND(current, "cuCtxGetCurrent");
  FIND(set_current, "cuCtxSetCurrent");
  FIND(device, "cuCtxGetDevice");
  FIND(host, "cuLaunchHostFunc");
  FIND(pin, "double_pin");
  FIND(unpin, "double_unpin");
  return driver.pin ? SUCCESS : fail(CUDA_FAILED, "libcuda.so.1 is not the double");
}

EXPORT result ncclGetVersion(int *version) {
  *version = NCCL_DOUBLE_VERSION;
  return enter("ncclGetVersion");
}

EXPORT const char *ncclGetErrorString(result r) {
  static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                      "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                      "NCCL operation in progress", "operation timed out"};
  return r >= 0 && r <= TIMED_OUT ? texts[r] : "unknown result code";
}

EXPORT const char *ncclGetLastError(uintptr_t comm) { return last_error; }
