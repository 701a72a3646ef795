//go:build ignore

// Streams, the operations they run, and the events that order them.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"

// A stream is a thread that runs operations one after the other. It ends by itself when the stream
// is destroyed and everything is done.
struct stream {
  pthread_cond_t wake; // it may have something to do, or end
  struct context *context;
  CUcontext life; // of the context: a stream may go on after it
  struct operation *first, **last;
  uint64_t given, done; // operations
  uint64_t wanted;      // operations that somebody waits for
  int paused, destroyed;
  int urgency;          // 0 to MOST_URGENT
  unsigned seed;
  struct stream *next; // of all
};

// An event counts how often it was recorded, and which of those places are reached. Operations
// hold references.
struct event {
  struct context *context;
  uint64_t recorded, reached;
  int timing, references, waiting; // threads of the host that wait
  struct timespec at;
  struct stream *stream; // that it was recorded in last, as its operation of that number
  uint64_t number;
};

enum { NON_BLOCKING = 1, DISABLE_TIMING = 2, GREATEST_PRIORITY = -5 };
enum { PATIENCE = 100000 }; // ns

static struct stream *streams;
static enum { FREE, URGENT_LATE, URGENT_EARLY } schedule;

static CUresult run_wait(struct operation *o);

// blocked tells whether a stream has nothing to run, or waits for an event.
static int blocked(const struct stream *s) {
  const struct operation *o = s->first;
  return !o || s->paused || (o->run == run_wait && o->event->reached < o->place);
}

// tell lets all streams look again whether they may run, and the host whether it may go on.
static void tell(void) {
  for (struct stream *s = streams; s; s = s->next) pthread_cond_signal(&s->wake);
  pthread_cond_broadcast(&changed);
}

static void want(struct stream *s, uint64_t operations) {
  if (s->wanted >= operations) return;
  s->wanted = operations;
  if (schedule != FREE) tell();
}

// lateness returns how many kinds of streams run before a stream, if there is a schedule.
static int lateness(const struct stream *s) { return schedule == URGENT_LATE ? s->urgency : MOST_URGENT - s->urgency; }

// may_run tells whether a stream runs its next operation now. If there is a schedule, one stream of a device
// runs at a time, and the late ones only what is wanted, when none can that is less late.
static int may_run(struct stream *s) {
  if (schedule == FREE) return !blocked(s);
  int late = lateness(s);
  if (late && s->done >= s->wanted) return 0;
  if (blocked(s)) {
    if (s->first && !s->paused) want(s->first->source, s->first->number);
    return 0;
  }
  if (s->context->busy) return 0;
  for (struct stream *t = streams; late && t; t = t->next)
    if (t->context == s->context && lateness(t) < late && !blocked(t) && (!lateness(t) || t->done < t->wanted)) return 0;
  return 1;
}

void double_schedule(int to) {
  pthread_mutex_lock(&lock);
  schedule = to;
  tell();
  pthread_mutex_unlock(&lock);
}

static void *stream_main(void *argument) {
  struct stream *s = argument;
  running = 1;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!may_run(s) && !(s->destroyed && !s->first)) pthread_cond_wait(&s->wake, &lock);
    struct operation *o = s->first;
    if (!o) break;
    s->first = o->next;
    if (!s->first) s->last = &s->first;
    int runs = o->always || !s->context->fault;
    s->context->busy++;
    pthread_mutex_unlock(&lock);
    double_wait(&s->seed);
    CUresult result = runs ? o->run(o) : SUCCESS;
    free(o);
    pthread_mutex_lock(&lock);
    if (result && !s->context->fault && s->life == s->context->handle) s->context->fault = result;
    s->done++;
    s->context->busy--;
    if (schedule != FREE) tell();
    else if (s->done <= s->wanted) pthread_cond_broadcast(&changed);
  }
  struct stream **at = &streams;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  pthread_mutex_unlock(&lock);
  pthread_cond_destroy(&s->wake);
  free(s);
  return NULL;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  struct context *context;
  CUresult result = enter_context("cuCtxGetStreamPriorityRange", &context);
  if (result) return result;
  *least = 0;
  *greatest = GREATEST_PRIORITY;
  return leave(SUCCESS);
}

