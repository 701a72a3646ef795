//go:build ignore

// A double of libnccl.so.2 that computes on the host what NCCL computes on devices of the double of libcuda. Ranks may be
// threads or processes of one host (meeting.c). Collectives run on the streams they are given, in their order. It is
// stricter than NCCL: ranks that disagree, buffers that are too short, freed or not on the device, calls without the right
// current context, and communicators that are gone or still in progress are refused and reported, where NCCL would hang,
// crash, or compute something else.
//
// It knows NCCL_HOSTID and NCCL_MULTI_RANK_GPU_ENABLE, which let ranks share a device. -DNCCL_DOUBLE_VERSION=21805 makes it an
// older one, without the functions that came later. FSDP_DOUBLE_NCCL_TIMEOUT_MS is when it gives up where NCCL would wait for
// ever, 30 s if not set; with FSDP_DOUBLE_NCCL_CONNECT every launch waits for all ranks, as NCCL's do that have to connect
// them. It counts what lives as "communicator", "operator", "registrable memory" and "registration".
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
typedef uintptr_t handle;

struct driver driver;

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

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

// --- Communicators by handle.

static struct communicator **communicators;
static handle handles = 1;
static const handle mark = (handle)0x4EC << 48;

static handle communicator_add(struct communicator *c) {
  pthread_mutex_lock(&lock);
  if (handles % 256 == 1) communicators = realloc(communicators, (handles + 256) * sizeof *communicators);
  handle h = handles++;
  communicators[h] = c;
  c->references = 1;
  pthread_mutex_unlock(&lock);
  double_count("communicator", 1);
  return mark | h;
}

// get returns the communicator of a handle for the time of a call, or NULL. What it returns is given back by put.
static struct communicator *get(handle h, const char *function) {
  pthread_mutex_lock(&lock);
  handle i = h & ~mark;
  struct communicator *c = (h & mark) == mark && i && i < handles ? communicators[i] : NULL;
  if (c) c->calls++;
  pthread_mutex_unlock(&lock);
  if (!c) misuse(INVALID_ARGUMENT, h ? "corrupted comm object detected: there is no such communicator (any more)" : "comm argument is NULL", function);
  return c;
}

result put(struct communicator *c, result r) {
  pthread_mutex_lock(&lock);
  c->calls--;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return r;
}

void stay(struct communicator *c) {
  pthread_mutex_lock(&lock);
  c->entered--;
  pthread_mutex_unlock(&lock);
}

result leave(struct communicator *c, result r) {
  stay(c);
  return put(c, r);
}

void drop(struct communicator *c) {
  if (--c->references) return;
  meeting_forget(c->meeting);
  free(c);
}

// in_context checks that the context of a device is current. NCCL would take the device 0 of a thread without one.
static result in_context(const struct communicator *c, const char *function) {
  uintptr_t context = 0;
  driver.current(&context);
  if (!context) return misuse(INVALID_USAGE, "no current context", function);
  return context == c->context ? SUCCESS : misuse(INVALID_USAGE, "the current context is another device's", function);
}

result again(struct communicator *c, const char *function) {
  pthread_mutex_lock(&lock);
  int entered = c->entered++, in_progress = c->in_progress;
  pthread_mutex_unlock(&lock);
  result r = SUCCESS;
  if (entered) r = misuse(INVALID_USAGE, "the communicator is in use by two threads at once", function);
  if (in_progress && !r) r = misuse(INVALID_USAGE, "the last call is still in progress", function);
  if (!r) r = in_context(c, function);
  if (r) stay(c);
  return r;
}

result ready(handle h, const char *function, struct communicator **c) {
  result r = enter(function);
  if (r) return r;
  if (!(*c = get(h, function))) return INVALID_ARGUMENT;
  r = again(*c, function);
  return r ? put(*c, r) : SUCCESS;
}

// task_end keeps what a task has failed with, but for a wrong argument that the caller is told of: NCCL promises that it has
// no effect.
static result task_end(struct communicator *c, result r) {
  pthread_mutex_lock(&lock);
  if (r && (r != INVALID_ARGUMENT || !c->blocking) && !c->failure) c->failure = r;
  c->in_progress = 0;
  pthread_mutex_unlock(&lock);
  return put(c, r);
}

static void *task_thread(void *data) {
  struct task *t = data;
  driver.set_current(t->c->context);
  task_end(t->c, t->run(t));
  free(t);
  return NULL;
}

result task_start(struct task task) {
  struct communicator *c = task.c;
  if (c->blocking) {
    result r = task.run(&task);
    stay(c);
    return task_end(c, r);
  }
  pthread_mutex_lock(&lock);
  c->in_progress = 1;
  c->entered--;
  pthread_mutex_unlock(&lock);
  struct task *t = malloc(sizeof *t);
  *t = task;
  pthread_t thread;
  pthread_create(&thread, NULL, task_thread, t);
  pthread_detach(thread);
  return IN_PROGRESS;
}

