//go:build linux && cgo

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The functions of the library, once one is loaded.
#define FIELD(name, result, parameters) result(*name) parameters;
typedef struct {
  void *handle;
  NCCL_FUNCTIONS(FIELD)
} library;
static library lib;
static int (*set_current)(uintptr_t context);

// find looks all functions up. It returns the name of one that there must be and is not.
static const char *find(library *l) {
#define REQUIRED(name, result, parameters)        \
  *(void **)&l->name = dlsym(l->handle, #name); \
  if (!l->name && !missing) missing = #name;
  const char *missing = NULL;
  NCCL_FUNCTIONS(REQUIRED)
  return missing;
}

int fsdp_nccl_open(const char *path, int floor, int *version, char *why, size_t n) {
  library l;
  l.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // for good: NCCL keeps threads
  if (!l.handle) {
    snprintf(why, n, "%s", dlerror());
    return -1;
  }
  const char *missing = find(&l);
  int r = l.ncclGetVersion ? l.ncclGetVersion(version) : NCCL_SUCCESS;
  if (r)
    snprintf(why, n, "ncclGetVersion: result %d", r);
  else if (l.ncclGetVersion && *version < floor)
    snprintf(why, n, "NCCL %d.%d is older than %d.%d", *version / 10000, *version / 100 % 100, floor / 10000, floor / 100 % 100);
  else if (missing)
    snprintf(why, n, "it has no function %s", missing);
  else
    return lib = l, 0;
  dlclose(l.handle);
  return -1;
}

void fsdp_nccl_driver(uintptr_t f) { set_current = (int (*)(uintptr_t))f; }

// note keeps what NCCL says of a failure. It has one text for the whole process, which
// the next failure on any thread overwrites.
static int note(int result, fsdp_nccl_failure *f) {
  if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return result;
  const char *text = lib.ncclGetLastError(NULL);
  if (!text || !*text) text = lib.ncclGetErrorString(result);
  f->at = -1;
  snprintf(f->text, sizeof f->text, "%s", text);
  return result;
}

// enter makes the context current. Goroutines move between threads, and NCCL takes the
// context of the thread; with none it would take device 0.
static int enter(uintptr_t context, fsdp_nccl_failure *f) {
  int r = set_current(context);
  if (!r) return NCCL_SUCCESS;
  f->at = -1;
  snprintf(f->text, sizeof f->text, "cuCtxSetCurrent: CUDA error %d", r);
  return NCCL_UNHANDLED_CUDA_ERROR;
}

// CALL enters the context and calls a function.
#define CALL(context, f, call) \
  int r = enter(context, f);   \
  return r ? r : note(call, f)

int fsdp_nccl_unique_id(nccl_unique_id *id, fsdp_nccl_failure *f) { return note(lib.ncclGetUniqueId(id), f); }

static int chosen(int v) { return v ? v : INT_MIN; }
static char *copied(const char *s) { return s ? strdup(s) : NULL; }

fsdp_nccl_slot *fsdp_nccl_new(uintptr_t context, const fsdp_nccl_options *o) {
  fsdp_nccl_slot *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->context = context;
  const int any = INT_MIN;
  s->config = (nccl_config){
      .size = sizeof s->config,
      .magic = NCCL_CONFIG_MAGIC,
      .version = NCCL_CONFIG_VERSION,
      .blocking = !o->non_blocking,
      .cgaClusterSize = chosen(o->cluster_size),
      .minCTAs = chosen(o->min_ctas),
      .maxCTAs = chosen(o->max_ctas),
      .netName = copied(o->net),
      .splitShare = chosen(o->share_on_split),
      .trafficClass = any,
      .commName = copied(o->name),  // NCCL keeps the pointer
      .collnetEnable = any,
      .CTAPolicy = any,
      .shrinkShare = any,
      .nvlsCTAs = any,
      .nChannelsPerNetPeer = any,
      .nvlinkCentricSched = any,
      .graphUsageMode = any,
      .numRmaCtx = any,
      .maxP2pPeers = any,
      .graphStreamOrdering = any,
  };
  return s;
}

void fsdp_nccl_free(fsdp_nccl_slot *s) {
  free((char *)s->config.netName);
  free((char *)s->config.commName);
  free(s);
}

int fsdp_nccl_live(fsdp_nccl_slot *s) { return __atomic_load_n(&s->comm, __ATOMIC_ACQUIRE) != NULL; }

int fsdp_nccl_init(fsdp_nccl_slot *s, int n, const nccl_unique_id *id, int rank) {
  CALL(s->context, &s->failure, lib.ncclCommInitRankConfig(&s->comm, n, *id, rank, &s->config));
}

int fsdp_nccl_split(fsdp_nccl_slot *s, int color, int key, fsdp_nccl_slot *child) {
  CALL(s->context, &s->failure, lib.ncclCommSplit(s->comm, color, key, &child->comm, &child->config));
}

int fsdp_nccl_place(fsdp_nccl_slot *s, int *rank, int *n) {
  int r = enter(s->context, &s->failure);
  if (r) return r;
  r = lib.ncclCommUserRank(s->comm, rank);
  return note(r ? r : lib.ncclCommCount(s->comm, n), &s->failure);
}

int fsdp_nccl_async(fsdp_nccl_slot *s) {
  int state = NCCL_SUCCESS;
  int r = lib.ncclCommGetAsyncError(s->comm, &state);
  return note(r ? r : state, &s->failure);
}

int fsdp_nccl_finalize(fsdp_nccl_slot *s) { CALL(s->context, &s->failure, lib.ncclCommFinalize(s->comm)); }

int fsdp_nccl_destroy(fsdp_nccl_slot *s) { CALL(s->context, &s->failure, lib.ncclCommDestroy(s->comm)); }

int fsdp_nccl_abort(fsdp_nccl_slot *s, fsdp_nccl_failure *f) {
  CALL(s->context, f, lib.ncclCommAbort(__atomic_load_n(&s->comm, __ATOMIC_ACQUIRE)));
}

static int enqueue(nccl_comm c, const fsdp_nccl_op *o, nccl_stream stream) {
  const void *send = (const void *)o->send;
  void *recv = (void *)o->recv;
  size_t n = (size_t)o->count;
  int peer = (int)o->peer;
  switch (o->kind) {
  case OP_ALL_GATHER: return lib.ncclAllGather(send, recv, n, o->type, c, stream);
  case OP_REDUCE_SCATTER: return lib.ncclReduceScatter(send, recv, n, o->type, o->reduce, c, stream);
  case OP_ALL_REDUCE: return lib.ncclAllReduce(send, recv, n, o->type, o->reduce, c, stream);
  case OP_BROADCAST: return lib.ncclBroadcast(send, recv, n, o->type, peer, c, stream);
  case OP_REDUCE: return lib.ncclReduce(send, recv, n, o->type, o->reduce, peer, c, stream);
  case OP_SEND: return lib.ncclSend(send, n, o->type, peer, c, stream);
  case OP_RECV: return lib.ncclRecv(recv, n, o->type, peer, c, stream);
  }
  return NCCL_INVALID_ARGUMENT;
}

// A group is a state of the thread: it is opened, filled and closed here, whatever
// fails. NCCL drops all of it if one operation is refused.
static int run_group(fsdp_nccl_slot *s, const fsdp_nccl_op *ops, int n, nccl_stream stream) {
  int r = note(lib.ncclGroupStart(), &s->failure);
  if (r) return r;
  for (int i = 0; i < n; i++) {
    r = note(enqueue(s->comm, &ops[i], stream), &s->failure);
    if (r == NCCL_SUCCESS || r == NCCL_IN_PROGRESS) continue;
    s->failure.at = i;
    lib.ncclGroupEnd();
    return r;
  }
  return note(lib.ncclGroupEnd(), &s->failure);
}

int fsdp_nccl_run(fsdp_nccl_slot *s, const fsdp_nccl_op *ops, int n, uintptr_t stream) {
  int r = enter(s->context, &s->failure);
  if (r) return r;
  if (n > 1) return run_group(s, ops, n, (nccl_stream)stream);
  return note(enqueue(s->comm, ops, (nccl_stream)stream), &s->failure);
}
