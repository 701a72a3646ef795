// What flat groups do before and after they travel: numbers are rounded to 16 bits and back, and sums
// are added to the gradients. As in package half, NaN stays NaN, and what is too large is infinite.
#include "device.h"

#define EACH 16 // elements of a thread

// A block reads its elements before it writes any. So y may be the first half of x, and x the second
// half of y, if no block writes what one of the same launch reads: see transfer.go.
#define HELD(read, write) \
  u64 first = from + (u64)blockIdx.x * EACH * blockDim.x + threadIdx.x; \
  float held[EACH]; \
  _Pragma("unroll") for (int j = 0; j < EACH; j++) { u64 i = first + j * blockDim.x; if (i < to) held[j] = read; } \
  __syncthreads(); \
  _Pragma("unroll") for (int j = 0; j < EACH; j++) { u64 i = first + j * blockDim.x; if (i < to) { float v = held[j]; write; } }

// y = c·x, for elements [from, to).
template <class E> DEVICE void rounded(E *y, const float *x, u64 from, u64 to, float c) { HELD(x[i], narrow(y[i], __fmul_rn(c, v))) }
// y = x.
template <class E> DEVICE void widened(float *y, const E *x, u64 from, u64 to) { HELD(wide(x[i]), y[i] = v) }

#define ROUND(T, E) \
  KERNEL transfer_narrow_##T(E *y, const float *x, u64 from, u64 to, float c) { rounded(y, x, from, to, c); } \
  KERNEL transfer_widen_##T(float *y, const E *x, u64 from, u64 to) { widened(y, x, from, to); }
ROUND(bf16, bf16)
ROUND(f16, f16)

DEVICE float sum(float a, float c, float x) { return __fadd_rn(a, __fmul_rn(c, x)); }
DEVICE double sum(double a, double c, double x) { return __dadd_rn(a, __dmul_rn(c, x)); }

// grad += c·x, rounded twice as on the host. With store grad is 0 before.
#define DRAIN(T, E) \
  KERNEL transfer_drain_##T(W<E> *grad, const E *x, u64 n, W<E> c, int store) { \
    INDEX(n); \
    grad[i] = sum(store ? 0 : grad[i], c, wide(x[i])); \
  }
TYPES(DRAIN)

// The same for a gradient in 16 bits, rounded to the nearest.
#define DRAIN16(T, E) \
  KERNEL transfer_drain16_##T(bf16 *grad, const E *x, u64 n, float c, int store) { \
    INDEX(n); \
    narrow(grad[i], sum(store ? 0.f : wide(grad[i]), c, wide(x[i]))); \
  }
DRAIN16(f32, float)
DRAIN16(bf16, bf16)

// x = c·x, rounded to a narrower type on the way.
#define ROUNDED(T, E) \
  KERNEL transfer_round_##T(float *x, u64 n, float c) { \
    INDEX(n); \
    E v; \
    narrow(v, __fmul_rn(c, x[i])); \
    x[i] = wide(v); \
  }
ROUNDED(bf16, bf16)
ROUNDED(f16, f16)

#define LEVELS 16 // of the tree: there are fewer than 2^LEVELS ranks

// y becomes the sum over the ranks. It has the elements of rank me, and x has the elements of the
// others, in the order of the ranks, stride apart. The sum is rounded once. The sum is the canonical tree of package
// comm: after r ranks there is a sum of 2^k ranks for each bit k of r.
template <class E> DEVICE void tree(E *y, const E *x, u64 n, u64 stride, u32 ranks, u32 me) {
  INDEX(n);
  W<E> sums[LEVELS], v = 0;
  _Pragma("unroll") for (int k = 0; k < LEVELS; k++) sums[k] = 0;
  for (u32 r = 0; r < ranks; r++) {
    v = wide(r == me ? y[i] : x[(r - (r > me)) * stride + i]);
    bool carries = true;
    _Pragma("unroll") for (int k = 0; k < LEVELS; k++) if (carries) {
      if (r >> k & 1) v = sums[k] + v;
      else sums[k] = v, carries = false;
    }
  }
  bool first = true;
  _Pragma("unroll") for (int k = 0; k < LEVELS; k++) if (ranks >> k & 1) v = first ? sums[k] : sums[k] + v, first = false;
  narrow(y[i], v);
}

#define TREE(T, E) \
  KERNEL transfer_tree_##T(E *y, const E *x, u64 n, u64 stride, u32 ranks, u32 me) { tree(y, x, n, stride, ranks, me); }
TYPES(TREE)
