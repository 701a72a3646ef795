// The calls that Go makes. Each makes the device's context current, calls NCCL and
// copies the text of an error, all on one thread. Go hands over numbers and pointers
// that are not kept; what NCCL keeps or writes late is in a slot, which is C memory.
#ifndef GOFSDP_NCCL_SHIM_H
#define GOFSDP_NCCL_SHIM_H

#include "abi.h"

// A failure is what the last call that failed has said.
typedef struct {
  int at;          // which operation of a group has failed, -1 if none did by itself
  char text[512];  // of ncclGetLastError, or else of ncclGetErrorString
} fsdp_nccl_failure;

// A slot is one communicator. Calls on it take turns, except abort.
typedef struct {
  nccl_comm comm;
  uintptr_t context;
  nccl_config config;
  fsdp_nccl_failure failure;
} fsdp_nccl_slot;

// What a user chooses of nccl_config; 0 and NULL leave a choice to NCCL.
typedef struct {
  int non_blocking, min_ctas, max_ctas, cluster_size, share_on_split;
  const char *net, *name;
} fsdp_nccl_options;

// One operation, as the Go type Op.
typedef struct {
  int32_t kind, type, reduce;
  intptr_t peer;
  uintptr_t send, recv;
  intptr_t count;
} fsdp_nccl_op;

enum { OP_ALL_GATHER = 1, OP_REDUCE_SCATTER, OP_ALL_REDUCE, OP_BROADCAST, OP_REDUCE, OP_SEND, OP_RECV };

// fsdp_nccl_open loads a library that is not older than floor. It returns 0, or -1 and why not.
int fsdp_nccl_open(const char *path, int floor, int *version, char *why, size_t n);
// fsdp_nccl_driver gives cuCtxSetCurrent of the driver, before any call that needs a context.
void fsdp_nccl_driver(uintptr_t set_current);

// The others return an ncclResult_t.
int fsdp_nccl_unique_id(nccl_unique_id *id, fsdp_nccl_failure *f);

// fsdp_nccl_new returns a slot, or NULL if there is no memory. The strings are copied.
fsdp_nccl_slot *fsdp_nccl_new(uintptr_t context, const fsdp_nccl_options *o);
void fsdp_nccl_free(fsdp_nccl_slot *s);

int fsdp_nccl_init(fsdp_nccl_slot *s, int n, const nccl_unique_id *id, int rank);
int fsdp_nccl_split(fsdp_nccl_slot *s, int color, int key, fsdp_nccl_slot *child);
int fsdp_nccl_place(fsdp_nccl_slot *s, int *rank, int *n);
int fsdp_nccl_async(fsdp_nccl_slot *s);
int fsdp_nccl_finalize(fsdp_nccl_slot *s);
int fsdp_nccl_destroy(fsdp_nccl_slot *s);
// fsdp_nccl_abort may be called while another thread is in a call on s that does not return.
int fsdp_nccl_abort(fsdp_nccl_slot *s, fsdp_nccl_failure *f);
// fsdp_nccl_live tells whether NCCL has made a communicator.
int fsdp_nccl_live(fsdp_nccl_slot *s);
int fsdp_nccl_run(fsdp_nccl_slot *s, const fsdp_nccl_op *ops, int n, uintptr_t stream);

#endif