static CUresult stream_create(const char *function, CUstream *stream, unsigned flags, int priority) {
  static unsigned seeds;
  struct context *context;
  CUresult result = enter_context(function, &context);
  if (result) return result;
  if (flags != NON_BLOCKING) double_misuse("%s: a stream that is ordered with the default stream", function);
  struct stream *s = calloc(1, sizeof *s);
  s->context = context;
  s->life = context->handle;
  pthread_cond_init(&s->wake, NULL);
  s->last = &s->first;
  s->seed = ++seeds;
  s->urgency = priority >= 0 ? 0 : priority > GREATEST_PRIORITY ? 1 : MOST_URGENT;
  // Signals are for the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  int failed = pthread_create(&thread, NULL, stream_main, s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) {
    free(s);
    return leave(OUT_OF_MEMORY);
  }
  pthread_detach(thread);
  s->next = streams;
  streams = s;
  *stream = object_add(STREAM, s, context);
  return leave(SUCCESS);
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) { return stream_create("cuStreamCreate", stream, flags, 0); }

// The priority changes nothing, without a schedule: streams of the double run at once anyway.
EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
  if (priority > 0 || priority < GREATEST_PRIORITY) double_misuse("cuStreamCreateWithPriority: there is no priority %d", priority);
  return stream_create("cuStreamCreateWithPriority", stream, flags, priority);
}

// stream_get returns a stream of the current context.
static struct stream *stream_get(const char *function, struct context *context, CUstream stream) {
  struct stream *s = object_get(function, STREAM, stream);
  if (s && s->context != context) {
    double_misuse("%s: the stream is of device %d, the context of device %d", function, s->context->device, context->device);
    return NULL;
  }
  return s;
}

CUresult stream_push(const char *function, struct context *context, CUstream stream, struct operation operation) {
  struct stream *s = stream_get(function, context, stream);
  if (!s) return INVALID_HANDLE;
  struct operation *o = malloc(sizeof *o);
  *o = operation;
  o->next = NULL;
  *s->last = o;
  s->last = &o->next;
  s->given++;
  pthread_cond_signal(&s->wake);
  return SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  struct context *context;
  CUresult result = enter_freeing("cuStreamDestroy", &context);
  if (result) return result;
  struct stream *s = stream_get("cuStreamDestroy", context, stream);
  if (!s) return leave(INVALID_HANDLE);
  object_remove(stream, context);
  s->destroyed = 1;
  s->paused = 0;
  want(s, s->given);
  tell(); // who waits for the stream, and itself
  return leave(SUCCESS);
}

EXPORT CUresult cuStreamSynchronize(CUstream stream) {
  struct context *context;
  CUresult result = enter_context("cuStreamSynchronize", &context);
  if (result) return result;
  struct stream *s = stream_get("cuStreamSynchronize", context, stream);
  if (!s) return leave(INVALID_HANDLE);
  uint64_t given = s->given;
  want(s, given);
  while (s->done < given) {
    pthread_cond_wait(&changed, &lock);
    if (!object_get("cuStreamSynchronize", STREAM, stream)) return leave(INVALID_HANDLE);
  }
  return leave(context->fault);
}

// soon is how long a query takes to say no, as a call of a driver may: programs ask in a loop, and streams
// need the processor, too.
static struct timespec soon(void) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += PATIENCE;
  if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
  return until;
}

EXPORT CUresult cuStreamQuery(CUstream stream) {
  struct context *context;
  CUresult result = enter_context("cuStreamQuery", &context);
  if (result) return result;
  struct stream *s = stream_get("cuStreamQuery", context, stream);
  if (!s) return leave(INVALID_HANDLE);
  want(s, s->given);
  for (struct timespec until = soon(); s->done < s->given;) {
    if (pthread_cond_timedwait(&changed, &lock, &until)) return leave(NOT_READY);
    if (!object_get("cuStreamQuery", STREAM, stream)) return leave(INVALID_HANDLE);
  }
  return leave(context->fault);
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *of) {
  struct context *context;
  CUresult result = enter_context("cuStreamGetCtx", &context);
  if (result) return result;
  struct stream *s = object_get("cuStreamGetCtx", STREAM, stream);
  if (!s) return leave(INVALID_HANDLE);
  *of = s->context->handle;
  return leave(SUCCESS);
}

