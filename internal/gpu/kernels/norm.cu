// Layer norm (https://arxiv.org/abs/1607.06450), rms norm (https://arxiv.org/abs/1910.07467) and
// their gradients, over rows of d elements, V at once. In rms norm, which is not centered, the mean is
// taken for 0, and there is no bias.
#include "sums.h"

// What is kept of a row: mean and rstd one behind the other, or rstd alone.
template <class T> struct statistic {
  T mean, rstd;
  DEVICE statistic read(const T *stats, u64 row, int centered) {
    return centered ? statistic{stats[2 * row], stats[2 * row + 1]} : statistic{0, stats[row]};
  }
};

// y = (x - mean)·rstd·gain + bias.
template <int V, class E>
DEVICE void forward(E *y, W<E> *stats, const E *x, const W<E> *gain, const W<E> *bias, int rows, int d, W<E> eps, int centered) {
  typedef W<E> T;
  __shared__ T warps[2][8][1];
  u64 row = (u64)blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  x += row * d, y += row * d;
  int first = threadIdx.x * V, step = blockDim.x * V;
  T v[V], g[V], b[V] = {}, mean[1] = {0}, square[1] = {0};
  if (centered) {
#pragma unroll 1
    for (int i = first; i < d; i += step) {
      load(v, x + i);
      EACH(k, V) mean[0] += v[k];
    }
    row_sums(mean, warps[0]);
    mean[0] /= d;
  }
#pragma unroll 1
  for (int i = first; i < d; i += step) {
    load(v, x + i);
    EACH(k, V) square[0] += (v[k] - mean[0]) * (v[k] - mean[0]);
  }
  row_sums(square, warps[1]);
  T rstd = 1 / sqrt(square[0] / d + eps);
#pragma unroll 1
  for (int i = first; i < d; i += step) {
    load(v, x + i);
    load(g, gain + i);
    if (centered) load(b, bias + i);
    EACH(k, V) v[k] = (v[k] - mean[0]) * rstd * g[k] + b[k];
    store(y + i, v);
  }
  if (threadIdx.x) return;
  if (centered) stats[2 * row] = mean[0], stats[2 * row + 1] = rstd;
  else stats[row] = rstd;
}

// With x̂ = (x - mean)·rstd and g = gain·dy it is dx = rstd·(g - mean(g) - x̂·mean(g·x̂)), without
// mean(g) in rms norm, plus y unless y is null. Sums over the rows: dgain has dy·x̂, dbias has dy.
//
// backward takes rows [blockIdx.x·each, +each) in turn. A thread has the same K vectors of columns of
// every row, so that it sums dgain and dbias in registers: part is [blocks][dgain d, dbias d].
template <int V, int K, class E>
DEVICE void backward(E *dx, W<E> *part, const E *x, const W<E> *gain, const W<E> *stats, const E *dy, const E *y, int rows, int d, int each, int centered) {
  typedef W<E> T;
  __shared__ T warps[2][16][2];
  T dgain[K][V], dbias[K][V];
  EACH(j, K) EACH(k, V) dgain[j][k] = dbias[j][k] = 0;
  u64 first = (u64)blockIdx.x * each, last = min((u64)rows, first + each);
  for (u64 row = first; row < last; row++) {
    statistic<T> s = statistic<T>::read(stats, row, centered);
    T xhat[K][V], g[K][V], sums[2] = {0, 0};
    EACH(j, K) {
      int i = (j * blockDim.x + threadIdx.x) * V;
      if (i >= d) break;
      T b[V];
      load(xhat[j], x + row * d + i);
      load(g[j], dy + row * d + i);
      load(b, gain + i);
      EACH(k, V) {
        xhat[j][k] = (xhat[j][k] - s.mean) * s.rstd;
        dgain[j][k] += g[j][k] * xhat[j][k];
        dbias[j][k] += g[j][k];
        g[j][k] *= b[k];
        sums[0] += g[j][k];
        sums[1] += g[j][k] * xhat[j][k];
      }
    }
    row_sums(sums, warps[(row - first) % 2]);
    T a = centered ? sums[0] / d : 0, b = sums[1] / d;
    EACH(j, K) {
      int i = (j * blockDim.x + threadIdx.x) * V;
      if (i >= d) break;
      EACH(k, V) g[j][k] = s.rstd * (g[j][k] - a - xhat[j][k] * b);
      if (y) {
        T more[V];
        load(more, y + row * d + i);
        EACH(k, V) g[j][k] += more[k];
      }
      store(dx + row * d + i, g[j]);
    }
  }
  part += (u64)blockIdx.x * (1 + centered) * d;
  EACH(j, K) {
    int i = (j * blockDim.x + threadIdx.x) * V;
    if (i >= d) break;
    store(part + i, dgain[j]);
    if (centered) store(part + d + i, dbias[j]);
  }
}