// --- The life of a communicator.

// find_driver looks the driver's functions up, in the libcuda that the process has loaded.
static result find_driver(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!cuda) return fail(CUDA_FAILED, "libcuda.so.1 is not loaded");
#define FIND(field, name) *(void **)&driver.field = dlsym(cuda, name)
  FIND(current, "cuCtxGetCurrent");
  FIND(set_current, "cuCtxSetCurrent");
  FIND(device, "cuCtxGetDevice");
  FIND(host, "cuLaunchHostFunc");
  FIND(alloc, "cuMemAlloc_v2");
  FIND(free, "cuMemFree_v2");
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

EXPORT const char *ncclGetLastError(handle c) { return last_error; }

// A unique id has the name of a meeting, and a pattern to the end: it shows whether the bytes came by value.
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
  driver.device(&c->device);
  driver.current(&c->context);
  *made = c;
  return SUCCESS;
}

static result init_run(struct task *t) {
  struct communicator *c = t->c;
  result r = meeting_find(c->name, &c->meeting);
  return r ? r : meeting_join(c, getenv("NCCL_MULTI_RANK_GPU_ENABLE") != NULL);
}

EXPORT result ncclCommInitRankConfig(handle *out, int n, unique_id id, int rank, struct config *config) {
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
  snprintf(c->name, sizeof c->name, "%.64s", id.internal + 7);
  c->size = n;
  c->rank = rank;
  *out = communicator_add(c); // also if it fails now
  return task_start((struct task){.c = c, .run = init_run});
}

#if NCCL_DOUBLE_VERSION >= 21801
// split_place finds the rank of a child among those of the same color. It returns whether that is rank 0.
static int split_place(struct task *t) {
  const struct communicator *p = t->c;
  struct communicator *c = t->child;
  for (int i = 0; i < p->size; i++) {
    int color = p->meeting->ranks[i].color, key = p->meeting->ranks[i].key;
    if (color != t->color) continue;
    c->size++;
    c->rank += key < t->key || (key == t->key && i < p->rank);
  }
  snprintf(c->name, sizeof c->name, "%.64s-%d-%d", p->name, p->splits, t->color);
  return c->rank == 0;
}

static result split_run(struct task *t) {
  struct communicator *p = t->c, *c = t->child;
  struct meeting *m = p->meeting;
  m->ranks[p->rank].color = t->color;
  m->ranks[p->rank].key = t->key;
  p->splits++;
  result made = SUCCESS, r = meeting_barrier(p, CALLS);
  if (!r && split_place(t) && t->color >= 0) {
    made = meeting_make(c->name, &c->meeting);
    if (made) meeting_fail(m, made);
  }
  if (!r) r = made ? made : meeting_barrier(p, CALLS);
  if (!r && t->color >= 0 && !c->meeting) r = meeting_find(c->name, &c->meeting);
  if (!r && t->color >= 0) r = meeting_join(c, 1);
  if (r || t->color < 0) {
    meeting_forget(c->meeting);
    free(c);
    return r;
  }
  *t->out = communicator_add(c);
  return leave(c, SUCCESS);
}

