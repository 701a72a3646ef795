//go:build ignore

// What the files of the double of libnccl share.
#ifndef NCCL_DOUBLE_H
#define NCCL_DOUBLE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

enum type { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3, FLOAT8E5M2, TYPES };
enum reduction { SUM, PROD, MAX, MIN, AVG, PREMUL };
enum kind { ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, REDUCE, SEND, RECV };

// type_size returns the bytes of an element, 0 for what is no type.
size_t type_size(int type);
// reduce_elements writes the reduction of n elements of each of some ranks to out. scalars are those of a PREMUL.
void reduce_elements(char *out, char (*in)[], size_t stride, int ranks, size_t n, int type, int op, const uint64_t *scalars);

enum { MAX_RANKS = 16, CHUNK = 64 << 10, NAME = 96 };

// A post is what a rank says of the collective that it runs.
struct post {
  int kind, type, op, root;
  uint64_t count, scalar;
};

// A mail is a piece of what one rank sends another.
struct mail {
  int full, type;
  uint64_t total, size;
  char data[CHUNK];
};

// A barrier of all ranks: one for operations on streams, one for calls of the host.
enum barrier { STREAMS, CALLS };

// A meeting is what the ranks of a communicator share: memory that is a file beside the library, which the last one to come
// removes. A process may die at any time, so the lock is a robust one and waiting is for a number to change.
struct meeting {
  pthread_mutex_t lock;
  uint32_t changes;
  result failed; // what ranks that wait are told
  int size, joined;
  struct {
    int present, device;
    pid_t process;
    char host[32];
    int color, key;
  } ranks[MAX_RANKS];
  struct {
    int waiting;
    uint64_t round;
  } barriers[2];
  struct post posts[MAX_RANKS];
  char chunks[MAX_RANKS][CHUNK];
  struct mail mails[MAX_RANKS][MAX_RANKS]; // from, to
};

enum { SCALARS = 16 };

// A communicator is one rank's. Its handle is a number that is never used again.
struct communicator {
  struct meeting *meeting;
  char name[NAME]; // of the meeting
  int rank, size, device, blocking, splits;
  uintptr_t context;
  const char *config_name;
  char config_name_then[32];
  int aborted;  // atomic

  // With the lock of the process held:
  int references;         // the handle, and batches in streams
  int calls, running;     // calls under way, and batches that run or wait for their turn
  uint64_t issued, done;  // batches
  int entered;      // functions that are being called, of those that must not be called at once
  int in_progress;  // whether a call goes on, on a thread of its own
  result failure;
  int finalized;
  struct { int used, type; uint64_t scalar; } scalars[SCALARS];
};

// What the double needs of libcuda, found when the first communicator is made.
extern struct driver {
  int (*current)(uintptr_t *context), (*set_current)(uintptr_t context), (*device)(int *device);
  int (*host)(uintptr_t stream, void (*function)(void *), void *data);
  int (*alloc)(uint64_t *address, size_t size), (*free)(uint64_t address);
  char *(*pin)(uint64_t address, size_t size, int *device);
  void (*unpin)(uint64_t address);
} driver;

// The one lock of the double in a process, and its one condition: something has changed.
extern pthread_mutex_t lock;
extern pthread_cond_t changed;

// enter begins a function: 0, or what a test wants it to return.
result enter(const char *function);
// misuse reports a mistake and refuses it.
result misuse(result r, const char *text, const char *function);

// ready begins a function on a communicator that leave ends. If it returns anything but 0, there is nothing to leave.
result ready(uintptr_t handle, const char *function, struct communicator **c);
result leave(struct communicator *c, result r);
// stay ends the function, but lets the communicator be used still, until put.
void stay(struct communicator *c);
result put(struct communicator *c, result r);
// again begins a function on a communicator that is in use already.
result again(struct communicator *c, const char *function);
// drop gives a reference to a communicator back, with the lock held.
void drop(struct communicator *c);

// A task is the part of a call that may wait. It goes on, on a thread of its own, unless the communicator blocks.
struct task {
  struct communicator *c;
  result (*run)(struct task *);
  struct batch *batch;                       // to launch
  struct communicator *child;                // of a split
  uintptr_t *out;
  int color, key;
};

// task_start runs a task and leaves its communicator afterwards.
result task_start(struct task task);

// open_group opens a group of this thread.
void open_group(void);
// check_buffer checks that device memory is where an operation needs it.
result check_buffer(const struct communicator *c, const char *function, const char *which, uint64_t address, uint64_t size);

// fail keeps a text for ncclGetLastError and returns r.
result fail(result r, const char *format, ...) __attribute__((format(printf, 2, 3)));

// meeting_make makes the memory of a meeting, meeting_find that of one that is made.
result meeting_make(const char *name, struct meeting **m);
result meeting_find(const char *name, struct meeting **m);
void meeting_forget(struct meeting *m);
// meeting_join waits until all ranks of c have come. duplicates tells whether they may have the same device.
result meeting_join(struct communicator *c, int duplicates);
// meeting_fail tells the other ranks of a failure, and lets all see what has changed.
void meeting_fail(struct meeting *m, result r);
// meeting_barrier waits for all ranks.
result meeting_barrier(struct communicator *c, enum barrier which);
// meeting_lock and meeting_unlock guard a meeting; meeting_await waits for a change and gives the lock back meanwhile.
// meeting_changed makes one. deadline is the time when waiting from now on is in vain.
void meeting_lock(struct meeting *m);
void meeting_unlock(struct meeting *m);
void meeting_changed(struct meeting *m);
result meeting_await(struct communicator *c, double deadline);
double deadline(void);

// An operation as it was enqueued.
struct work {
  struct communicator *c;
  uintptr_t stream;
  struct post post;
  uint64_t send, recv; // device memory
};

// run_works runs the operations of one group on the thread of a stream.
result run_works(struct communicator *c, struct work *works, int n);
// spans returns how many bytes of its buffers an operation of a rank reads and writes.
void spans(const struct post *p, int rank, int ranks, uint64_t *send, uint64_t *recv);

#endif