// row_means and columns do what backward does, for rows of any length: one writes mean(g) and
// mean(g·x̂) of each row to means, a warp a row, and the other takes rows [blockIdx.y·each, +each), a
// thread a column.
template <class E>
DEVICE void row_means(W<E> *means, const E *x, const W<E> *gain, const W<E> *stats, const E *dy, int rows, int d, int centered) {
  typedef W<E> T;
  u64 row = (u64)blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  statistic<T> s = statistic<T>::read(stats, row, centered);
  T sums[2] = {0, 0};
#pragma unroll 1
  for (int i = threadIdx.x; i < d; i += 32) {
    T g = gain[i] * wide(dy[row * d + i]);
    sums[0] += g;
    sums[1] += g * (wide(x[row * d + i]) - s.mean) * s.rstd;
  }
  EACH(i, 2) sums[i] = warp_sum(sums[i]);
  if (threadIdx.x) return;
  means[2 * row] = centered ? sums[0] / d : 0;
  means[2 * row + 1] = sums[1] / d;
}

template <class E>
DEVICE void columns(E *dx, W<E> *part, const W<E> *means, const E *x, const W<E> *gain, const W<E> *stats, const E *dy, const E *y, int rows,
                    int d, int each, int centered) {
  typedef W<E> T;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= d) return;
  T dgain = 0, dbias = 0;
  u64 first = (u64)blockIdx.y * each, last = min((u64)rows, first + each);
#pragma unroll 1
  for (u64 row = first; row < last; row++) {
    statistic<T> s = statistic<T>::read(stats, row, centered);
    T xhat = (wide(x[row * d + i]) - s.mean) * s.rstd, g = wide(dy[row * d + i]);
    dgain += g * xhat;
    dbias += g;
    T v = s.rstd * (gain[i] * g - means[2 * row] - xhat * means[2 * row + 1]);
    narrow(dx[row * d + i], y ? v + wide(y[row * d + i]) : v);
  }
  part += (u64)blockIdx.y * (1 + centered) * d;
  part[i] = dgain;
  if (centered) part[d + i] = dbias;
}

#define FORWARD(T, E, V) \
  KERNEL norm_forward_##T(E *y, W<E> *stats, const E *x, const W<E> *gain, const W<E> *bias, int rows, int d, W<E> eps, int centered) { \
    forward<V>(y, stats, x, gain, bias, rows, d, eps, centered); \
  }
#define NORM(T, E) \
  FORWARD(T, E, 1) \
  KERNEL norm_means_##T(W<E> *means, const E *x, const W<E> *gain, const W<E> *stats, const E *dy, int rows, int d, int centered) { \
    row_means(means, x, gain, stats, dy, rows, d, centered); \
  } \
  KERNEL norm_columns_##T(E *dx, W<E> *part, const W<E> *means, const E *x, const W<E> *gain, const W<E> *stats, const E *dy, \
                          const E *y, int rows, int d, int each, int centered) { \
    columns(dx, part, means, x, gain, stats, dy, y, rows, d, each, centered); \
  }
TYPES(NORM)

#define NORM8(T, E) \
  FORWARD(T##x8, E, 8) \
  extern "C" __global__ void __launch_bounds__(512) norm_backward_##T##x8(E *dx, float *part, const E *x, const float *gain, const float *stats, \
                                                                          const E *dy, const E *y, int rows, int d, int each, int centered) { \
    backward<8, 2>(dx, part, x, gain, stats, dy, y, rows, d, each, centered); \
  }
NORM8(bf16, bf16)
NORM8(f16, f16)
