//go:build ignore

// Memory of devices and pinned memory of the host.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { ALIGNMENT = 256, PAGE = 4096, FILLED = 1 << 20 };

// A region is an allocation. Of device memory the addresses are one mapping, without access, and
// the bytes another.
struct region {
  struct region *next;
  char *address, *bytes; // the same for host memory
  size_t size;
  int device, host;
  int pins; // uses that run now
};

static struct region *live, *freed;
static int freeing; // threads that wait for pins to go
static size_t used[MAX_DEVICES];

// capacity returns how much memory a device has: FSDP_DOUBLE_MEMORY, or 8 GiB.
static size_t capacity(void) {
  const char *said = getenv("FSDP_DOUBLE_MEMORY");
  return said ? (size_t)strtoull(said, NULL, 10) : (size_t)8 << 30;
}

// pages returns the size of the mapping of a region.
static size_t pages(size_t size) { return (size + ALIGNMENT + PAGE - 1) & ~(size_t)(PAGE - 1); }

static char *map(size_t size, int access) {
  char *p = mmap(NULL, size, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

// region_in returns the region of a list that [address, address+size) is in, of host memory, of device
// memory, or with ANY of either.
static struct region *region_in(struct region *list, uint64_t address, size_t size, int host) {
  for (struct region *r = list; r; r = r->next) {
    uint64_t first = (uint64_t)r->address;
    if ((host == ANY || r->host == host) && address >= first && address - first <= r->size && size <= r->size - (address - first)) return r;
  }
  return NULL;
}

int region_check(const char *function, uint64_t address, size_t size, int host) {
  if (region_in(live, address, size, host)) return 1;
  const char *what = region_in(freed, address, size, host) ? "freed" : host ? "not of pinned host memory" : "not of device memory";
  double_misuse("%s: %zu bytes at %#lx are %s", function, size, (unsigned long)address, what);
  return 0;
}

char *region_pin(const char *function, uint64_t address, size_t size, int host, int *device) {
  char *bytes = NULL;
  pthread_mutex_lock(&lock);
  if (region_check(function, address, size, host)) {
    struct region *r = region_in(live, address, size, host);
    r->pins++;
    if (device) *device = r->device;
    bytes = r->bytes + (address - (uint64_t)r->address);
  }
  pthread_mutex_unlock(&lock);
  return bytes;
}

char *region_find(uint64_t address, int device, uint64_t *first, uint64_t *last) {
  char *bytes = NULL;
  pthread_mutex_lock(&lock);
  struct region *r = region_in(live, address, 1, ANY);
  if (r && (r->host || r->device == device)) { // all devices reach pinned memory, where it is
    r->pins++;
    *first = (uint64_t)r->address;
    *last = *first + r->size;
    bytes = r->bytes + (address - *first);
  }
  pthread_mutex_unlock(&lock);
  return bytes;
}

void region_unpin(uint64_t address, int host) {
  pthread_mutex_lock(&lock);
  struct region *r = region_in(live, address, 0, host);
  if (r && --r->pins == 0 && freeing) pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

char *double_pin(uint64_t address, size_t size, int *device) { return region_pin("double_pin", address, size, 0, device); }
void double_unpin(uint64_t address) { region_unpin(address, 0); }

// region_free moves the region at an address to those that are freed. Its addresses stay taken,
// without access.
static CUresult region_free(const char *function, struct context *context, char *address, int host) {
  struct region **at, *r;
  for (int reported = 0;; reported = 1) {
    for (at = &live; *at && ((*at)->address != address || (*at)->host != host);) at = &(*at)->next;
    r = *at;
    if (!r) {
      int twice = region_in(freed, (uint64_t)address, 0, host) != NULL;
      double_misuse("%s: %p %s", function, (void *)address, twice ? "is freed already" : "was not allocated");
      return INVALID_VALUE;
    }
    if (!r->pins) break;
    if (!reported) double_misuse("%s: %p is in use", function, (void *)address);
    freeing++;
    pthread_cond_wait(&changed, &lock);
    freeing--;
  }
  *at = r->next;
  if (host) {
    mmap(r->address, pages(r->size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    double_count("host", -1);
  } else {
    munmap(r->bytes - ALIGNMENT, pages(r->size));
    used[r->device] -= r->size;
    double_count("memory", -1);
    double_count("bytes", -(long)r->size);
  }
  context->owned--;
  r->next = freed;
  freed = r;
  return SUCCESS;
}

static void region_add(struct context *context, struct region region) {
  struct region *r = malloc(sizeof *r);
  region.device = context->device;
  *r = region;
  size_t filled = r->size < FILLED ? r->size : FILLED;
  char *page = (char *)((uintptr_t)r->bytes & ~(uintptr_t)(PAGE - 1));
  madvise(page, (size_t)(r->bytes + filled - page), MADV_POPULATE_WRITE); // all at once, where Linux can
  memset(r->bytes, 0xCD, filled); // like a GPU, which zeroes nothing
  r->next = live;
  live = r;
  context->owned++;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  struct context *context;
  CUresult result = enter_context("cuMemGetInfo", &context);
  if (result) return result;
  *total = capacity();
  *free = *total - used[context->device];
  return leave(SUCCESS);
}

// Addresses are aligned to what CUDA promises and not to more, so that nobody can rely on more.
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
  struct context *context;
  CUresult result = enter_context("cuMemAlloc", &context);
  if (result) return result;
  if (size == 0) return leave(INVALID_VALUE);
  if (size > capacity() - used[context->device]) return leave(OUT_OF_MEMORY);
  char *addresses = map(pages(size), PROT_NONE), *bytes = map(pages(size), PROT_READ | PROT_WRITE);
  if (!addresses || !bytes) return leave(OUT_OF_MEMORY);
  region_add(context, (struct region){.address = addresses + ALIGNMENT, .bytes = bytes + ALIGNMENT, .size = size});
  used[context->device] += size;
  double_count("memory", 1);
  double_count("bytes", (long)size);
  *address = (CUdeviceptr)(addresses + ALIGNMENT);
  return leave(SUCCESS);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  struct context *context;
  CUresult result = enter_freeing("cuMemFree", &context);
  return result ? result : leave(region_free("cuMemFree", context, (char *)address, 0));
}

EXPORT CUresult cuMemAllocHost_v2(void **address, size_t size) {
  struct context *context;
  CUresult result = enter_context("cuMemAllocHost", &context);
  if (result) return result;
  if (size == 0) return leave(INVALID_VALUE);
  char *bytes = map(pages(size), PROT_READ | PROT_WRITE);
  if (!bytes) return leave(OUT_OF_MEMORY);
  region_add(context, (struct region){.address = bytes, .bytes = bytes, .size = size, .host = 1});
  double_count("host", 1);
  *address = bytes;
  return leave(SUCCESS);
}

EXPORT CUresult cuMemFreeHost(void *address) {
  struct context *context;
  CUresult result = enter_freeing("cuMemFreeHost", &context);
  return result ? result : leave(region_free("cuMemFreeHost", context, address, 1));
}
