//go:build ignore

// What the files of the double of libcuda share.
#ifndef CUDA_DOUBLE_H
#define CUDA_DOUBLE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "../double.h"

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
// Handles are numbers, so that nobody can look behind them.
typedef uintptr_t CUcontext, CUstream, CUevent, CUmodule, CUfunction;

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_PTX = 218,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  MISALIGNED_ADDRESS = 716,
  LAUNCH_FAILED = 719,
  NOT_PERMITTED = 800,
};

enum { MAX_DEVICES = 16, MOST_SHARED = 227 << 10 };

// A context is the primary context of a device. It has a new handle whenever it is retained anew.
struct context {
  CUcontext handle;
  int device, references;
  // fault is that of an operation that ran: the answer to everything but freeing, until the context
  // is released.
  CUresult fault;
  long owned;     // objects and allocations that live
  int busy;       // operations that run
  // Of streams for events, by urgency: how many were given, and which one is left out.
  long waits[MOST_URGENT + 1], omitted[MOST_URGENT + 1];
};

// The one lock of the double, but for what control.c has, and its one condition: something has
// changed.
extern pthread_mutex_t lock;
extern pthread_cond_t changed;

// running is set on threads of streams, where nothing of CUDA may be called.
extern _Thread_local int running;

// Objects are what handles name.
enum kind { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION };

// object_add returns the handle of a new object, and counts it. object_get returns the object that
// a handle names, or reports that there is none of this kind and returns NULL. object_remove
// forgets it. All are called with the lock held.
uintptr_t object_add(enum kind kind, void *body, struct context *owner);
void *object_get(const char *function, enum kind kind, uintptr_t handle);
void object_remove(uintptr_t handle, struct context *owner);

// enter begins a function: 0, or what it has to return.
CUresult enter(const char *function);
// attribute_of_devices returns an attribute that all devices have, or -1.
int attribute_of_devices(int attribute);

// enter_context begins a function that needs a current context, and takes the lock. Without
// success the lock is not held. freeing is for functions that work after a fault.
CUresult enter_context(const char *function, struct context **context);
CUresult enter_freeing(const char *function, struct context **context);
// leave gives the lock back and returns result.
CUresult leave(CUresult result);

// region_check tells whether [address, address+size) is inside live memory, of the device or
// pinned memory of the host, and reports if not. It is called with the lock held.
int region_check(const char *function, uint64_t address, size_t size, int host);
enum { ANY = -1 }; // memory of the host or of a device
// region_pin returns where the bytes of a range are, or NULL as region_check, and keeps it from
// being freed.
char *region_pin(const char *function, uint64_t address, size_t size, int host, int *device);
// region_find returns where the byte at an address that a device reaches is and the allocation that it is in,
// [*first, *last), which it pins, or NULL.
char *region_find(uint64_t address, int device, uint64_t *first, uint64_t *last);
void region_unpin(uint64_t address, int host);

// An operation is something that a stream does. It runs without the lock and is freed afterwards.
// After a fault of the context only those that always run do.
struct operation {
  CUresult (*run)(struct operation *);
  struct operation *next;
  int always;
  uint64_t to, from; // of copies
  size_t size;
  int value;
  struct event *event; // and the place in it
  uint64_t place;
  struct stream *source; // of a wait: where the event is recorded, as its operation of that number
  uint64_t number;
  void (*function)(void *); // of the host
  void *data;
};

// stream_push gives an operation to a stream, with the lock held.
CUresult stream_push(const char *function, struct context *context, CUstream stream, struct operation operation);

#endif
