//go:build ignore

// The life of a communicator: made, split, finalized, destroyed or aborted.
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "communicator.h"
#include "group.h"

// ncclConfig_t, as far as the double looks at it.
struct config {
  size_t size;
  unsigned magic, version;
  int blocking, cluster, least, most; // cgaClusterSize, minCTAs, maxCTAs
  const char *net;
  int share, traffic;
  const char *name; // from 2.27 on; the version of the struct has to say so
};

typedef struct { char internal[128]; } unique_id;
// A unique id has the name of a meeting, and a pattern to the end: it shows whether the bytes came
// by value.
static char pattern(int i) { return (char)(i * 37 + 11); }

EXPORT result ncclGetUniqueId(unique_id *id) {
  static int serial;
  struct meeting *m;
  result r = enter("ncclGetUniqueId");
  if (r) return r;
  for (int i = 0; i < 128; i++) id->internal[i] = pattern(i);
  snprintf(id->internal, 64, "double %d-%d", getpid(), __atomic_add_fetch(&serial, 1, __ATOMIC_SEQ_CST));
  if (!(r = meeting_make(id->internal + 7, &m))) meeting_forget(m);
  return r;
}

static result valid_id(const unique_id *id) {
  int whole = !memcmp(id->internal, "double ", 7) && memchr(id->internal, 0, 64);
  for (int i = 64; i < 128; i++) whole = whole && id->internal[i] == pattern(i);
  return whole ? SUCCESS : misuse(INVALID_ARGUMENT, "the unique id is corrupted (was it passed by value?)", "ncclCommInitRankConfig");
}

// chosen tells whether a value is not left to NCCL.
static int chosen(int v) { return v != INT_MIN; }

// check_config refuses what NCCL refuses.
static result check_config(const struct config *g) {
  const char *wrong = NULL;
  if (g->magic != 0xcafebeef)
    wrong = "the configuration was not initialized: wrong magic";
  else if (g->size < sizeof *g || g->size > 4096 || g->version < 22703)
    wrong = "the configuration is not one of NCCL 2.27 or newer";
  else if (chosen(g->blocking) && g->blocking != 0 && g->blocking != 1)
    wrong = "blocking is neither 0 nor 1";
  else if (chosen(g->cluster) && (g->cluster < 0 || g->cluster > 8))
    wrong = "cgaClusterSize is not in 0..8";
  else if ((chosen(g->least) && g->least <= 0) || (chosen(g->most) && (g->most <= 0 || g->least > g->most)))
    wrong = "minCTAs and maxCTAs are no range";
  else if (chosen(g->share) && g->share != 0 && g->share != 1)
    wrong = "splitShare is neither 0 nor 1";
  else if (chosen(g->traffic))
    wrong = "there are no traffic classes";
  else if (g->net && strcmp(g->net, "Socket"))
    wrong = "there is no network plugin but Socket";
  return wrong ? fail(INVALID_ARGUMENT, "ncclConfig_t: %s", wrong) : SUCCESS;
}

// communicator_new makes a communicator of the current device as a configuration wants it.
static result communicator_new(const struct config *g, struct communicator **made) {
  result r = g ? check_config(g) : SUCCESS;
  if (r) return r;
  struct communicator *c = calloc(1, sizeof *c);
  c->blocking = !g || g->blocking != 0;
  c->calls = c->entered = 1; // the one that makes it
  if (g && g->name) {
    c->config_name = g->name; // NCCL keeps the pointer
    snprintf(c->config_name_then, sizeof c->config_name_then, "%s", g->name);
  }
  driver.device(&c->seat.device);
  driver.current(&c->context);
  if (g && chosen(g->most)) double_count("CTAs", g->most); // of all communicators ever made
  const char *algorithms = getenv("NCCL_ALGO");
  if (!algorithms || strcasecmp(algorithms, "^NVLS,NVLSTree")) double_count("NVLS", 1);
  *made = c;
  return SUCCESS;
}

static result init_run(struct task *t) {
  struct communicator *c = t->c;
  result r = meeting_find(c->seat.name, &c->seat.meeting);
  return r ? r : meeting_join(&c->seat, getenv("NCCL_MULTI_RANK_GPU_ENABLE") != NULL);
}

EXPORT result ncclCommInitRankConfig(uintptr_t *out, int n, unique_id id, int rank, struct config *config) {
  struct communicator *c;
  *out = 0;
  result r = enter("ncclCommInitRankConfig");
  if (r || (r = find_driver()) || (r = valid_id(&id))) return r;
  uintptr_t context = 0;
  driver.current(&context);
  if (!context) {
    open_group(); // as NCCL 2.27 to 2.30 do
    return misuse(CUDA_FAILED, "no current context", "ncclCommInitRankConfig");
  }
  if (n < 1 || n > MAX_RANKS || rank < 0 || rank >= n) return fail(INVALID_ARGUMENT, "Invalid rank requested : %d/%d", rank, n);
  if ((r = communicator_new(config, &c))) return r;
  snprintf(c->seat.name, sizeof c->seat.name, "%.64s", id.internal + 7);
  c->seat.size = n;
  c->seat.rank = rank;
  *out = communicator_add(c); // also if it fails now
  return task_start((struct task){.c = c, .run = init_run});
}

