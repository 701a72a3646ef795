// The part of MPI that the package uses, without the macros whose types differ
// between libraries. Every function returns an MPI error code, or a struct with
// one in it.
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>

// Tests that a function makes before it yields the processor between them.
enum { SHIM_BUSY = 64 };

// Tags of messages on the communicator of a group.
enum { SHIM_DATA = 1 };

typedef struct {
  int err;
  int done;    // whether everything asked for is complete
  int source;  // of the message received
  int bytes;   // of the message received
} shim_result;

// Where in a tensor of `total` bytes the ranks' parts are: that of rank r begins
// at + r * stride after base and has `bytes` bytes, or what is left there.
typedef struct {
  uintptr_t base;
  size_t total, at, stride, bytes;
} shim_parts;

// shim_init initialises MPI. Errors of both communicators it makes are returned;
// level is 0 if MPI_THREAD_MULTIPLE is not to be had, used whether MPI has been
// initialised in this process before.
static int shim_init(MPI_Comm *control, MPI_Comm *world, int *rank, int *size, int *level, int *used) {
  int got, err;
  if ((err = MPI_Initialized(used)) || *used) return err;
  if ((err = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &got))) return err;
  *level = got >= MPI_THREAD_MULTIPLE;
  if ((err = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)) ||
      (err = MPI_Comm_dup(MPI_COMM_WORLD, control)) || (err = MPI_Comm_dup(MPI_COMM_WORLD, world)) ||
      (err = MPI_Comm_rank(*world, rank)))
    return err;
  return MPI_Comm_size(*world, size);
}

static int shim_finalize(void) { return MPI_Finalize(); }

// shim_text writes what an error code means to a buffer of MPI_MAX_ERROR_STRING.
static int shim_text(int code, char *text) {
  int n;
  return MPI_Error_string(code, text, &n);
}

// shim_alloc returns memory for n bytes at the start of a cache line, or NULL.
static void *shim_alloc(size_t n) {
  void *p;
  return posix_memalign(&p, 64, n) ? NULL : p;
}

// shim_create makes the communicator of n ranks of parent; all of them call it.
static int shim_create(MPI_Comm parent, int n, const int *ranks, int tag, MPI_Comm *made) {
  MPI_Group all, some;
  int err;
  if ((err = MPI_Comm_group(parent, &all))) return err;
  if (!(err = MPI_Group_incl(all, n, ranks, &some))) {
    err = MPI_Comm_create_group(parent, some, tag, made);
    MPI_Group_free(&some);
  }
  MPI_Group_free(&all);
  return err;
}

static int shim_free(MPI_Comm *c) { return MPI_Comm_free(c); }

// shim_listen posts the receipt of one message from anybody.
static int shim_listen(void *buf, int bytes, MPI_Comm c, MPI_Request *r) {
  return MPI_Irecv(buf, bytes, MPI_BYTE, MPI_ANY_SOURCE, 0, c, r);
}

// shim_unlisten takes back what shim_listen has posted.
static int shim_unlisten(MPI_Request *r) {
  int err = MPI_Cancel(r);
  return err ? err : MPI_Wait(r, MPI_STATUS_IGNORE);
}

static int shim_send(void *buf, int bytes, int to, MPI_Comm c, MPI_Request *r) {
  return MPI_Isend(buf, bytes, MPI_BYTE, to, 0, c, r);
}

// shim_calls sends every rank but self a message of the given size, which for
// rank r begins r * stride after buf. to has the ranks in c. The requests are n - 1.
static int shim_calls(char *buf, size_t stride, int bytes, int n, int self, const int *to, MPI_Comm c, MPI_Request *r) {
  for (int i = 1; i < n; i++) {
    int peer = (self + i) % n;
    int err = MPI_Isend(buf + (size_t)peer * stride, bytes, MPI_BYTE, to[peer], 0, c, r++);
    if (err) return err;
  }
  return 0;
}

// shim_receive makes up to `tests` tests whether a posted receipt is complete.
static shim_result shim_receive(MPI_Request *r, int tests) {
  shim_result res = {0, 0, 0, 0};
  MPI_Status status;
  for (int i = 0; i < tests && !res.done && !res.err; i++) {
    if (i >= SHIM_BUSY) sched_yield();
    res.err = MPI_Test(r, &res.done, &status);
  }
  if (res.done && !res.err) {
    res.source = status.MPI_SOURCE;
    res.err = MPI_Get_count(&status, MPI_BYTE, &res.bytes);
  }
  return res;
}

// GCC takes the MPI_STATUSES_IGNORE of MPICH for an array that is too short.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Wstringop-overflow"

// shim_test makes up to `tests` tests whether all n requests are complete.
static shim_result shim_test(int n, MPI_Request *r, int tests) {
  shim_result res = {0, 0, 0, 0};
  for (int i = 0; i < tests && !res.done && !res.err; i++) {
    if (i >= SHIM_BUSY) sched_yield();
    res.err = MPI_Testall(n, r, &res.done, MPI_STATUSES_IGNORE);
  }
  return res;
}

#pragma GCC diagnostic pop

static void shim_none(int n, MPI_Request *r) {
  while (n-- > 0) *r++ = MPI_REQUEST_NULL;
}

// shim_part returns the size of part r and sets p to where it begins.
static int shim_part(shim_parts t, int r, void **p) {
  size_t at = t.at + (size_t)r * t.stride;
  *p = (void *)(t.base + at);
  if (at >= t.total) return 0;
  return (int)(t.total - at < t.bytes ? t.total - at : t.bytes);
}

// shim_exchange sends part r of out to rank r and receives part r of in from it,
// for all n ranks but self. The requests are 2 * (n - 1).
static int shim_exchange(shim_parts out, shim_parts in, int n, int self, MPI_Comm c, MPI_Request *r) {
  void *p;
  int bytes, err;
  shim_none(2 * (n - 1), r);
  for (int i = 1; i < n; i++, r++) {
    int from = (self + n - i) % n;
    if ((bytes = shim_part(in, from, &p)) && (err = MPI_Irecv(p, bytes, MPI_BYTE, from, SHIM_DATA, c, r))) return err;
  }
  for (int i = 1; i < n; i++, r++) {
    int to = (self + i) % n;
    if ((bytes = shim_part(out, to, &p)) && (err = MPI_Isend(p, bytes, MPI_BYTE, to, SHIM_DATA, c, r))) return err;
  }
  return 0;
}

// shim_allgather concatenates the n bytes of src of all ranks in dst; they are
// there already if src is 0.
static int shim_allgather(uintptr_t src, uintptr_t dst, int n, MPI_Comm c, MPI_Request *r) {
  return MPI_Iallgather(src ? (void *)src : MPI_IN_PLACE, n, MPI_BYTE, (void *)dst, n, MPI_BYTE, c, r);
}

static int shim_send_part(uintptr_t buf, int n, int to, MPI_Comm c, MPI_Request *r) {
  return MPI_Isend((void *)buf, n, MPI_BYTE, to, SHIM_DATA, c, r);
}

static int shim_receive_part(uintptr_t buf, int n, int from, MPI_Comm c, MPI_Request *r) {
  return MPI_Irecv((void *)buf, n, MPI_BYTE, from, SHIM_DATA, c, r);
}

static int shim_broadcast(uintptr_t buf, int n, int root, MPI_Comm c, MPI_Request *r) {
  return MPI_Ibcast((void *)buf, n, MPI_BYTE, root, c, r);
}
