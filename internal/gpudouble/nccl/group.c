//go:build ignore

// Groups and collectives of the double of libnccl.
#include <stdio.h>
#include <stdlib.h>

#include "communicator.h"
#include "group.h"
#include "work.h"

// --- Groups: a state of the thread, as in NCCL.

// A batch is what one communicator does in one group.
struct batch {
  struct communicator *c;
  uint64_t number;
  int n;
  struct work works[];
};

static _Thread_local int depth, queued, room;
static _Thread_local struct queued { struct communicator *c; struct work work; } *queue;
static _Thread_local result group_failed;

void open_group(void) { depth++; }

// run_batch is a batch's turn on its stream. After a failure NCCL's kernel would not end; here
// streams go on.
static void run_batch(void *data) {
  struct batch *b = data;
  struct communicator *c = b->c;
  pthread_mutex_lock(&lock);
  c->running++;
  while (c->done != b->number && !c->seat.aborted) pthread_cond_wait(&changed, &lock);
  int runs = !c->seat.aborted && !c->failure;
  pthread_mutex_unlock(&lock);
  result r = runs ? run_works(&c->seat, b->works, b->n) : SUCCESS;
  if (r) meeting_fail(c->seat.meeting, REMOTE_FAILED);
  pthread_mutex_lock(&lock);
  if (r && !c->failure) c->failure = r;
  c->done++;
  c->running--;
  drop(c);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  free(b);
}

// batch_launch puts a batch into its stream. With FSDP_DOUBLE_NCCL_CONNECT every launch waits for
// all ranks, as NCCL does when it has to connect them.
static result batch_launch(struct task *t) {
  struct batch *b = t->batch;
  struct communicator *c = t->c;
  result r = getenv("FSDP_DOUBLE_NCCL_CONNECT") ? meeting_barrier(&c->seat, CALLS) : SUCCESS;
  if (!r) {
    pthread_mutex_lock(&lock);
    b->number = c->issued++;
    c->references++;
    pthread_mutex_unlock(&lock);
    int cuda = driver.host(b->works[0].stream, run_batch, b);
    if (!cuda) return SUCCESS;
    r = fail(CUDA_FAILED, "cuLaunchHostFunc: CUDA error %d", cuda);
    pthread_mutex_lock(&lock);
    c->issued--;
    c->references--;
    pthread_mutex_unlock(&lock);
  }
  free(b);
  return r;
}

// flush ends the outermost group: one batch for every communicator, in the order of their first
// operations.
static result flush(void) {
  result r = group_failed;
  int n = queued, in_progress = 0;
  group_failed = SUCCESS;
  queued = 0;
  for (int i = 0; i < n; i++) {
    struct communicator *c = queue[i].c;
    if (!c) continue;
    struct batch *b = malloc(sizeof *b + (size_t)n * sizeof *b->works);
    b->c = c;
    b->n = 0;
    for (int j = i; j < n; j++) {
      if (queue[j].c != c) continue;
      if (queue[j].work.stream != queue[i].work.stream && !r) r = misuse(INVALID_USAGE, "a group of several streams is beyond the double", "ncclGroupEnd");
      b->works[b->n++] = queue[j].work;
      queue[j].c = NULL;
      if (j > i) put(c, SUCCESS);
    }
    if (!r) r = again(c, "ncclGroupEnd");
    if (r) {
      free(b);
      put(c, r);
      continue;
    }
    r = task_start((struct task){.c = c, .run = batch_launch, .batch = b});
    if (r != IN_PROGRESS) continue;
    in_progress = 1;
    r = SUCCESS;
  }
  return r || !in_progress ? r : IN_PROGRESS;
}

EXPORT result ncclGroupStart(void) {
  result r = enter("ncclGroupStart");
  if (!r) depth++;
  return r;
}

EXPORT result ncclGroupEnd(void) {
  if (!depth) return misuse(INVALID_USAGE, "not in a group call", "ncclGroupEnd");
  if (--depth) return SUCCESS;
  result injected = enter("ncclGroupEnd");
  if (injected && !group_failed) group_failed = injected;
  return flush();
}

// --- Collectives.

