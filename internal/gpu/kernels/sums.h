// Sums over the threads of a row.
#pragma once
#include "vector.h"

// row_sums adds up each of x over the threads of a row, which all get the sums. A row of more than a
// warp has the block to itself, and warps is memory that nobody reads any more.
template <int N, class T> DEVICE void row_sums(T (&x)[N], T (*warps)[N]) {
  EACH(i, N) x[i] = warp_sum(x[i]);
  if (blockDim.x == 32) return;
  if (threadIdx.x % 32 == 0) EACH(i, N) warps[threadIdx.x / 32][i] = x[i];
  __syncthreads();
  EACH(i, N) x[i] = 0;
#pragma unroll 1
  for (int w = 0; w < blockDim.x / 32; w++) EACH(i, N) x[i] += warps[w][i];
}
