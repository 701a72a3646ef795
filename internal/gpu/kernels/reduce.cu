// Sums, maxima and softmax along an axis, and what undoes them. Values are [outer n inner], and the axis
// is the middle one.
#include "rows.h"

struct sums {
  template <class T> static __device__ T start() { return 0; }
  template <class T> static __device__ T of(T a, T b) { return a + b; }
  template <class T> static __device__ T block(T a) { return block_sum(a); }
};
struct maxima {
  template <class T> static __device__ T start() { return -INFINITY; }
  template <class T> static __device__ T of(T a, T b) { return larger(a, b); }
  template <class T> static __device__ T block(T a) { return block_max(a); }
};

// Both folds write y [outer chunks inner]: of each piece of the axis, of which blocks in y have one each.
// A second fold makes one of these. In fold_rows a block has a result, in fold_columns a thread, which
// takes the elements in order.
#define PIECE \
  u64 from = blockIdx.y * chunk, to = from + chunk < n ? from + chunk : n, o = r / inner, i = r % inner; \
  x += o * n * inner + i; \
  y += (o * gridDim.y + blockIdx.y) * inner + i; \
  T v = F::template start<T>();

template <class F, class T> DEVICE void fold_rows(T *y, const T *x, u64 n, u64 inner, u64 chunk) {
  u64 r = blockIdx.x;
  PIECE
#pragma unroll 4
  for (u64 k = from + threadIdx.x; k < to; k += blockDim.x) v = F::of(v, x[k * inner]);
  v = F::block(v);
  if (threadIdx.x == 0) *y = v;
}

template <class F, class T> DEVICE void fold_columns(T *y, const T *x, u64 results, u64 n, u64 inner, u64 chunk) {
  u64 r = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= results) return;
  PIECE
#pragma unroll 4
  for (u64 k = from; k < to; k++) v = F::of(v, x[k * inner]);
  *y = v;
}

#define FOLD(name, F, T, E) \
  KERNEL reduce_##name##_rows_##T(E *y, const E *x, u64 n, u64 inner, u64 chunk) { fold_rows<F>(y, x, n, inner, chunk); } \
  KERNEL reduce_##name##_columns_##T(E *y, const E *x, u64 results, u64 n, u64 inner, u64 chunk) { \
    fold_columns<F>(y, x, results, n, inner, chunk); \
  }

// max_grad writes dy where x is the largest. The axes of x are in up to 4 pairs: first those that y has,
// whose lengths are kept, then those that it has not.
template <class T>
DEVICE void max_grad(T *dx, const T *x, const T *y, const T *dy, u64 n, u64 kept0, u64 gone0, u64 kept1, u64 gone1, u64 kept2, u64 gone2,
                     u64 kept3, u64 gone3) {
  INDEX(n);
  u64 kept[4] = {kept0, kept1, kept2, kept3}, gone[4] = {gone0, gone1, gone2, gone3}, left = i, j = 0, stride = 1;
#pragma unroll
  for (int a = 3; a >= 0; a--) {
    left /= gone[a];
    j += left % kept[a] * stride;
    left /= kept[a];
    stride *= kept[a];
  }
  dx[i] = x[i] == y[j] ? dy[j] : 0;
}

// repeat writes each [inner] of x as often as times inner says.
template <class T> DEVICE void repeat(T *y, const T *x, u64 n, u64 inner, u64 run) {
  INDEX(n);
  y[i] = x[i / run * inner + i % inner];
}
KERNEL reduce_repeat_b16(u16 *y, const u16 *x, u64 n, u64 inner, u64 run) { repeat(y, x, n, inner, run); }
KERNEL reduce_repeat_b32(u32 *y, const u32 *x, u64 n, u64 inner, u64 run) { repeat(y, x, n, inner, run); }
KERNEL reduce_repeat_b64(u64 *y, const u64 *x, u64 n, u64 inner, u64 run) { repeat(y, x, n, inner, run); }

