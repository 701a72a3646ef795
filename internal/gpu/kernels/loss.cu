// Losses and their gradients: of rows of logits, and of pairs of elements.
#include "logits.h"

// A block has a row of logits [rows classes]. loss_slopes writes the gradient of loss_rows with respect to
// them, over which it may lie. That of the loss of row i is dlosses[i·step], or 1 if dlosses is null.
#define ROWS(T, E) \
  KERNEL loss_rows_##T(W<E> *losses, W<E> *lse, const E *logits, const i64 *targets, u32 classes, i64 ignore, W<E> smoothing, W<E> z) { \
    u64 row = blockIdx.x; \
    row_loss(losses + row, lse + row, logits + row * classes, targets[row], {smoothing, z, ignore, classes}); \
  } \
  KERNEL loss_slopes_##T(E *dlogits, const E *logits, const i64 *targets, const W<E> *lse, const W<E> *dlosses, u32 step, u32 classes, \
                         i64 ignore, W<E> smoothing, W<E> z) { \
    u64 row = blockIdx.x, at = row * classes; \
    map(dlogits + at, logits + at, classes, gradient<W<E>>(targets[row], lse[row], dlosses ? dlosses[row * step] : 1, {smoothing, z, ignore, classes})); \
  }
TYPES(ROWS)

// Means: each block leaves the sum of its losses and that of their weights in parts [blocks 2], and
// mean makes a quotient of them. All sums are float64.
DEVICE void leave(double *parts, double sum, double weight) {
  sum = block_sum(sum);
  weight = block_sum(weight);
  if (threadIdx.x == 0) parts[2 * blockIdx.x] = sum, parts[2 * blockIdx.x + 1] = weight;
}
#define STRIDE(n) \
  _Pragma("unroll 1") for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (u64)gridDim.x * blockDim.x)

// counted weighs losses by 1 where the target counts. losses may be null: then only the weights matter.
template <class T> DEVICE void counted(double *parts, const T *losses, const i64 *targets, u64 n, i64 ignore) {
  double sum = 0, count = 0;
  STRIDE(n) {
    if (targets[i] == ignore) continue;
    count++;
    if (losses) sum += losses[i];
  }
  leave(parts, sum, count);
}

// mean writes sum / weight, 0 if that is 0: of the sums in parts, of which there are count. If there
// are none, the weight is the argument. If d is not null, *d·factor takes the place of the sum.
template <class T> DEVICE void mean(T *y, const double *parts, u32 count, double weight, const T *d, double factor) {
  double sum = 0, parted = 0;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) sum += parts[2 * i], parted += parts[2 * i + 1];
  sum = block_sum(sum);
  parted = block_sum(parted);
  if (threadIdx.x > 0) return;
  if (count > 0 && weight == 0) weight = parted;
  if (d) sum = *d * factor;
  *y = weight == 0 ? 0 : sum / weight;
}

// spread writes *d where the target counts, and 0 elsewhere.
template <class T> DEVICE void spread(T *y, const i64 *targets, const T *d, u64 n, i64 ignore) {
  INDEX(n);
  y[i] = targets[i] == ignore ? 0 : *d;
}

// squares and binary are losses of an element x with a target t, and their slopes but for a factor.
struct squares {
  template <class T> static __device__ __forceinline__ T loss(T x, T t) { return (x - t) * (x - t); }
  template <class T> static __device__ __forceinline__ T slope(T x, T t) { return x - t; }
};
struct binary {
  template <class T> static __device__ __forceinline__ T loss(T x, T t) { return larger<T>(x, 0) - t * x + log1p(exp(-abs(x))); }
  template <class T> static __device__ __forceinline__ T slope(T x, T t) { return 1 / (1 + exp(-x)) - t; }
};

// pairs leaves the sum of losses, weighted by w if that is not null. x may be null: then only the
// weights matter.
template <class F, class T> DEVICE void pairs(double *parts, const T *x, const T *t, const T *w, u64 n) {
  double sum = 0, weight = 0;
  STRIDE(n) {
    double v = w ? w[i] : 1;
    weight += v;
    if (x) sum += v * F::loss(x[i], t[i]);
  }
  leave(parts, sum, weight);
}

// slope writes the slopes of losses, times *d and the weights.
template <class F, class T> DEVICE void slope(T *dx, const T *x, const T *t, const T *w, const T *d, u64 n) {
  INDEX(n);
  dx[i] = F::slope(x[i], t[i]) * (w ? w[i] * *d : *d);
}

#define PAIRS(name, F, E, T) \
  KERNEL loss_##name##_##T(double *parts, const E *x, const E *t, const E *w, u64 n) { pairs<F>(parts, x, t, w, n); } \
  KERNEL loss_##name##_slope_##T(E *dx, const E *x, const E *t, const E *w, const E *d, u64 n) { slope<F>(dx, x, t, w, d, n); }
#define MEANS(T, E) \
  KERNEL loss_counted_##T(double *parts, const E *losses, const i64 *targets, u64 n, i64 ignore) { counted(parts, losses, targets, n, ignore); } \
  KERNEL loss_mean_##T(E *y, const double *parts, u32 count, double weight, const E *d, double factor) { mean(y, parts, count, weight, d, factor); } \
  KERNEL loss_spread_##T(E *y, const i64 *targets, const E *d, u64 n, i64 ignore) { spread(y, targets, d, n, ignore); } \
  PAIRS(squares, squares, E, T) \
  PAIRS(binary, binary, E, T)
MEANS(f32, float)
MEANS(f64, double)
