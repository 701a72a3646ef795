// What the kernels of any size (attention.cu) and those of tensor cores (flash.cu) share.
#pragma once
#include "device.h"

// A shape is that of q [B, tq, …], k and v [B, tk, …], which have rows of qs and ks elements, perhaps
// those of one packed tensor. out and dout [B, tq, heads*d] are dense, statistics are [B, heads, tq],
// biases [heads, tq, tk], masks [B, tk]. The last query stands at the last key.
template <class E> struct shape {
  int heads, group, d, tq, tk, qs, ks;  // group heads read one head of keys
  int causal, window;                   // window is tq + tk if there is none
  W<E> scale;

  // Query i sees the keys [lo, hi), and key j is seen by the queries [first, last).
  __device__ int lo(int i) const { return max(0, i + tk - tq + 1 - window); }
  __device__ int hi(int i) const { return causal ? max(0, i + tk - tq + 1) : tk; }
  __device__ int first(int j) const { return causal ? max(0, j - tk + tq) : 0; }
  __device__ int last(int j) const { return max(0, min(tq, j - tk + tq + window)); }
  // Where rows of a head begin, and elements lie.
  __device__ u64 q(int b, int h, int i) const { return ((u64)b * tq + i) * qs + h * d; }
  __device__ u64 k(int b, int h, int j) const { return ((u64)b * tk + j) * ks + h / group * d; }
  __device__ u64 out(int b, int h, int i) const { return (((u64)b * tq + i) * heads + h) * d; }
  __device__ u64 stat(int b, int h, int i) const { return ((u64)b * heads + h) * tq + i; }
  __device__ u64 bias(int h, int i, int j) const { return ((u64)h * tq + i) * tk + j; }
};

// The parameters of a kernel that are a shape, and the shape.
#define SHAPE(E) int heads, int group, int d, int tq, int tk, int qs, int ks, int causal, int window, W<E> scale
#define GIVEN {heads, group, d, tq, tk, qs, ks, causal, window, scale}
