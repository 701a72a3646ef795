// MPI_Allreduce as the library does it: allreduce <count>. Rank 0 prints the sum of
// the floats that the ranks make, as bits.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  int rank, count = argc > 1 ? atoi(argv[1]) : 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  float *x = malloc((size_t)count * sizeof *x);
  uint32_t state = 12345u + (uint32_t)rank;
  for (int i = 0; i < count; i++) {
    state = state * 1664525u + 1013904223u;
    uint32_t bits = (state & 0x807fffffu) | (120u + (state >> 23 & 15u)) << 23;  // of many magnitudes
    memcpy(&x[i], &bits, 4);
  }
  MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; rank == 0 && i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], 4);
    printf("%08x\n", bits);
  }
  MPI_Finalize();
  return 0;
}
