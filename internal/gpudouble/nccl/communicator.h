//go:build ignore

// Communicators by handle, what a call on one begins and ends with, and tasks.
#ifndef NCCL_COMMUNICATOR_H
#define NCCL_COMMUNICATOR_H

#include <pthread.h>

#include "meeting.h"

// A communicator is one rank's. Its handle is a number that is never used again.
struct communicator {
  struct seat seat;
  int blocking, splits;
  uintptr_t context;
  const char *config_name;
  char config_name_then[32];

  // With the lock of the process held:
  int references;        // the handle, and batches in streams
  int calls, running;    // calls under way, and batches that run or wait for their turn
  uint64_t issued, done; // batches
  int entered;           // functions being called, of those that must not be called at once
  int in_progress;       // whether a call goes on, on a thread of its own
  result failure;
  int finalized;
};

// The one lock of the double in a process, and its one condition: something has changed.
extern pthread_mutex_t lock;
extern pthread_cond_t changed;

// communicator_add returns the handle of a new communicator; communicator_remove takes it away,
// with the lock held.
uintptr_t communicator_add(struct communicator *c);
void communicator_remove(uintptr_t handle);
// get returns the communicator of a handle for the time of a call, or NULL. What it returns is
// given back by put, which returns r.
struct communicator *get(uintptr_t handle, const char *function);
result put(struct communicator *c, result r);
// drop gives a reference to a communicator back, with the lock held.
void drop(struct communicator *c);

// ready begins a function on a communicator that leave ends. If it returns anything but 0, there is
// nothing to leave.
result ready(uintptr_t handle, const char *function, struct communicator **c);
result leave(struct communicator *c, result r);
// stay ends the function, but lets the communicator be used still, until put.
void stay(struct communicator *c);
// again begins a function on a communicator that is in use already.
result again(struct communicator *c, const char *function);

// check_buffer checks that device memory is where an operation needs it.
result check_buffer(const struct communicator *c, const char *function, const char *which, uint64_t address, uint64_t size);

// A task is the part of a call that may wait. It goes on, on a thread of its own, unless the
// communicator blocks.
struct task {
  struct communicator *c;
  result (*run)(struct task *);
  struct batch *batch;        // to launch
  struct communicator *child; // of a split
  uintptr_t *out;
  int color, key;
};

// task_start runs a task and leaves its communicator afterwards.
result task_start(struct task task);

#endif
