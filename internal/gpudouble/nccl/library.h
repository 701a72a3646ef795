//go:build ignore

// The lowest layer of the double of libnccl: results, errors, and the libcuda beside it.
//
// The layers, each of which knows only those below it:
//
//   init.c              functions of NCCL: the life of a communicator
//   group.c             functions of NCCL: groups and collectives, which become batches in streams
//   communicator.c      handles, what a call on a communicator begins and ends with, tasks
//   work.c              runs collectives and transfers on the thread of a stream
//   meeting.c           how ranks meet and wait for each other, in memory that they share
//   reduce.c            element types and reductions
//   library.c           this
#ifndef NCCL_LIBRARY_H
#define NCCL_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "../double.h"

// The version that the double claims, and the newest whose functions it has.
#ifndef NCCL_DOUBLE_VERSION
#define NCCL_DOUBLE_VERSION 23007
#endif

typedef int result;
enum {
  SUCCESS,
  CUDA_FAILED,
  SYSTEM_FAILED,
  INTERNAL_FAILED,
  INVALID_ARGUMENT,
  INVALID_USAGE,
  REMOTE_FAILED,
  IN_PROGRESS,
  TIMED_OUT,
};

enum { MAX_RANKS = 16 };

// What the double needs of libcuda. find_driver looks it up, in the one that the process has
// loaded.
extern struct driver {
  int (*current)(uintptr_t *context), (*set_current)(uintptr_t context), (*device)(int *device);
  int (*host)(uintptr_t stream, void (*function)(void *), void *data);
  char *(*pin)(uint64_t address, size_t size, int *device);
  void (*unpin)(uint64_t address);
} driver;
result find_driver(void);

// enter begins a function: 0, or what a test wants it to return.
result enter(const char *function);
// misuse reports a mistake and refuses it.
result misuse(result r, const char *text, const char *function);
// fail keeps a text for ncclGetLastError and returns r.
result fail(result r, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
