//go:build ignore

// What tests control and ask of a double: injected failures, counts of calls and of what is live,
// reports of misuse.
#define _GNU_SOURCE
#include "double.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 48, NAMES = 256, FAILURES = 32, REPORTS = 64, TEXT = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// Named counters: of calls, and of what is live.
struct counter { char name[NAME]; long n; };
static struct counter calls[NAMES], live[NAMES];

static struct { char name[NAME]; long nth; int code; } failures[FAILURES];

// A ring of reports: those from first to last are not read yet.
static char reports[REPORTS][TEXT];
static unsigned long first, last;

static unsigned delay, delay_seed;

// counter returns the counter of a name, a new one if need be.
static long *counter(struct counter *list, const char *name) {
  for (int i = 0; i < NAMES; i++) {
    if (!list[i].name[0]) snprintf(list[i].name, NAME, "%s", name);
    if (!strcmp(list[i].name, name)) return &list[i].n;
  }
  abort();
}

// literal is counter of a name that stays where it is, as it stands in the source of a double.
static long *literal(struct counter *list, const char *name) {
  static struct { const char *name; struct counter *list; long *n; } known[1024];
  unsigned i = (unsigned)((uintptr_t)name >> 2) % 1024;
  if (known[i].name != name || known[i].list != list) {
    known[i].name = name, known[i].list = list;
    known[i].n = counter(list, name);
  }
  return known[i].n;
}

void double_fail(const char *function, long nth, int code) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < FAILURES; i++)
    if (nth == 0 && !strcmp(failures[i].name, function)) failures[i].nth = 0;
  for (int i = 0; i < FAILURES && nth > 0; i++) {
    if (failures[i].nth > 0) continue;
    snprintf(failures[i].name, NAME, "%s", function);
    failures[i].nth = nth;
    failures[i].code = code;
    break;
  }
  pthread_mutex_unlock(&lock);
}

int double_enter(const char *function) {
  int code = 0;
  pthread_mutex_lock(&lock);
  ++*literal(calls, function);
  for (int i = 0; i < FAILURES; i++)
    if (failures[i].nth > 0 && !strcmp(failures[i].name, function) && --failures[i].nth == 0) code = failures[i].code;
  pthread_mutex_unlock(&lock);
  return code;
}

long double_calls(const char *function) {
  pthread_mutex_lock(&lock);
  long n = *counter(calls, function);
  pthread_mutex_unlock(&lock);
  return n;
}

void double_count(const char *what, long delta) {
  pthread_mutex_lock(&lock);
  *literal(live, what) += delta;
  pthread_mutex_unlock(&lock);
}

long double_live(const char *what) {
  pthread_mutex_lock(&lock);
  long n = *counter(live, what);
  pthread_mutex_unlock(&lock);
  return n;
}

void double_misuse(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&lock);
  if (last - first == REPORTS) first++;
  char *text = reports[last++ % REPORTS];
  vsnprintf(text, TEXT, format, arguments);
  if (getenv("FSDP_DOUBLE_VERBOSE")) fprintf(stderr, "double: %s\n", text);
  pthread_mutex_unlock(&lock);
  va_end(arguments);
}

int double_report(char *text, size_t size) {
  pthread_mutex_lock(&lock);
  int found = first < last;
  if (found) snprintf(text, size, "%s", reports[first++ % REPORTS]);
  pthread_mutex_unlock(&lock);
  return found;
}

void double_delay(unsigned max, unsigned seed) {
  pthread_mutex_lock(&lock);
  delay = max;
  delay_seed = seed;
  pthread_mutex_unlock(&lock);
}

void double_wait(unsigned *state) {
  pthread_mutex_lock(&lock);
  unsigned max = delay;
  *state ^= delay_seed;
  pthread_mutex_unlock(&lock);
  if (max) usleep(rand_r(state) % max);
}

// environment reads what a process is told before it runs a line of a test: FSDP_DOUBLE_FAIL is a
// list of function:nth:code, FSDP_DOUBLE_DELAY_US and FSDP_DOUBLE_SEED are those of double_delay.
__attribute__((constructor)) static void environment(void) {
  const char *us = getenv("FSDP_DOUBLE_DELAY_US"), *seed = getenv("FSDP_DOUBLE_SEED"), *list = getenv("FSDP_DOUBLE_FAIL");
  if (us) double_delay((unsigned)atoi(us), seed ? (unsigned)atoi(seed) : 1);
  char *copy = strdup(list ? list : ""), *rest = NULL, name[NAME];
  long nth;
  int code;
  for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest))
    if (sscanf(item, "%47[^:]:%ld:%d", name, &nth, &code) == 3) double_fail(name, nth, code);
  free(copy);
}
