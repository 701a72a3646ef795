//go:build ignore

// How ranks meet, wait for each other, and run collectives: threads of one process or several processes of a host.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// Where NCCL would wait for ever the double gives up, so that tests end: after FSDP_DOUBLE_NCCL_TIMEOUT_MS or 30 s.
double deadline(void) {
  const char *ms = getenv("FSDP_DOUBLE_NCCL_TIMEOUT_MS");
  return now() + (ms ? atof(ms) / 1e3 : 30);
}

// path_of writes the path of the memory of a meeting: in the directory of this library, which tests remove as a whole.
static void path_of(const char *name, char *path, size_t size) {
  Dl_info self;
  dladdr((void *)path_of, &self);
  const char *slash = strrchr(self.dli_fname, '/');
  int length = slash ? (int)(slash - self.dli_fname) : 1;
  snprintf(path, size, "%.*s/meeting-%s", length, slash ? self.dli_fname : ".", name);
}

static result meeting_open(const char *name, int flags, struct meeting **m) {
  char path[4096];
  path_of(name, path, sizeof path);
  int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd < 0 || (flags && ftruncate(fd, sizeof **m))) return fail(SYSTEM_FAILED, "%s: %s", path, strerror(errno));
  *m = mmap(NULL, sizeof **m, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (*m == MAP_FAILED) return *m = NULL, fail(SYSTEM_FAILED, "%s: %s", path, strerror(errno));
  return SUCCESS;
}

result meeting_make(const char *name, struct meeting **m) {
  result r = meeting_open(name, O_CREAT | O_EXCL, m);
  if (r) return r;
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
  return pthread_mutex_init(&(*m)->lock, &a) ? fail(SYSTEM_FAILED, "pthread_mutex_init") : SUCCESS;
}

result meeting_find(const char *name, struct meeting **m) { return meeting_open(name, 0, m); }

void meeting_forget(struct meeting *m) {
  if (m) munmap(m, sizeof *m);
}

void meeting_lock(struct meeting *m) {
  if (pthread_mutex_lock(&m->lock) == EOWNERDEAD) pthread_mutex_consistent(&m->lock);
}

void meeting_unlock(struct meeting *m) { pthread_mutex_unlock(&m->lock); }