#if NCCL_DOUBLE_VERSION >= 21801
// split_place finds the rank of a child among those of the same color. It returns whether that is
// rank 0.
static int split_place(struct task *t) {
  const struct communicator *p = t->c;
  struct communicator *c = t->child;
  for (int i = 0; i < p->seat.size; i++) {
    int color = p->seat.meeting->ranks[i].color, key = p->seat.meeting->ranks[i].key;
    if (color != t->color) continue;
    c->seat.size++;
    c->seat.rank += key < t->key || (key == t->key && i < p->seat.rank);
  }
  snprintf(c->seat.name, sizeof c->seat.name, "%.64s-%d-%d", p->seat.name, p->splits, t->color);
  return c->seat.rank == 0;
}

static result split_run(struct task *t) {
  struct communicator *p = t->c, *c = t->child;
  struct meeting *m = p->seat.meeting;
  m->ranks[p->seat.rank].color = t->color;
  m->ranks[p->seat.rank].key = t->key;
  p->splits++;
  result made = SUCCESS, r = meeting_barrier(&p->seat, CALLS);
  if (!r && split_place(t) && t->color >= 0) {
    made = meeting_make(c->seat.name, &c->seat.meeting);
    if (made) meeting_fail(m, made);
  }
  if (!r) r = made ? made : meeting_barrier(&p->seat, CALLS);
  if (!r && t->color >= 0 && !c->seat.meeting) r = meeting_find(c->seat.name, &c->seat.meeting);
  if (!r && t->color >= 0) r = meeting_join(&c->seat, 1);
  if (r || t->color < 0) {
    meeting_forget(c->seat.meeting);
    free(c);
    return r;
  }
  *t->out = communicator_add(c);
  return leave(c, SUCCESS);
}

EXPORT result ncclCommSplit(uintptr_t comm, int color, int key, uintptr_t *out, struct config *config) {
  struct communicator *c, *child;
  result r = ready(comm, "ncclCommSplit", &c);
  if (r) return r;
  *out = 0;
  if (c->failure) return leave(c, fail(c->failure, "ncclCommSplit: the communicator has failed"));
  if (color < -1) return leave(c, fail(INVALID_ARGUMENT, "ncclCommSplit: invalid color %d", color));
  if ((r = communicator_new(config, &child))) return leave(c, r);
  return task_start((struct task){.c = c, .run = split_run, .child = child, .out = out, .color = color, .key = key});
}
#endif

EXPORT result ncclCommGetAsyncError(uintptr_t comm, result *state) {
  result r = enter("ncclCommGetAsyncError");
  struct communicator *c = r ? NULL : get(comm, "ncclCommGetAsyncError");
  if (!c) return r ? r : INVALID_ARGUMENT;
  pthread_mutex_lock(&lock);
  *state = c->failure ? c->failure : c->in_progress ? IN_PROGRESS : SUCCESS;
  pthread_mutex_unlock(&lock);
  return put(c, SUCCESS);
}

EXPORT result ncclCommCount(uintptr_t comm, int *n) {
  struct communicator *c;
  result r = ready(comm, "ncclCommCount", &c);
  if (!r) leave(c, *n = c->seat.size);
  return r;
}

EXPORT result ncclCommUserRank(uintptr_t comm, int *rank) {
  struct communicator *c;
  result r = ready(comm, "ncclCommUserRank", &c);
  if (!r) leave(c, *rank = c->seat.rank);
  return r;
}

// drain waits for what is in streams.
static result drain(struct communicator *c) {
  pthread_mutex_lock(&lock);
  while (c->done < c->issued && !c->seat.aborted) pthread_cond_wait(&changed, &lock);
  result r = c->seat.aborted ? fail(REMOTE_FAILED, "aborted") : c->failure;
  pthread_mutex_unlock(&lock);
  return r;
}

static result finalize_run(struct task *t) {
  t->c->finalized = 1;
  return drain(t->c);
}

EXPORT result ncclCommFinalize(uintptr_t comm) {
  struct communicator *c;
  result r = ready(comm, "ncclCommFinalize", &c);
  if (r) return r;
  if (c->finalized) return leave(c, misuse(INVALID_USAGE, "the communicator is finalized already", "ncclCommFinalize"));
  return task_start((struct task){.c = c, .run = finalize_run});
}

// end takes a communicator's handle away. Calls have ended, and nothing of it runs any more.
static result end(uintptr_t comm, struct communicator *c) {
  if (c->config_name && strncmp(c->config_name, c->config_name_then, sizeof c->config_name_then - 1))
    double_misuse("the name of a communicator was freed or changed before the communicator");
  pthread_mutex_lock(&lock);
  communicator_remove(comm);
  while (c->calls > 1 || c->running) pthread_cond_wait(&changed, &lock);
  drop(c);
  pthread_mutex_unlock(&lock);
  double_count("communicator", -1);
  return SUCCESS;
}

EXPORT result ncclCommDestroy(uintptr_t comm) {
  struct communicator *c;
  result r = ready(comm, "ncclCommDestroy", &c);
  if (r) return r;
  if (c->failure) {
    open_group();
    return leave(c, misuse(c->failure, "the communicator has failed: a group stays open on this thread", "ncclCommDestroy"));
  }
  drain(c);
  return end(comm, c);
}

EXPORT result ncclCommAbort(uintptr_t comm) {
  result r = enter("ncclCommAbort");
  struct communicator *c = get(comm, "ncclCommAbort");
  if (!c) return r ? r : INVALID_ARGUMENT;
  pthread_mutex_lock(&lock);
  __atomic_store_n(&c->seat.aborted, 1, __ATOMIC_SEQ_CST);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  if (c->seat.meeting) meeting_fail(c->seat.meeting, REMOTE_FAILED);
  end(comm, c);
  return r;
}
