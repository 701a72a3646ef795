//go:build ignore

#include "communicator.h"

#include <stdlib.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static struct communicator **communicators;
static uintptr_t handles = 1;
static const uintptr_t mark = (uintptr_t)0x4EC << 48;

uintptr_t communicator_add(struct communicator *c) {
  pthread_mutex_lock(&lock);
  if (handles % 256 == 1) communicators = realloc(communicators, (handles + 256) * sizeof *communicators);
  uintptr_t h = handles++;
  communicators[h] = c;
  c->references = 1;
  pthread_mutex_unlock(&lock);
  double_count("communicator", 1);
  return mark | h;
}

void communicator_remove(uintptr_t handle) { communicators[handle & ~mark] = NULL; }

struct communicator *get(uintptr_t h, const char *function) {
  pthread_mutex_lock(&lock);
  uintptr_t i = h & ~mark;
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
  meeting_forget(c->seat.meeting);
  free(c);
}

// in_context checks that the context of a device is current. NCCL would take the device 0 of a
// thread without one.
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

result ready(uintptr_t h, const char *function, struct communicator **c) {
  result r = enter(function);
  if (r) return r;
  if (!(*c = get(h, function))) return INVALID_ARGUMENT;
  r = again(*c, function);
  return r ? put(*c, r) : SUCCESS;
}

result check_buffer(const struct communicator *c, const char *function, const char *which, uint64_t address, uint64_t size) {
  int device = -1;
  if (!size) return SUCCESS;
  if (!driver.pin(address, size, &device)) // which reports it
    return fail(INVALID_ARGUMENT, "%s: %s %#lx is not %lu bytes of device memory", function, which, (unsigned long)address, (unsigned long)size);
  driver.unpin(address);
  return device == c->seat.device ? SUCCESS : misuse(INVALID_ARGUMENT, "a buffer is on another device", function);
}

// task_end keeps what a task has failed with, but for a wrong argument that the caller is told of:
// NCCL promises that it has no effect.
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