void meeting_changed(struct meeting *m) {
  __atomic_add_fetch(&m->changes, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &m->changes, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

void meeting_fail(struct meeting *m, result r) {
  meeting_lock(m);
  if (!m->failed) m->failed = r;
  meeting_changed(m);
  meeting_unlock(m);
}

// lost looks for a rank whose process is gone. It is called with the lock held.
static int lost(struct meeting *m) {
  for (int i = 0; i < m->size; i++)
    if (m->ranks[i].present && kill(m->ranks[i].process, 0) && errno == ESRCH) return i;
  return -1;
}

result meeting_await(struct communicator *c, double deadline) {
  struct meeting *m = c->meeting;
  if (__atomic_load_n(&c->aborted, __ATOMIC_SEQ_CST)) return fail(REMOTE_FAILED, "rank %d: aborted", c->rank);
  if (m->failed) return fail(m->failed, "rank %d: another rank has failed", c->rank);
  int gone = lost(m);
  if (gone >= 0) {
    m->failed = REMOTE_FAILED;
    meeting_changed(m);
    return fail(REMOTE_FAILED, "rank %d: the process of rank %d is gone", c->rank, gone);
  }
  if (now() > deadline) {
    double_misuse("rank %d has waited for the others in vain", c->rank);
    m->failed = REMOTE_FAILED;
    meeting_changed(m);
    return fail(TIMED_OUT, "rank %d: waited for the others in vain", c->rank);
  }
  uint32_t seen = m->changes;
  meeting_unlock(m);
  struct timespec t = {.tv_nsec = 5000000};
  syscall(SYS_futex, &m->changes, FUTEX_WAIT, seen, &t, NULL, 0);
  meeting_lock(m);
  return SUCCESS;
}

result meeting_barrier(struct communicator *c, enum barrier which) {
  struct meeting *m = c->meeting;
  result r = SUCCESS;
  double end = deadline();
  meeting_lock(m);
  uint64_t round = m->barriers[which].round;
  if (++m->barriers[which].waiting == m->size) {
    m->barriers[which].waiting = 0;
    m->barriers[which].round++;
    meeting_changed(m);
  }
  while (!r && m->barriers[which].round == round) r = meeting_await(c, end);
  meeting_unlock(m);
  return r;
}

// place puts c among the ranks, with the lock held.
static result place(struct communicator *c, int duplicates) {
  struct meeting *m = c->meeting;
  const char *host = getenv("NCCL_HOSTID");
  if (m->size && m->size != c->size)
    return fail(INVALID_ARGUMENT, "rank %d says that there are %d ranks, others say %d", c->rank, c->size, m->size);
  if (m->ranks[c->rank].present) return fail(INVALID_USAGE, "there are two ranks %d", c->rank);
  if (!host) host = "";
  for (int i = 0; i < c->size && !duplicates; i++)
    if (m->ranks[i].present && m->ranks[i].device == c->device && !strcmp(m->ranks[i].host, host))
      return fail(INVALID_USAGE, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", c->rank, i, c->device);
  m->size = c->size;
  m->joined++;
  m->ranks[c->rank].present = 1;
  m->ranks[c->rank].device = c->device;
  m->ranks[c->rank].process = getpid();
  snprintf(m->ranks[c->rank].host, sizeof m->ranks->host, "%s", host);
  return SUCCESS;
}

result meeting_join(struct communicator *c, int duplicates) {
  struct meeting *m = c->meeting;
  double end = deadline();
  meeting_lock(m);
  result r = place(c, duplicates);
  if (r && !m->failed) m->failed = r;
  meeting_changed(m);
  if (m->joined == m->size) {
    char path[4096];
    path_of(c->name, path, sizeof path);
    unlink(path);
  }
  while (!r && m->joined < m->size) r = meeting_await(c, end);
  meeting_unlock(m);
  return r;
}

void spans(const struct post *p, int rank, int ranks, uint64_t *send, uint64_t *recv) {
  uint64_t bytes = p->count * type_size(p->type), all = bytes * (uint64_t)ranks;
  int root = rank == p->root;
  *send = p->kind == REDUCE_SCATTER ? all : p->kind == RECV || (p->kind == BROADCAST && !root) ? 0 : bytes;
  *recv = p->kind == ALL_GATHER ? all : p->kind == SEND || (p->kind == REDUCE && !root) ? 0 : bytes;
}

static const char *const names[] = {
    "ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast", "ncclReduce", "ncclSend", "ncclRecv"};

static void describe(const struct post *p, char *text, size_t size) {
  snprintf(text, size, "%s(count %llu, type %d, op %d, root %d)", names[p->kind], (unsigned long long)p->count, p->type, p->op, p->root);
}

// agree compares what the ranks do. NCCL would hang, or mix up data.
static result agree(struct communicator *c, const struct post *mine) {
  struct meeting *m = c->meeting;
  m->posts[c->rank] = *mine;
  result r = meeting_barrier(c, STREAMS);
  const struct post *a = &m->posts[0];
  for (int i = 1; i < c->size && !r; i++) {
    const struct post *b = &m->posts[i];
    if (a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root && a->count == b->count) continue;
    char one[128], other[128];
    describe(a, one, sizeof one);
    describe(b, other, sizeof other);
    if (c->rank == i || c->rank == 0) double_misuse("rank 0 calls %s, rank %d %s", one, i, other);
    r = fail(INVALID_USAGE, "rank 0 calls %s, rank %d %s", one, i, other);
  }
  if (r) return r;
  return meeting_barrier(c, STREAMS);
}

// pin returns the bytes behind device memory; of no bytes that is anything.
static char *pin(uint64_t address, uint64_t size) { return size ? driver.pin(address, size, NULL) : (char *)""; }
static void unpin(uint64_t address, uint64_t size, const char *bytes) {
  if (size && bytes) driver.unpin(address);
}

// move runs a collective whose buffers are src and dst, a chunk of every rank at a time.
static result move(struct communicator *c, const struct post *p, const char *src, char *dst) {
  struct meeting *m = c->meeting;
  int me = c->rank, root = me == p->root;
  uint64_t size = type_size(p->type), bytes = p->count * size, scalars[MAX_RANKS];
  int parts = p->kind == REDUCE_SCATTER ? c->size : 1;
  int reduces = p->kind == ALL_REDUCE || (p->kind == REDUCE && root);
  for (int i = 0; i < c->size; i++) scalars[i] = m->posts[i].scalar;
  for (int part = 0; part < parts; part++)
    for (uint64_t at = 0; at < bytes; at += CHUNK) {
      uint64_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
      if (p->kind != BROADCAST || root) memcpy(m->chunks[me], src + (uint64_t)part * bytes + at, n);
      result r = meeting_barrier(c, STREAMS);
      if (r) return r;
      if (p->kind == ALL_GATHER)
        for (int i = 0; i < c->size; i++) memcpy(dst + (uint64_t)i * bytes + at, m->chunks[i], n);
      else if (p->kind == BROADCAST)
        memcpy(dst + at, m->chunks[p->root], n);
      else if (reduces || (p->kind == REDUCE_SCATTER && part == me))
        reduce_elements(dst + at, m->chunks, CHUNK, c->size, n / size, p->type, p->op, scalars);
      if ((r = meeting_barrier(c, STREAMS))) return r;
    }
  return SUCCESS;
}

static result collective(struct communicator *c, const struct work *w) {
  uint64_t send, recv;
  spans(&w->post, c->rank, c->size, &send, &recv);
  result r = agree(c, &w->post);
  if (r) return r;
  const char *src = pin(w->send, send);
  char *dst = pin(w->recv, recv);
  r = src && dst ? move(c, &w->post, src, dst) : fail(CUDA_FAILED, "%s: a buffer is gone when it is needed", names[w->post.kind]);
  unpin(w->send, send, src);
  unpin(w->recv, recv, dst);
  return r;
}

// A transfer is a Send or Recv under way.
struct transfer {
  const struct work *w;
  uint64_t done, total;
  char *bytes;
};

// step moves a piece if the mail of the two ranks is free, or is full. It returns whether it did, with the lock held.
static int step(struct communicator *c, struct transfer *t, result *r) {
  const struct post *p = &t->w->post;
  int sends = p->kind == SEND;
  struct mail *mail = sends ? &c->meeting->mails[c->rank][p->root] : &c->meeting->mails[p->root][c->rank];
  if (mail->full == sends) return 0;
  if (sends) {
    mail->type = p->type;
    mail->total = t->total;
    mail->size = t->total - t->done < CHUNK ? t->total - t->done : CHUNK;
    memcpy(mail->data, t->bytes + t->done, mail->size);
  } else if (mail->type != p->type || mail->total != t->total) {
    double_misuse("rank %d sends %llu bytes of type %d, rank %d expects %llu of type %d", p->root,
                  (unsigned long long)mail->total, mail->type, c->rank, (unsigned long long)t->total, p->type);
    *r = fail(INVALID_USAGE, "ncclRecv: rank %d sends something else", p->root);
    return 0;
  } else {
    memcpy(t->bytes + t->done, mail->data, mail->size);
  }
  mail->full = sends;
  t->done += mail->size;
  return 1;
}

// first tells whether no transfer before the i-th is under way between the same ranks.
static int first(const struct transfer *list, int i) {
  const struct post *p = &list[i].w->post;
  for (int j = 0; j < i; j++)
    if (list[j].w->post.kind == p->kind && list[j].w->post.root == p->root && list[j].done < list[j].total) return 0;
  return 1;
}

// exchange runs the transfers of a group, all at once.
static result exchange(struct communicator *c, struct transfer *list, int n) {
  result r = SUCCESS;
  double end = deadline();
  meeting_lock(c->meeting);
  for (int left = 1; left && !r;) {
    int moved = left = 0;
    for (int i = 0; i < n && !r; i++) {
      if (list[i].done < list[i].total && first(list, i)) moved |= step(c, &list[i], &r);
      left |= list[i].done < list[i].total;
    }
    if (moved)
      meeting_changed(c->meeting);
    else if (left && !r)
      r = meeting_await(c, end);
  }
  meeting_unlock(c->meeting);
  return r;
}

result run_works(struct communicator *c, struct work *works, int n) {
  struct transfer *list = calloc((size_t)n + 1, sizeof *list);
  int transfers = 0;
  result r = SUCCESS;
  for (int i = 0; i < n && !r; i++) {
    const struct work *w = &works[i];
    uint64_t total = w->post.count * type_size(w->post.type);
    if (w->post.kind < SEND) {
      r = collective(c, w);
      continue;
    }
    char *bytes = pin(w->post.kind == SEND ? w->send : w->recv, total);
    list[transfers++] = (struct transfer){w, 0, total, bytes};
    if (!bytes) r = fail(CUDA_FAILED, "%s: the buffer is gone when it is needed", names[w->post.kind]);
  }
  if (!r && transfers) r = exchange(c, list, transfers);
  for (int i = 0; i < transfers; i++)
    unpin(list[i].w->post.kind == SEND ? list[i].w->send : list[i].w->recv, list[i].total, list[i].bytes);
  free(list);
  return r;
}
