//go:build ignore

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

#include "meeting.h"

enum { A_WAIT = 5 }; // ms

// Where NCCL would wait for ever the double gives up, so that tests end: after waits in vain of
// FSDP_DOUBLE_NCCL_TIMEOUT_MS or 60 s. The time in which the process was stopped is none.
long patience(void) {
  const char *ms = getenv("FSDP_DOUBLE_NCCL_TIMEOUT_MS");
  return (ms ? atol(ms) : 60000) / A_WAIT;
}

// path_of writes the path of the memory of a meeting: in the directory of this library, which tests
// remove as a whole.
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
  if (flags) unlink(path); // left by a process of the same number that was killed
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

result meeting_await(struct seat *s, long *patience) {
  struct meeting *m = s->meeting;
  if (__atomic_load_n(&s->aborted, __ATOMIC_SEQ_CST)) return fail(REMOTE_FAILED, "rank %d: aborted", s->rank);
  if (m->failed) return fail(m->failed, "rank %d: another rank has failed", s->rank);
  if (*patience <= 0) {
    double_misuse("rank %d has waited for the others in vain", s->rank);
    m->failed = REMOTE_FAILED;
    meeting_changed(m);
    return fail(TIMED_OUT, "rank %d: waited for the others in vain", s->rank);
  }
  uint32_t seen = m->changes;
  meeting_unlock(m);
  struct timespec t = {.tv_nsec = A_WAIT * 1000000};
  int in_vain = syscall(SYS_futex, &m->changes, FUTEX_WAIT, seen, &t, NULL, 0) && errno == ETIMEDOUT;
  meeting_lock(m);
  *patience -= in_vain;
  int gone = in_vain ? lost(m) : -1;
  if (gone < 0) return SUCCESS;
  m->failed = REMOTE_FAILED;
  meeting_changed(m);
  return fail(REMOTE_FAILED, "rank %d: the process of rank %d is gone", s->rank, gone);
}

result meeting_barrier(struct seat *s, enum barrier which) {
  struct meeting *m = s->meeting;
  result r = SUCCESS;
  long left = patience();
  meeting_lock(m);
  uint64_t round = m->barriers[which].round;
  if (++m->barriers[which].waiting == m->size) {
    m->barriers[which].waiting = 0;
    m->barriers[which].round++;
    meeting_changed(m);
  }
  while (!r && m->barriers[which].round == round) r = meeting_await(s, &left);
  meeting_unlock(m);
  return r;
}

// place puts a rank among the others, with the lock held.
static result place(struct seat *s, int duplicates) {
  struct meeting *m = s->meeting;
  const char *host = getenv("NCCL_HOSTID");
  if (m->size && m->size != s->size)
    return fail(INVALID_ARGUMENT, "rank %d says that there are %d ranks, others say %d", s->rank, s->size, m->size);
  if (m->ranks[s->rank].present) return fail(INVALID_USAGE, "there are two ranks %d", s->rank);
  if (!host) host = "";
  for (int i = 0; i < s->size && !duplicates; i++)
    if (m->ranks[i].present && m->ranks[i].device == s->device && !strcmp(m->ranks[i].host, host))
      return fail(INVALID_USAGE, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", s->rank, i, s->device);
  m->size = s->size;
  m->joined++;
  m->ranks[s->rank].present = 1;
  m->ranks[s->rank].device = s->device;
  m->ranks[s->rank].process = getpid();
  snprintf(m->ranks[s->rank].host, sizeof m->ranks->host, "%s", host);
  return SUCCESS;
}

result meeting_join(struct seat *s, int duplicates) {
  struct meeting *m = s->meeting;
  long left = patience();
  meeting_lock(m);
  result r = place(s, duplicates);
  if (r && !m->failed) m->failed = r;
  meeting_changed(m);
  if (m->joined == m->size) {
    char path[4096];
    path_of(s->name, path, sizeof path);
    unlink(path);
  }
  while (!r && m->joined < m->size) r = meeting_await(s, &left);
  meeting_unlock(m);
  return r;
}
