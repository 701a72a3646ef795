// What the kernels of any size (attention.cu) and those of tensor cores (flash.cu) share.
#pragma once
#include "device.h"

// A shape is that of q [B, tq, …], k and v [B, tk, …], which have rows of qs and ks elements, perhaps
// those of one packed tensor. out and dout [B, tq, heads*d] are dense, statistics are [B, heads, tq],
// biases [heads, tq, tk], masks [B, tk]. The last query stands at the last key. documents are null, or
// [B, tk, 2]: the first token of each token's document, and its end. A query sees keys of its document
// only, and tq is tk.
template <class E> struct shape {
  int heads, group, d, tq, tk, qs, ks;  // group heads read one head of keys
  int causal, window;                   // window is tq + tk if there is none
  W<E> scale;
  const int *documents;

  // Query i sees the keys [lo, hi), and key j is seen by the queries [first, last), those of its
  // document.
  __device__ int lo(int i) const { return max(0, i + tk - tq + 1 - window); }
  __device__ int hi(int i) const { return causal ? max(0, i + tk - tq + 1) : tk; }
  __device__ int first(int j) const { return causal ? max(0, j - tk + tq) : 0; }
  __device__ int last(int j) const { return max(0, min(tq, j - tk + tq + window)); }
  // The same in batch b.
  __device__ int lo(int b, int i) const { return max(lo(i), begin(b, i)); }
  __device__ int hi(int b, int i) const { return min(hi(i), end(b, i)); }
  __device__ int first(int b, int j) const { return max(first(j), begin(b, j)); }
  __device__ int last(int b, int j) const { return min(last(j), end(b, j)); }
  // The document of token i begins at begin and ends before end.
  __device__ int begin(int b, int i) const { return documents ? documents[((u64)b * tk + i) * 2] : 0; }
  __device__ int end(int b, int i) const { return documents ? documents[((u64)b * tk + i) * 2 + 1] : max(tq, tk); }
  // Where rows of a head begin, and elements lie.
  __device__ u64 q(int b, int h, int i) const { return ((u64)b * tq + i) * qs + h * d; }
  __device__ u64 k(int b, int h, int j) const { return ((u64)b * tk + j) * ks + h / group * d; }
  __device__ u64 out(int b, int h, int i) const { return (((u64)b * tq + i) * heads + h) * d; }
  __device__ u64 stat(int b, int h, int i) const { return ((u64)b * heads + h) * tq + i; }
  __device__ u64 bias(int h, int i, int j) const { return ((u64)h * tq + i) * tk + j; }
};

// The parameters of a kernel that are a shape, and the shape.
#define SHAPE(E) int heads, int group, int d, int tq, int tk, int qs, int ks, int causal, int window, W<E> scale, \
  const int *documents
#define GIVEN {heads, group, d, tq, tk, qs, ks, causal, window, scale, documents}
