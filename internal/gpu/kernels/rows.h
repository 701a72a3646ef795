// Rows that a block works on, in accesses of several elements where these are aligned, sums over a
// block, and the exponentials of a row.
#pragma once
#include "vector.h"

// PACK is how many elements of a row make an access.
template <class E> constexpr u32 PACK = sizeof(E) < 8 ? 8 : 1;
template <class E> DEVICE u64 packs(const E *x, u64 n) { return PACK<E> == 1 || (u64)x % 16 == 0 ? n / PACK<E> : 0; }

// each calls f(i, x[i]) for the n elements of a row.
template <class E, class F> DEVICE void each(const E *x, u64 n, F f) {
  constexpr u32 V = PACK<E>;
  u64 whole = packs(x, n);
#pragma unroll 1
  for (u64 i = threadIdx.x; i < whole; i += blockDim.x) {
    W<E> v[V];
    load(v, x + i * V);
    EACH(k, V) f(i * V + k, v[k]);
  }
  if constexpr (V > 1)
#pragma unroll 1
    for (u64 i = whole * V + threadIdx.x; i < n; i += blockDim.x) f(i, wide(x[i]));
}

// map sets y[i] to f(i, x[i]). y may be x.
template <class E, class F> DEVICE void map(E *y, const E *x, u64 n, F f) {
  constexpr u32 V = PACK<E>;
  u64 whole = packs(y, n) ? packs(x, n) : 0;
#pragma unroll 1
  for (u64 i = threadIdx.x; i < whole; i += blockDim.x) {
    W<E> v[V];
    load(v, x + i * V);
    EACH(k, V) v[k] = f(i * V + k, v[k]);
    store(y + i * V, v);
  }
  if constexpr (V > 1)
#pragma unroll 1
    for (u64 i = whole * V + threadIdx.x; i < n; i += blockDim.x) narrow(y[i], f(i, wide(x[i])));
}

// block_fold folds the values of the warps of a block, which have folded theirs, in their order.
template <class T, class F> DEVICE T block_fold(T *part, T x, F f) {
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  x = part[0];
#pragma unroll 1
  for (u32 w = 1; w < blockDim.x / 32; w++) x = f(x, part[w]);
  return x;
}
template <class T> DEVICE T block_sum(T x) {
  __shared__ T part[32];
  return block_fold(part, warp_sum(x), [](T a, T b) { return a + b; });
}
template <class T> DEVICE T block_max(T x) {
  __shared__ T part[32];
  return block_fold(part, warp_max(x), [](T a, T b) { return larger(a, b); });
}

// exponentials are the largest of some numbers and Σ exp(x - top), found in one pass.
template <class T> struct exponentials {
  T top = -INFINITY, sum = 0;
  __device__ __forceinline__ void add(T v) {
    T e = v == -INFINITY ? 0 : exp(-abs(v - top));
    sum = v > top ? sum * e + 1 : sum + e;
    if (v > top) top = v;
  }
  // finish adds up what the threads of a block have.
  __device__ __forceinline__ void finish() {
    T all = block_max(top);
    sum = block_sum(top == -INFINITY ? sum : sum * exp(top - all));
    top = all;
  }
};
