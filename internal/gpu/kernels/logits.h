// The loss of a row of logits, and its gradient, in a block of threads.
#pragma once
#include "rows.h"

// With lse = log Σ exp(x) the loss of a row x is
//
//	lse - (1-smoothing)·x[target] - smoothing·mean(x) + z·lse²
//
// and 0, with lse 0, if target is ignore: see Loss in package kernel.
template <class T> struct rule { T smoothing, z; i64 ignore; u32 classes; };

// row_loss writes the loss and the lse of a row, and returns the lse. Each logit is read once. A target
// that is no class, which nothing should let pass, has loss NaN.
template <class E> DEVICE W<E> row_loss(W<E> *loss, W<E> *lse, const E *x, i64 target, rule<W<E>> r) {
  typedef W<E> T;
  bool first = threadIdx.x == 0;
  if (target == r.ignore) {
    if (first) *loss = *lse = 0;
    return 0;
  }
  T total = 0;
  exponentials<T> e;
  each(x, r.classes, [&](u64, T v) {
    total += v;
    e.add(v);
  });
  e.finish();
  if (r.smoothing > 0) total = block_sum(total);
  T l = e.top + log(e.sum);
  if (first) {
    T own = (u64)target < r.classes ? wide(x[target]) : (T)(INFINITY - INFINITY);
    T v = l + r.z * l * l - (1 - r.smoothing) * own;
    if (r.smoothing > 0) v -= r.smoothing * (total / r.classes);
    *loss = v, *lse = l;
  }
  return l;
}

// A gradient is that of d times a row's loss with respect to its logits.
template <class T> struct gradient {
  T lse, each, all, hit;
  i64 target;
  bool counts;
  __device__ __forceinline__ gradient(i64 target, T lse, T d, rule<T> r)
      : lse(lse), each(d * (1 + 2 * r.z * lse)), all(d * (r.smoothing / r.classes)), hit(d * (1 - r.smoothing)), target(target),
        counts(target != r.ignore) {}
  __device__ __forceinline__ T operator()(u64 i, T x) const {
    T v = each * exp(x - lse) - all - (i == target ? hit : 0);
    return counts ? v : 0;
  }
};
