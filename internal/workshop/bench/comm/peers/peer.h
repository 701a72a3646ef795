// One rank of a peer program, seen from the driver: it connects to the driver's Unix socket, says "hello <rank> <pid>", and
// then answers one command at a time, blocked in read(2) in between, so that an idle candidate costs the others nothing.
//
//   run <op> <bytes> <iterations>   ->  ok <seconds of all iterations on this rank>
//   check <op> <bytes>              ->  ok 0   |   error <what is wrong>
//
// bytes is the size of the full tensor. Elements are floats.
#ifndef PEER_H
#define PEER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <signal.h>

enum { PERIOD = 61 };  // of the test pattern: no power of two, so that a shifted block shows

struct command {
  int check;  // or else run
  char op[32];
  size_t count;  // elements of the full tensor
  long iterations;
};

static FILE *peer_in, *peer_out;

static inline void peer_die(const char *what) {
  perror(what);
  exit(1);
}

// peer_connect makes this process end with its parent and connects it to the driver.
static inline void peer_connect(const char *path, int rank) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct sockaddr_un to;
  memset(&to, 0, sizeof to);
  to.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof to.sun_path) {
    fprintf(stderr, "socket path too long: %s\n", path);
    exit(1);
  }
  strcpy(to.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) peer_die(path);
  peer_in = fdopen(fd, "r");
  peer_out = fdopen(dup(fd), "w");
  if (!peer_in || !peer_out) peer_die("fdopen");
  fprintf(peer_out, "hello %d %d\n", rank, (int)getpid());
  fflush(peer_out);
}

// peer_next reads the next command; 0 means that there is none any more.
static inline int peer_next(struct command *c) {
  char line[128];
  size_t bytes = 0;
  if (!fgets(line, sizeof line, peer_in)) return 0;
  c->iterations = 1;
  if (sscanf(line, "run %31s %zu %ld", c->op, &bytes, &c->iterations) == 3) {
    c->check = 0;
  } else if (sscanf(line, "check %31s %zu", c->op, &bytes) == 2) {
    c->check = 1;
  } else {
    fprintf(stderr, "not a command: %s", line);
    exit(1);
  }
  c->count = bytes / sizeof(float);
  return 1;
}

static inline void peer_ok(double seconds) {
  fprintf(peer_out, "ok %.9g\n", seconds);
  fflush(peer_out);
}

static inline void peer_error(const char *what) {
  fprintf(peer_out, "error %s\n", what);
  fflush(peer_out);
}

static inline double peer_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// peer_buffer returns page-aligned memory that has its pages already.
static inline float *peer_buffer(size_t bytes) {
  bytes = (bytes + 4095) / 4096 * 4096;
  float *b = (float *)aligned_alloc(4096, bytes);
  if (!b) peer_die("aligned_alloc");
  memset(b, 1, bytes);
  return b;
}

// peer_pattern is factor times the pattern at element i of the full tensor: rank r contributes the factor r + 1. All sums
// of it are exact.
static inline float peer_pattern(float factor, size_t i) { return factor * (float)(1 + i % PERIOD); }

static inline void peer_fill(float *buf, size_t first, size_t count, float factor) {
  for (size_t i = 0; i < count; i++) buf[i] = peer_pattern(factor, first + i);
}

// peer_verify answers a check: buf has to hold elements first, first+1, … of the pattern times factor.
static inline int peer_verify(const float *buf, size_t first, size_t count, float factor) {
  for (size_t i = 0; i < count; i++) {
    if (buf[i] != peer_pattern(factor, first + i)) {
      char text[128];
      snprintf(text, sizeof text, "element %zu is %g, want %g", first + i, (double)buf[i],
               (double)peer_pattern(factor, first + i));
      peer_error(text);
      return 0;
    }
  }
  return 1;
}

#endif