// A softmax takes a column in a pass for its maximum and the sum of its exponentials, and one that
// writes. Whole columns of -Inf, and those with +Inf or NaN, become NaN.
template <class T> struct column : exponentials<T> {
  // settle makes sum what of needs.
  __device__ __forceinline__ void settle(bool logs) {
    this->sum += this->top - this->top;
    this->sum = logs ? log(this->sum) : 1 / this->sum;
  }
  __device__ __forceinline__ T of(T v, bool logs) const { return logs ? v - this->top - this->sum : exp(v - this->top) * this->sum; }
};

// A block has a row [n].
template <class E> DEVICE void softmax_rows(E *y, const E *x, u64 n, int logs) {
  x += blockIdx.x * n, y += blockIdx.x * n;
  column<W<E>> c;
  each(x, n, [&](u64, W<E> v) { c.add(v); });
  c.finish();
  c.settle(logs);
  map(y, x, n, [&](u64, W<E> v) { return c.of(v, logs); });
}

// A thread has a column.
#define COLUMNS(columns) \
  INDEX(columns); \
  u64 at = i / inner * n * inner + i % inner

template <class E> DEVICE void softmax_columns(E *y, const E *x, u64 columns, u64 n, u64 inner, int logs) {
  COLUMNS(columns);
  column<W<E>> c;
#pragma unroll 1
  for (u64 k = 0; k < n; k++) c.add(wide(x[at + k * inner]));
  c.settle(logs);
#pragma unroll 1
  for (u64 k = 0; k < n; k++) narrow(y[at + k * inner], c.of(wide(x[at + k * inner]), logs));
}

// share is what an element of y and dy adds to the sum of the gradient, and slope the gradient.
template <class T> DEVICE T share(T y, T dy, bool logs) { return logs ? dy : y * dy; }
template <class T> DEVICE T slope(T y, T dy, T sum, bool logs) { return logs ? dy - exp(y) * sum : y * (dy - sum); }

template <class E> DEVICE void softmax_grad_rows(E *dx, const E *dy, const E *y, u64 n, int logs) {
  dx += blockIdx.x * n, dy += blockIdx.x * n, y += blockIdx.x * n;
  W<E> sum = 0;
  each(dy, n, [&](u64 i, W<E> d) { sum += share(wide(y[i]), d, logs); });
  sum = block_sum(sum);
  map(dx, dy, n, [&](u64 i, W<E> d) { return slope(wide(y[i]), d, sum, logs); });
}

template <class E> DEVICE void softmax_grad_columns(E *dx, const E *dy, const E *y, u64 columns, u64 n, u64 inner, int logs) {
  COLUMNS(columns);
  W<E> sum = 0;
#pragma unroll 1
  for (u64 k = at; k < at + n * inner; k += inner) sum += share(wide(y[k]), wide(dy[k]), logs);
#pragma unroll 1
  for (u64 k = at; k < at + n * inner; k += inner) narrow(dx[k], slope(wide(y[k]), wide(dy[k]), sum, logs));
}

#define REDUCE(T, E) \
  FOLD(sum, sums, T, E) \
  FOLD(max, maxima, T, E) \
  KERNEL reduce_max_grad_##T(E *dx, const E *x, const E *y, const E *dy, u64 n, u64 k0, u64 g0, u64 k1, u64 g1, u64 k2, u64 g2, u64 k3, u64 g3) { \
    max_grad(dx, x, y, dy, n, k0, g0, k1, g1, k2, g2, k3, g3); \
  }
REDUCE(f32, float)
REDUCE(f64, double)

#define SOFTMAX(T, E) \
  KERNEL reduce_softmax_rows_##T(E *y, const E *x, u64 n, int logs) { softmax_rows(y, x, n, logs); } \
  KERNEL reduce_softmax_columns_##T(E *y, const E *x, u64 columns, u64 n, u64 inner, int logs) { softmax_columns(y, x, columns, n, inner, logs); } \
  KERNEL reduce_softmax_grad_rows_##T(E *dx, const E *dy, const E *y, u64 n, int logs) { softmax_grad_rows(dx, dy, y, n, logs); } \
  KERNEL reduce_softmax_grad_columns_##T(E *dx, const E *dy, const E *y, u64 columns, u64 n, u64 inner, int logs) { \
    softmax_grad_columns(dx, dy, y, columns, n, inner, logs); \
  }
TYPES(SOFTMAX)