int double_pause(uintptr_t stream, int paused) {
  pthread_mutex_lock(&lock);
  struct stream *s = object_get("double_pause", STREAM, stream);
  if (s) {
    s->paused = paused;
    tell(); // itself, and who may run if it does not
  }
  pthread_mutex_unlock(&lock);
  return s ? 0 : -1;
}

// Operations. A copy that meets memory that was freed since it was given is a fault.

static CUresult run_host(struct operation *o) {
  o->function(o->data);
  return SUCCESS;
}

// copy copies between memory of the device and of the host, as the flags say.
static CUresult copy(const char *function, struct operation *o, int to_host, int from_host) {
  char *to = region_pin(function, o->to, o->size, to_host, NULL);
  char *from = region_pin(function, o->from, o->size, from_host, NULL);
  if (to && from) memmove(to, from, o->size);
  if (to) region_unpin(o->to, to_host);
  if (from) region_unpin(o->from, from_host);
  return to && from ? SUCCESS : ILLEGAL_ADDRESS;
}

static CUresult run_to_device(struct operation *o) { return copy("cuMemcpyHtoDAsync, running", o, 0, 1); }
static CUresult run_to_host(struct operation *o) { return copy("cuMemcpyDtoHAsync, running", o, 1, 0); }
static CUresult run_on_device(struct operation *o) { return copy("cuMemcpyDtoDAsync, running", o, 0, 0); }

static CUresult run_set(struct operation *o) {
  char *to = region_pin("cuMemsetD8Async, running", o->to, o->size, 0, NULL);
  if (!to) return ILLEGAL_ADDRESS;
  memset(to, o->value, o->size);
  region_unpin(o->to, 0);
  return SUCCESS;
}

EXPORT CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
  struct context *context;
  CUresult result = enter_context("cuLaunchHostFunc", &context);
  if (result) return result;
  return leave(stream_push("cuLaunchHostFunc", context, stream,
                           (struct operation){.run = run_host, .function = function, .data = data}));
}

// copy_push gives a copy to a stream.
static CUresult copy_push(const char *function, CUstream stream, struct operation o, int to_host, int from_host) {
  struct context *context;
  CUresult result = enter_context(function, &context);
  if (result) return result;
  if (!region_check(function, o.to, o.size, to_host) || !region_check(function, o.from, o.size, from_host))
    return leave(INVALID_VALUE);
  return leave(stream_push(function, context, stream, o));
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  struct operation o = {.run = run_to_device, .to = to, .from = (uint64_t)from, .size = size};
  return copy_push("cuMemcpyHtoDAsync", stream, o, 0, 1);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  struct operation o = {.run = run_to_host, .to = (uint64_t)to, .from = from, .size = size};
  return copy_push("cuMemcpyDtoHAsync", stream, o, 1, 0);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  struct operation o = {.run = run_on_device, .to = to, .from = from, .size = size};
  return copy_push("cuMemcpyDtoDAsync", stream, o, 0, 0);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  struct context *context;
  CUresult result = enter_context("cuMemsetD8Async", &context);
  if (result) return result;
  if (!region_check("cuMemsetD8Async", to, size, 0)) return leave(INVALID_VALUE);
  struct operation o = {.run = run_set, .to = to, .value = value, .size = size};
  return leave(stream_push("cuMemsetD8Async", context, stream, o));
}

// Events.

// event_release gives a reference back, with the lock held.
static void event_release(struct event *e) {
  if (--e->references == 0) free(e);
}

static CUresult run_record(struct operation *o) {
  struct event *e = o->event;
  pthread_mutex_lock(&lock);
  if (e->reached < o->place) e->reached = o->place;
  clock_gettime(CLOCK_MONOTONIC, &e->at);
  for (struct stream *s = streams; s; s = s->next)
    if (s->first && s->first->event == e) pthread_cond_signal(&s->wake);
  if (e->waiting) pthread_cond_broadcast(&changed);
  event_release(e);
  return leave(SUCCESS);
}