// overlap refuses buffers that overlap otherwise than in place.
static result overlap(const struct communicator *c, const char *function, const struct work *w, uint64_t send, uint64_t recv) {
  if (!send || !recv || w->send + send <= w->recv || w->recv + recv <= w->send) return SUCCESS;
  uint64_t part = w->post.count * type_size(w->post.type) * (uint64_t)c->seat.rank;
  int in_place = w->post.kind == ALL_GATHER ? w->send == w->recv + part : w->post.kind == REDUCE_SCATTER ? w->recv == w->send + part : w->send == w->recv;
  return in_place ? SUCCESS : misuse(INVALID_ARGUMENT, "the buffers overlap", function);
}

static result reduction(const char *function, const struct post *p) {
  if (p->type > BFLOAT16) return fail(INVALID_ARGUMENT, "%s: reductions of 8-bit floats need compute capability 9.0", function);
  if (p->op < 0 || p->op > AVG) return fail(INVALID_ARGUMENT, "%s: reduction operation %d unknown to this communicator", function, p->op);
  return SUCCESS;
}

static result check(struct communicator *c, const char *function, struct work *w) {
  struct post *p = &w->post;
  uint64_t send, recv;
  if (c->failure) return fail(c->failure, "%s: the communicator has failed", function);
  if (c->finalized) return misuse(INVALID_USAGE, "the communicator is finalized", function);
  if (!type_size(p->type)) return fail(INVALID_ARGUMENT, "%s: invalid type %d", function, p->type);
  if (p->root < 0 || p->root >= c->seat.size) return fail(INVALID_ARGUMENT, "%s: invalid root %d (root should be in the 0..%d range)", function, p->root, c->seat.size);
  result r = p->kind == REDUCE_SCATTER || p->kind == ALL_REDUCE || p->kind == REDUCE ? reduction(function, p) : SUCCESS;
  spans(p, c->seat.rank, c->seat.size, &send, &recv);
  if (!r) r = check_buffer(c, function, "sendbuff", w->send, send);
  if (!r) r = check_buffer(c, function, "recvbuff", w->recv, recv);
  return r ? r : overlap(c, function, w, send, recv);
}

static result enqueue(const char *function, uintptr_t comm, struct post post, const void *send, void *recv, void *stream) {
  struct communicator *c;
  result r = ready(comm, function, &c);
  if (!r) {
    struct work w = {(uintptr_t)stream, post, (uint64_t)send, (uint64_t)recv};
    if ((r = check(c, function, &w))) {
      leave(c, r);
    } else {
      stay(c);
      if (queued == room) queue = realloc(queue, (size_t)(room = room * 2 + 8) * sizeof *queue);
      queue[queued++] = (struct queued){c, w};
    }
  }
  if (r && !group_failed && depth) group_failed = r;
  return r || depth ? r : flush();
}

EXPORT result ncclAllGather(const void *send, void *recv, size_t n, int type, uintptr_t c, void *stream) {
  return enqueue("ncclAllGather", c, (struct post){ALL_GATHER, type, 0, 0, n, 0}, send, recv, stream);
}

EXPORT result ncclReduceScatter(const void *send, void *recv, size_t n, int type, int op, uintptr_t c, void *stream) {
  return enqueue("ncclReduceScatter", c, (struct post){REDUCE_SCATTER, type, op, 0, n, 0}, send, recv, stream);
}

EXPORT result ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, uintptr_t c, void *stream) {
  return enqueue("ncclAllReduce", c, (struct post){ALL_REDUCE, type, op, 0, n, 0}, send, recv, stream);
}

EXPORT result ncclBroadcast(const void *send, void *recv, size_t n, int type, int root, uintptr_t c, void *stream) {
  return enqueue("ncclBroadcast", c, (struct post){BROADCAST, type, 0, root, n, 0}, send, recv, stream);
}

EXPORT result ncclReduce(const void *send, void *recv, size_t n, int type, int op, int root, uintptr_t c, void *stream) {
  return enqueue("ncclReduce", c, (struct post){REDUCE, type, op, root, n, 0}, send, recv, stream);
}

EXPORT result ncclSend(const void *send, size_t n, int type, int peer, uintptr_t c, void *stream) {
  return enqueue("ncclSend", c, (struct post){SEND, type, 0, peer, n, 0}, send, NULL, stream);
}

EXPORT result ncclRecv(void *recv, size_t n, int type, int peer, uintptr_t c, void *stream) {
  return enqueue("ncclRecv", c, (struct post){RECV, type, 0, peer, n, 0}, NULL, recv, stream);
}