EXPORT result ncclCommSplit(handle comm, int color, int key, handle *out, struct config *config) {
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

EXPORT result ncclCommGetAsyncError(handle comm, result *state) {
  result r = enter("ncclCommGetAsyncError");
  struct communicator *c = r ? NULL : get(comm, "ncclCommGetAsyncError");
  if (!c) return r ? r : INVALID_ARGUMENT;
  pthread_mutex_lock(&lock);
  *state = c->failure ? c->failure : c->in_progress ? IN_PROGRESS : SUCCESS;
  pthread_mutex_unlock(&lock);
  return put(c, SUCCESS);
}

EXPORT result ncclCommCount(handle comm, int *n) {
  struct communicator *c;
  result r = ready(comm, "ncclCommCount", &c);
  if (!r) leave(c, *n = c->size);
  return r;
}

EXPORT result ncclCommUserRank(handle comm, int *rank) {
  struct communicator *c;
  result r = ready(comm, "ncclCommUserRank", &c);
  if (!r) leave(c, *rank = c->rank);
  return r;
}

// drain waits for what is in streams.
static result drain(struct communicator *c) {
  pthread_mutex_lock(&lock);
  while (c->done < c->issued && !c->aborted) pthread_cond_wait(&changed, &lock);
  result r = c->aborted ? fail(REMOTE_FAILED, "aborted") : c->failure;
  pthread_mutex_unlock(&lock);
  return r;
}

static result finalize_run(struct task *t) {
  t->c->finalized = 1;
  return drain(t->c);
}

EXPORT result ncclCommFinalize(handle comm) {
  struct communicator *c;
  result r = ready(comm, "ncclCommFinalize", &c);
  if (r) return r;
  if (c->finalized) return leave(c, misuse(INVALID_USAGE, "the communicator is finalized already", "ncclCommFinalize"));
  return task_start((struct task){.c = c, .run = finalize_run});
}

// end takes a communicator's handle away. Calls have ended, and nothing of it runs any more.
static result end(handle comm, struct communicator *c) {
  if (c->config_name && strncmp(c->config_name, c->config_name_then, sizeof c->config_name_then - 1))
    double_misuse("the name of a communicator was freed or changed before the communicator");
  pthread_mutex_lock(&lock);
  communicators[comm & ~mark] = NULL;
  while (c->calls > 1 || c->running) pthread_cond_wait(&changed, &lock);
  for (int i = 0; i < SCALARS; i++)
    if (c->scalars[i].used) double_count("operator", -1);
  drop(c);
  pthread_mutex_unlock(&lock);
  double_count("communicator", -1);
  return SUCCESS;
}

EXPORT result ncclCommDestroy(handle comm) {
  struct communicator *c;
  result r = ready(comm, "ncclCommDestroy", &c);
  if (r) return r;
  if (c->failure) {
    open_group(); // X
    return leave(c, misuse(c->failure, "the communicator has failed: a group stays open on this thread", "ncclCommDestroy"));
  }
  drain(c);
  return end(comm, c);
}

EXPORT result ncclCommAbort(handle comm) {
  result r = enter("ncclCommAbort");
  struct communicator *c = get(comm, "ncclCommAbort");
  if (!c) return r ? r : INVALID_ARGUMENT;
  pthread_mutex_lock(&lock);
  __atomic_store_n(&c->aborted, 1, __ATOMIC_SEQ_CST);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  if (c->meeting) meeting_fail(c->meeting, REMOTE_FAILED);
  end(comm, c);
  return r;
}

// --- Operators and memory.

EXPORT result ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, handle comm) {
  struct communicator *c;
  result r = ready(comm, "ncclRedOpCreatePreMulSum", &c);
  if (r) return r;
  if (residence != 1 || !type_size(type) || type > BFLOAT16) return leave(c, fail(INVALID_ARGUMENT, "ncclRedOpCreatePreMulSum: residence %d, type %d", residence, type));
  for (int i = 0; i < SCALARS; i++) {
    if (c->scalars[i].used) continue;
    c->scalars[i].used = 1;
    c->scalars[i].type = type;
    memcpy(&c->scalars[i].scalar, scalar, type_size(type));
    double_count("operator", 1);
    *op = PREMUL + i;
    return leave(c, SUCCESS);
  }
  return leave(c, fail(INTERNAL_FAILED, "ncclRedOpCreatePreMulSum: the double has no more than %d operators", SCALARS));
}

EXPORT result ncclRedOpDestroy(int op, handle comm) {
  struct communicator *c;
  result r = ready(comm, "ncclRedOpDestroy", &c);
  if (r) return r;
  int i = op - PREMUL;
  if (i < 0 || i >= SCALARS || !c->scalars[i].used) return leave(c, fail(INVALID_ARGUMENT, "ncclRedOpDestroy: operator unknown to this communicator."));
  c->scalars[i].used = 0;
  double_count("operator", -1);
  return leave(c, SUCCESS);
}

#if NCCL_DOUBLE_VERSION >= 21901
EXPORT result ncclMemAlloc(void **address, size_t n) {
  uint64_t p;
  result r = enter("ncclMemAlloc");
  if (r || (r = find_driver())) return r;
  int cuda = driver.alloc(&p, n);
  if (cuda) return fail(CUDA_FAILED, "ncclMemAlloc: CUDA error %d", cuda);
  *address = (void *)p;
  double_count("registrable memory", 1);
  return SUCCESS;
}

EXPORT result ncclMemFree(void *address) {
  result r = enter("ncclMemFree");
  if (r || (r = find_driver())) return r;
  if (driver.free((uint64_t)address)) return fail(INVALID_ARGUMENT, "ncclMemFree: %p was not allocated", address);
  double_count("registrable memory", -1);
  return SUCCESS;
}

EXPORT result ncclCommRegister(handle comm, void *address, size_t n, void **registration) {
  struct communicator *c;
  result r = ready(comm, "ncclCommRegister", &c);
  if (r) return r;
  if ((r = check_buffer(c, "ncclCommRegister", "buff", (uint64_t)address, n))) return leave(c, r);
  *registration = address;
  double_count("registration", 1);
  return leave(c, SUCCESS);
}

EXPORT result ncclCommDeregister(handle comm, void *registration) {
  struct communicator *c;
  result r = ready(comm, "ncclCommDeregister", &c);
  if (r) return r;
  double_count("registration", -1);
  return leave(c, SUCCESS);
}
#endif