// run_wait runs when the place is reached.
static CUresult run_wait(struct operation *o) {
  pthread_mutex_lock(&lock);
  event_release(o->event);
  return leave(SUCCESS);
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
  struct context *context;
  CUresult result = enter_context("cuEventCreate", &context);
  if (result) return result;
  struct event *e = calloc(1, sizeof *e);
  e->context = context;
  e->timing = !(flags & DISABLE_TIMING);
  e->references = 1;
  *event = object_add(EVENT, e, context);
  return leave(SUCCESS);
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  struct context *context;
  CUresult result = enter_freeing("cuEventDestroy", &context);
  if (result) return result;
  struct event *e = object_get("cuEventDestroy", EVENT, event);
  if (!e) return leave(INVALID_HANDLE);
  object_remove(event, context);
  event_release(e);
  return leave(SUCCESS);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  struct context *context;
  CUresult result = enter_context("cuEventRecord", &context);
  if (result) return result;
  struct event *e = object_get("cuEventRecord", EVENT, event);
  if (!e) return leave(INVALID_HANDLE);
  if (e->context != context) {
    double_misuse("cuEventRecord: the event is of device %d, the stream of device %d", e->context->device, context->device);
    return leave(INVALID_HANDLE);
  }
  struct operation o = {.run = run_record, .always = 1, .event = e, .place = e->recorded + 1};
  result = stream_push("cuEventRecord", context, stream, o);
  if (result) return leave(result);
  e->recorded++;
  e->references++;
  e->stream = object_get("cuEventRecord", STREAM, stream);
  e->number = e->stream->given;
  return leave(SUCCESS);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  struct context *context;
  CUresult result = enter_context("cuStreamWaitEvent", &context);
  if (result) return result;
  struct event *e = flags ? NULL : object_get("cuStreamWaitEvent", EVENT, event);
  if (!e) return leave(INVALID_HANDLE);
  struct stream *s = stream_get("cuStreamWaitEvent", context, stream);
  if (s && ++context->waits[s->urgency] == context->omitted[s->urgency]) return leave(SUCCESS);
  struct operation o = {.run = run_wait, .always = 1, .event = e, .place = e->recorded, .source = e->stream, .number = e->number};
  result = stream_push("cuStreamWaitEvent", context, stream, o);
  if (!result) e->references++;
  return leave(result);
}

EXPORT CUresult cuEventQuery(CUevent event) {
  struct context *context;
  CUresult result = enter_context("cuEventQuery", &context);
  if (result) return result;
  struct event *e = object_get("cuEventQuery", EVENT, event);
  if (!e) return leave(INVALID_HANDLE);
  uint64_t place = e->recorded;
  if (e->reached < place && !e->stream->urgency) want(e->stream, e->number);
  int late = 0;
  e->references++, e->waiting++;
  for (struct timespec until = soon(); e->reached < place && !late;) late = pthread_cond_timedwait(&changed, &lock, &until);
  e->waiting--;
  event_release(e);
  return leave(late ? NOT_READY : context->fault);
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
  struct context *context;
  CUresult result = enter_context("cuEventSynchronize", &context);
  if (result) return result;
  struct event *e = object_get("cuEventSynchronize", EVENT, event);
  if (!e) return leave(INVALID_HANDLE);
  uint64_t place = e->recorded;
  if (e->reached < place) want(e->stream, e->number);
  e->references++, e->waiting++;
  while (e->reached < place) pthread_cond_wait(&changed, &lock);
  e->waiting--;
  event_release(e);
  return leave(context->fault);
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  struct context *context;
  CUresult result = enter_context("cuEventElapsedTime", &context);
  if (result) return result;
  struct event *a = object_get("cuEventElapsedTime", EVENT, from), *b = object_get("cuEventElapsedTime", EVENT, to);
  if (!a || !b || !a->timing || !b->timing || !a->recorded || !b->recorded) return leave(INVALID_HANDLE);
  if (a->reached < a->recorded || b->reached < b->recorded) return leave(NOT_READY);
  *milliseconds = (float)(b->at.tv_sec - a->at.tv_sec) * 1e3f + (float)(b->at.tv_nsec - a->at.tv_nsec) / 1e6f;
  return leave(SUCCESS);
}
