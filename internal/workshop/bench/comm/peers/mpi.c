// The collectives of an MPI library: mpi <socket> <largest tensor in bytes>, started by its mpirun.
#include <mpi.h>

#include "peer.h"

#if defined(WANT_OPEN_MPI) && !defined(OPEN_MPI)
#error "this compiler wrapper is not Open MPI's"
#endif

static int rank, size;
static float *full, *shard;

// operation runs call number i of one collective; 0 if there is no such. In turns the root is rank i.
static int operation(const char *op, size_t count, long i) {
  int n = (int)count, m = (int)(count / (size_t)size), turn = (int)(i % size);
  if (!strcmp(op, "barrier"))
    MPI_Barrier(MPI_COMM_WORLD);
  else if (!strcmp(op, "flag"))
    MPI_Allreduce(MPI_IN_PLACE, full, 1, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  else if (!strcmp(op, "all-gather"))
    MPI_Allgather(shard, m, MPI_FLOAT, full, m, MPI_FLOAT, MPI_COMM_WORLD);
  else if (!strcmp(op, "reduce-scatter"))
    MPI_Reduce_scatter_block(full, shard, m, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(op, "all-reduce"))
    MPI_Allreduce(MPI_IN_PLACE, full, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (!strcmp(op, "broadcast"))
    MPI_Bcast(full, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else if (!strcmp(op, "broadcast-in-turns"))
    MPI_Bcast(full, n, MPI_FLOAT, turn, MPI_COMM_WORLD);
  else if (!strcmp(op, "gather"))
    MPI_Gather(shard, m, MPI_FLOAT, full, m, MPI_FLOAT, 0, MPI_COMM_WORLD);
  else if (!strcmp(op, "gather-in-turns"))
    MPI_Gather(shard, m, MPI_FLOAT, full, m, MPI_FLOAT, turn, MPI_COMM_WORLD);
  else
    return 0;
  return 1;
}

// check runs one collective on the test pattern and looks at the result.
static void check(const struct command *c) {
  size_t m = c->count / (size_t)size;
  float mine = (float)(rank + 1), sum = (float)(size * (size + 1) / 2);
  peer_fill(full, 0, c->count, mine);
  peer_fill(shard, m * (size_t)rank, m, 1);
  if (!strncmp(c->op, "gather", 6)) memset(full, 0, c->count * sizeof *full); // or it would look right on the root
  if (!operation(c->op, c->count, 0)) {
    peer_error("no such operation");
    return;
  }
  int right = 1;
  if (!strcmp(c->op, "flag"))
    right = peer_verify(full, 0, 1, (float)size);
  else if (!strcmp(c->op, "all-gather") || !strncmp(c->op, "broadcast", 9) || (!strncmp(c->op, "gather", 6) && !rank))
    right = peer_verify(full, 0, c->count, 1);
  else if (!strcmp(c->op, "all-reduce"))
    right = peer_verify(full, 0, c->count, sum);
  else if (!strcmp(c->op, "reduce-scatter"))
    right = peer_verify(shard, m * (size_t)rank, m, sum);
  if (right) peer_ok(0);
}

static void run(const struct command *c) {
  if (!operation(c->op, c->count, 0)) {
    peer_error("no such operation");
    return;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  double start = peer_now();
  for (long i = 0; i < c->iterations; i++) operation(c->op, c->count, i);
  peer_ok(peer_now() - start);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 3) {
    fprintf(stderr, "usage: %s socket bytes\n", argv[0]);
    return 2;
  }
  size_t bytes = strtoul(argv[2], NULL, 10);
  full = peer_buffer(bytes);
  shard = peer_buffer(bytes / (size_t)size);
  peer_connect(argv[1], rank);
  struct command c;
  while (peer_next(&c)) {
    if (c.check)
      check(&c);
    else
      run(&c);
  }
  MPI_Finalize();
  return 0;
}
